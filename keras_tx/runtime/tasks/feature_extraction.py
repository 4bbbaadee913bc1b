"""Sentence embeddings: texts to vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import FolderError, InputError, nearest, true_or_false
from keras_tx.processing import Row
from keras_tx.runtime.folder import Folder, read_json
from keras_tx.runtime.session import Session
from keras_tx.runtime.tasks.base import (
    Answer,
    RunOptions,
    Task,
    embedding_answer,
    per_adapter,
    render_embedding,
)
from keras_tx.runtime.tasks.text_task import TextTask, run_example

POOLINGS = ("mean", "class")


class TextEmbedder(TextTask):
    """Computes a vector for each text; texts of similar meaning have similar vectors.

    >>> load("minilm")(["A cat.", "A kitten."]).shape  # doctest: +SKIP
    (2, 384)
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session, (contract.LAST_HIDDEN_STATE,))
        self._pooled = contract.SENTENCE_EMBEDDING in {spec.name for spec in session.outputs}
        self._pooling, self._normalize = _default_pooling(folder)

    @per_adapter
    def embed(
        self,
        texts: Any,
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        batch_size: int = 32,
        progress: bool = False,
    ) -> np.ndarray:
        """Returns the embedding of a text; the stacked embeddings of several.

        Args:
            texts: a text, or an iterable of texts of any length.
            pooling: "mean" of all tokens, or "class" for the first token. By default that of the exported
                head; "mean" for a model without head.
            normalize: whether vectors have length 1. By default as in the exported head; True for a model
                without head.
            batch_size: number of texts that the graph computes together.
            progress: whether to show a progress bar.

        Raises:
            InputError: if `pooling` is unknown.
            TextError: if an item is not a text.
            ConfigError: if `normalize` is not a bool, or `batch_size` is not a positive integer.
        """
        if pooling is not None and pooling not in POOLINGS:
            raise InputError(f"pooling={pooling!r} is unknown. {nearest(str(pooling), POOLINGS)}")
        if normalize is not None:
            true_or_false("normalize", normalize)
        from_graph = self._pooled and pooling is None and normalize is None
        by_class = (pooling or self._pooling) == "class"
        unit_length = self._normalize if normalize is None else normalize

        def read(row: Row, out: dict[str, np.ndarray]) -> np.ndarray:
            if from_graph:
                return out[contract.SENTENCE_EMBEDDING].copy()
            tokens = out[contract.LAST_HIDDEN_STATE]
            vector = tokens[0].copy() if by_class else tokens.mean(axis=0)
            return vector / max(float(np.linalg.norm(vector)), 1e-12) if unit_length else vector

        def answer(texts: Any, start: int) -> list[Any]:
            return self.run_rows(self.transform.encode(texts, start=start), read, batch_size)

        vectors = self.map_texts(answer, texts, batch_size=batch_size, progress=progress)
        return vectors if isinstance(texts, str) else self._stacked(vectors)

    __call__ = embed

    def _stacked(self, vectors: list[np.ndarray]) -> np.ndarray:
        if vectors:
            return np.stack(vectors)
        spec = next(spec for spec in self.session.outputs if spec.name == contract.LAST_HIDDEN_STATE)
        return np.empty((0, spec.shape[-1] if isinstance(spec.shape[-1], int) else 0), np.float32)


def _default_pooling(folder: Folder) -> tuple[str, bool]:
    """Pooling and normalization by the files of sentence-transformers."""
    if contract.POOLING not in folder.manifest.files:
        return "mean", True
    by_class = read_json(folder.path, contract.POOLING, folder.manifest).get("pooling_mode_cls_token")
    if not isinstance(by_class, bool):
        raise FolderError(
            f"{folder.path / contract.POOLING}: pooling_mode_cls_token is {by_class!r:.80}, expected true or "
            "false. Export again."
        )
    return "class" if by_class else "mean", contract.NORMALIZE in folder.manifest.files


def _answers(model: TextEmbedder, texts: Sequence[str], options: RunOptions) -> list[Answer]:
    return [embedding_answer(vector) for vector in model.embed(list(texts))]


TASK = Task(
    contract.FEATURE_EXTRACTION,
    TextEmbedder,
    "text",
    answer=_answers,
    render=render_embedding,
    run_example=run_example,
)
