"""Logits to labels with scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import FolderError
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session, describe
from keras_tx.runtime.tasks.base import Answer, DrawBar


@dataclasses.dataclass(frozen=True)
class Scores:
    """The meaning of logits by config.json's problem_type; by default one label for each sample.

    >>> Scores(None, ("cat", "dog")).best(np.array([0.0, 0.0]), top_k=1)
    [{'label': 'cat', 'score': 0.5}]
    """

    problem_type: str | None
    labels: tuple[str, ...]

    def best(self, logits: np.ndarray, top_k: int) -> list[dict[str, Any]]:
        """The labels with the highest scores, best first; all numbers of a regression, in order."""
        if self.problem_type == contract.REGRESSION:
            return self._named(logits, np.arange(len(logits)))
        scores = sigmoid(logits) if self.problem_type == contract.MULTI_LABEL else softmax(logits)
        return self._named(scores, np.argsort(-scores, kind="stable")[:top_k])

    def _named(self, scores: np.ndarray, indices: np.ndarray) -> list[dict[str, Any]]:
        return [{"label": self.labels[i], "score": float(scores[i])} for i in indices]

    def answer(self, best: list[dict[str, Any]]) -> Answer:
        return {"numbers" if self.problem_type == contract.REGRESSION else "predictions": best}


def labels_of(
    folder: Folder, session: Session, axes: tuple[str, ...] = ("batch",), output: str = contract.LOGITS
) -> tuple[str, ...]:
    """The names of the classes of an output with the shape (*axes, classes).

    Without labels in the manifest these are the names that Hugging Face uses: LABEL_0, LABEL_1 ...
    """
    spec = next(spec for spec in session.outputs if spec.name == output)
    labels, count = folder.manifest.labels, spec.shape[-1]
    if (
        len(spec.shape) != len(axes) + 1
        or not isinstance(count, int)
        or (labels is not None and len(labels) != count)
    ):
        expected = "classes" if labels is None else len(labels)
        reason = "a fixed number of classes" if labels is None else f"{len(labels)} labels"
        raise FolderError(
            f"{folder.path}: the graph has {describe(spec)}, expected ({', '.join(axes)}, {expected}) for "
            f"{reason}. Export again."
        )
    return labels if labels is not None else tuple(f"LABEL_{index}" for index in range(count))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, in float64; subtracting the largest logit avoids overflow."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Elementwise, in float64, without overflow."""
    small = np.exp(-np.abs(logits.astype(np.float64)))
    return np.where(logits >= 0, 1.0, small) / (1.0 + small)


def render_scores(answer: Answer, draw_bar: DrawBar) -> Iterator[str]:
    """Labels with percentages and bars; numbers of a regression."""
    for row in answer.get("numbers", ()):
        yield f"  {row['label']}  {row['score']:.4g}"
    rows = answer.get("predictions", ())
    width = max((len(row["label"]) for row in rows), default=0)
    for row in rows:
        yield f"  {row['label']:<{width}}  {row['score']:6.1%}  {draw_bar(row['score'])}".rstrip()
