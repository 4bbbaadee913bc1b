"""The graphs of an encoder-decoder: their signature, and keras_tx.generation's EncoderDecoder on them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.contract import TensorSpec
from keras_tx.errors import FolderError
from keras_tx.runtime.session import Session, describe

PAST, PRESENT = "past_key_values.{}", "present.{}"
PARTS = ("decoder.key", "decoder.value"), ("encoder.key", "encoder.value")
NEEDED = (
    contract.INPUT_IDS,
    contract.ENCODER_ATTENTION_MASK,
    contract.ENCODER_HIDDEN_STATES,
    contract.USE_CACHE_BRANCH,
)


@dataclasses.dataclass(frozen=True)
class Seq2SeqSignature:
    """Inputs and outputs of the decoder graph, in the order of the layers.

    Attributes:
        targets: inputs for keys and values of the target.
        sources: inputs for keys and values of the source.
        target_presents: outputs with keys and values of the target.
        source_presents: outputs with keys and values of the source.
        hidden: the input for the encoder's output.
        logits: the output with logits.
        head_size: size of a head, which the inputs may declare as dynamic.
    """

    targets: tuple[TensorSpec, ...]
    sources: tuple[TensorSpec, ...]
    target_presents: tuple[str, ...]
    source_presents: tuple[str, ...]
    hidden: TensorSpec
    logits: TensorSpec
    head_size: int

    @property
    def vocabulary_size(self) -> int:
        return int(self.logits.shape[-1])

    @classmethod
    def of(cls, session: Session) -> Seq2SeqSignature:
        """The signature of a graph; raises a FolderError if it is not that of a decoder with a cache."""
        inputs = {spec.name: spec for spec in session.inputs}
        outputs = {spec.name: spec for spec in session.outputs}
        layers = next(i for i in itertools.count() if contract.SEQ2SEQ_PAST[0].format(i) not in inputs)
        targets, sources = ([f"{i}.{part}" for i in range(layers) for part in parts] for parts in PARTS)
        names = [*targets, *sources]
        missing = {*NEEDED, *map(PAST.format, names)} - set(inputs)
        if not layers or missing or {contract.LOGITS, *map(PRESENT.format, names)} - set(outputs):
            raise FolderError(
                f"{session.graph.parent.parent}: the decoder graph has the inputs "
                f"{', '.join(map(describe, session.inputs))}, expected those of an encoder-decoder with a "
                "cache. Export again."
            )
        return cls(
            tuple(inputs[PAST.format(name)] for name in targets),
            tuple(inputs[PAST.format(name)] for name in sources),
            tuple(map(PRESENT.format, targets)),
            tuple(map(PRESENT.format, sources)),
            inputs[contract.ENCODER_HIDDEN_STATES],
            outputs[contract.LOGITS],
            int(outputs[PRESENT.format(names[0])].shape[-1]),
        )


@dataclasses.dataclass
class _Cache:
    """What the decoder attends to.

    Attributes:
        mask: (rows, source tokens).
        rows: the index of each row's source; beams of one source share its index.
        hidden: the encoder's output, until the prefill has computed keys and values from it.
        sources: keys and values of the sources; empty before the prefill.
        targets: keys and values of the targets; empty before the prefill.
    """

    mask: np.ndarray
    rows: list[int]
    hidden: Any = None
    sources: list[Any] = dataclasses.field(default_factory=list)
    targets: list[Any] = dataclasses.field(default_factory=list)


class GraphEncoderDecoder:
    """Two graphs as keras_tx.generation's EncoderDecoder; the cache stays on the sessions' device.

    The encoder runs once for each batch of sources. The first run of the decoder computes keys and values of
    the sources, which later runs read.
    """

    def __init__(self, encoder: Session, decoder: Session, context: int) -> None:
        self._signature = Seq2SeqSignature.of(decoder)
        self._encoder = encoder
        self._decoder = self.network = decoder
        self.vocabulary_size = self._signature.vocabulary_size
        self.context = context
        self.source_context = context
        width = self._signature.hidden.shape[-1]
        (output,) = encoder.outputs
        if output.name != contract.LAST_HIDDEN_STATE or output.shape[-1] != width:
            raise FolderError(
                f"{encoder.graph} has the output {describe(output)}, but the decoder graph needs "
                f"{describe(self._signature.hidden)}. Export again."
            )

    def encode(self, ids: np.ndarray, mask: np.ndarray) -> _Cache:
        self._populate(self._encoder, ids)
        feed = {contract.INPUT_IDS: ids, contract.ATTENTION_MASK: mask}
        (hidden,) = self._encoder.keep(feed, [contract.LAST_HIDDEN_STATE])
        return _Cache(mask, list(range(len(ids))), hidden)

    def run(
        self,
        ids: np.ndarray,
        mask: np.ndarray,
        positions: np.ndarray,
        past: _Cache,
        all_logits: bool,
        room: int = 0,
    ) -> tuple[np.ndarray, _Cache]:
        self._populate(self._decoder, ids)
        signature = self._signature
        is_first = past.hidden is not None
        feed: dict[str, Any] = {
            contract.INPUT_IDS: np.ascontiguousarray(ids),
            contract.ENCODER_ATTENTION_MASK: past.mask,
            contract.ENCODER_HIDDEN_STATES: past.hidden if is_first else self._unused_hidden(len(ids)),
            contract.USE_CACHE_BRANCH: np.array([not is_first]),
        }
        for specs, values in ((signature.targets, past.targets), (signature.sources, past.sources)):
            for index, spec in enumerate(specs):
                feed[spec.name] = self._empty(spec, len(ids)) if is_first else values[index]
        presents = [*signature.target_presents, *(signature.source_presents if is_first else ())]
        values, logits = self._decoder.advance(feed, presents, contract.LOGITS)
        count = len(signature.targets)
        sources = values[count:] if is_first else past.sources
        cache = _Cache(past.mask, past.rows, None, sources, values[:count])
        return logits if all_logits else logits[:, -1:], cache

    def select(self, past: _Cache, rows: Sequence[int], first: int = 0) -> _Cache:
        if list(rows) == list(range(len(past.rows))):
            return past
        targets = [self._decoder.select_rows(value, rows) for value in past.targets]
        sources = [past.rows[row] for row in rows]
        if sources == past.rows:  # only beams of one source have changed places
            return dataclasses.replace(past, targets=targets)
        keys = [self._decoder.select_rows(value, rows) for value in past.sources]
        return _Cache(past.mask[list(rows)], sources, None, keys, targets)

    def _populate(self, session: Session, ids: np.ndarray) -> None:
        """Reads the embeddings of tokens into memory, where they are in a mapped file."""
        if session.weights is not None:
            session.weights.populate(ids, self.vocabulary_size)

    def _empty(self, spec: TensorSpec, rows: int) -> np.ndarray:
        return np.zeros((rows, int(spec.shape[1]), 0, self._signature.head_size), spec.dtype)

    def _unused_hidden(self, rows: int) -> np.ndarray:
        """The smallest encoder output that the graph accepts, for runs that do not read it."""
        hidden = self._signature.hidden
        return np.zeros((rows, 1, int(hidden.shape[-1])), hidden.dtype)
