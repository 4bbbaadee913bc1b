"""Text that goes on: an exported decoder in onnxruntime, with its cache of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import FolderError
from keras_tx.generation import Generator
from keras_tx.processing.detokenizer import read_tokenizer
from keras_tx.runtime.decoder_signature import Ports
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session
from keras_tx.runtime.shared_cache import SharedGraph, difference
from keras_tx.runtime.tasks.base import LoadedModel


class TextGenerator(LoadedModel, Generator):
    """Continues texts, streams them, and says how likely they are.

    >>> poet = load("poet")  # doctest: +SKIP
    >>> for piece in poet.stream("To be", max_new_tokens=64, top_k=40, seed=0):  # doctest: +SKIP
    ...     print(piece, end="")
    >>> poet.generate(["To be", "Or not"], stop="\\n")[1].text  # doctest: +SKIP

    A prompt is a string where the folder has a tokenizer, else token ids; ids are always taken. An empty one
    starts from the end-of-text token.
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        LoadedModel.__init__(self, folder, session)
        kind = SharedGraph if session.graph == folder.shared else CachedGraph
        decoder = kind(session, context_of(folder))
        tokenizer = (
            None if folder.tokenizer is None else _tokenizer(folder.tokenizer, decoder.vocabulary_size)
        )
        stop_ids = _stop_ids(folder, decoder.vocabulary_size)
        Generator.__init__(self, decoder, stop_ids, str(folder.path), tokenizer)

    @property
    def context(self) -> int:
        """How many tokens the model sees at most."""
        return self.decoder.context

    def __repr__(self) -> str:
        size = f"{self.decoder.vocabulary_size} tokens, context {self.context}"
        return f"<{type(self).__name__} {str(self.folder.path)!r}: {size}, on {self._place()}>"

    def __call__(self, prompts: Any, **options: Any) -> Any:
        """The same as `generate`."""
        return self.generate(prompts, **options)


class CachedGraph:
    """The graph as keras_tx.generation's Decoder: the past stays on the session's device."""

    def __init__(self, session: Session, context: int) -> None:
        self._ports = Ports.of(session)
        self._session = session
        self.vocabulary_size = self._ports.vocabulary_size
        self.context = context

    def run(
        self,
        ids: np.ndarray,
        mask: np.ndarray,
        positions: np.ndarray,
        past: Any,
        every: bool,
        room: int = 0,
    ) -> tuple[np.ndarray, Any]:
        feed: dict[str, Any] = {
            contract.INPUT_IDS: np.ascontiguousarray(ids),
            contract.ATTENTION_MASK: np.ascontiguousarray(mask),
            contract.POSITION_IDS: np.ascontiguousarray(positions),
        }
        if self._ports.short and not every and ids.shape[1] > 1:
            feed[contract.NUM_LOGITS_TO_KEEP] = np.array(1)
        for spec, value in zip(self._ports.pasts, past or self._empty(len(ids)), strict=True):
            feed[spec.name] = value
        values, logits = self._session.advance(feed, self._ports.presents, contract.LOGITS)
        return logits if every else logits[:, -1:], values

    def select(self, past: Any, rows: Sequence[int], first: int = 0) -> Any:
        if list(rows) == list(range(past[0].shape()[0])):
            return past
        return [self._session.device_value(value.numpy()[list(rows)]) for value in past]

    def _empty(self, batch: int) -> list[np.ndarray]:
        pasts = self._ports.pasts
        return [np.zeros((batch, int(p.shape[1]), 0, int(p.shape[3])), p.dtype) for p in pasts]


def same_logits(graph: Path, beside: Path, context: int, exact: bool) -> tuple[float, float]:
    """How far the graph with a shared cache is from the other one, and how far it may be."""
    with Session(graph, "cpu") as plain, Session(beside, "cpu") as shared:
        found = difference(CachedGraph(plain, context), SharedGraph(shared, context), batched=exact)
    return found, contract.FLOAT32 if exact else contract.ROUNDED


def _tokenizer(path: Path, vocabulary: int) -> Any:
    try:
        tokenizer = read_tokenizer(path)
    except ImportError:
        raise
    except Exception as error:  # tokenizers has no class of its own for what it cannot read
        raise FolderError(f"{path} is not a tokenizer that tokenizers can read ({error}).") from error
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size > vocabulary:
        raise FolderError(f"{path} has {size} tokens, but the graph gives {vocabulary} logits. Export again.")
    return tokenizer


def _stop_ids(folder: Folder, vocabulary: int) -> frozenset[int]:
    """What generation_config.json says ends a text: one id, or several."""
    found = (folder.generation or {}).get("eos_token_id")
    ids = [] if found is None else found if isinstance(found, list) else [found]
    if not all(type(i) is int and 0 <= i < vocabulary for i in ids):
        raise FolderError(
            f"{folder.path}: {contract.GENERATION_CONFIG} has eos_token_id {found!r}, but the vocabulary "
            f"goes from 0 to {vocabulary - 1}. Export again."
        )
    return frozenset(ids)


def context_of(folder: Folder) -> int:
    config = folder.config or {}
    for name in ("n_positions", "max_position_embeddings"):
        if config.get(name) is not None:
            return int(config[name])
    raise FolderError(
        f"{folder.path}: {contract.CONFIG} says neither n_positions nor max_position_embeddings, so the "
        "length of its context is not known. Export again."
    )
