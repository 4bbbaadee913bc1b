"""Decoder graphs with a cache of keys and values: their signature, and the loop's Decoder on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.contract import TensorSpec
from keras_tx.errors import FolderError
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session, describe


@dataclasses.dataclass(frozen=True)
class DecoderSignature:
    """Inputs and outputs of a decoder's graph.

    Attributes:
        pasts: inputs for keys and values, in the order of the layers.
        presents: outputs with keys and values, in the same order.
        logits: the output with logits.
        keeps_logits: whether the graph can compute the logits of the last tokens only.
    """

    pasts: tuple[TensorSpec, ...]
    presents: tuple[str, ...]
    logits: TensorSpec
    keeps_logits: bool

    @property
    def vocabulary_size(self) -> int:
        return int(self.logits.shape[-1])

    @property
    def bytes_per_token(self) -> int:
        """The memory of the keys and values of a token."""
        return sum(int(p.shape[1]) * int(p.shape[3]) * np.dtype(p.dtype).itemsize for p in self.pasts)

    @classmethod
    def of(cls, session: Session) -> DecoderSignature:
        """The signature of a graph; raises a FolderError if it is not that of a decoder with a cache."""
        names = {spec.name for spec in session.inputs}
        pasts = tuple(spec for spec in session.inputs if spec.name.startswith("past_key_values."))
        presents = tuple(spec.name for spec in session.outputs if spec.name.startswith("present."))
        logits = next((spec for spec in session.outputs if spec.name == contract.LOGITS), None)
        needed = {contract.INPUT_IDS, contract.ATTENTION_MASK, contract.POSITION_IDS}
        if not pasts or len(pasts) != len(presents) or logits is None or needed - names:
            raise FolderError(
                f"{session.graph.parent.parent}: the graph has the inputs "
                f"{', '.join(map(describe, session.inputs))}, expected {', '.join(sorted(needed))} and a "
                "cache. Export again with cache=True."
            )
        keeps_logits = contract.NUM_LOGITS_TO_KEEP in {spec.name for spec in session.optional}
        return cls(pasts, presents, logits, keeps_logits)


class CachedDecoder:
    """A graph as keras_tx.generation's Decoder; the cache stays on the session's device."""

    def __init__(self, session: Session, context: int) -> None:
        self._signature = DecoderSignature.of(session)
        self._session = self.network = session
        self.vocabulary_size = self._signature.vocabulary_size
        self.bytes_per_token = self._signature.bytes_per_token
        self.context = context

    def run(
        self,
        ids: np.ndarray,
        mask: np.ndarray,
        positions: np.ndarray,
        past: Any,
        all_logits: bool,
        room: int = 0,
    ) -> tuple[np.ndarray, Any]:
        feed: dict[str, Any] = {
            contract.INPUT_IDS: np.ascontiguousarray(ids),
            contract.ATTENTION_MASK: np.ascontiguousarray(mask),
            contract.POSITION_IDS: np.ascontiguousarray(positions),
        }
        if self._signature.keeps_logits and not all_logits and ids.shape[1] > 1:
            feed[contract.NUM_LOGITS_TO_KEEP] = np.array(1)
        for spec, value in zip(self._signature.pasts, past or self._empty(len(ids)), strict=True):
            feed[spec.name] = value
        values, logits = self._session.advance(feed, self._signature.presents, contract.LOGITS)
        return logits if all_logits else logits[:, -1:], values

    def select(self, past: Any, rows: Sequence[int], first: int = 0) -> Any:
        if list(rows) == list(range(past[0].shape()[0])):
            return past
        return [self._session.select_rows(value, rows) for value in past]

    def _empty(self, batch: int) -> list[np.ndarray]:
        pasts = self._signature.pasts
        return [np.zeros((batch, int(p.shape[1]), 0, int(p.shape[3])), p.dtype) for p in pasts]


def context_of(folder: Folder) -> int:
    """The maximum number of tokens, by config.json."""
    config = folder.config or {}
    for name in ("n_positions", "max_position_embeddings"):
        if config.get(name) is not None:
            return int(config[name])
    raise FolderError(
        f"{folder.path / contract.CONFIG}: n_positions and max_position_embeddings are missing, so the "
        "context length is unknown. Export again."
    )
