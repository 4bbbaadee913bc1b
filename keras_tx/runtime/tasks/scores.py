"""Logits to labels with scores."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from keras_tx import contract


@dataclasses.dataclass(frozen=True)
class Scores:
    """What the logits of a sample mean, as config.json's problem_type says it; without one, one label of all.

    >>> Scores(None, ("cat", "dog")).best(np.array([0.0, 0.0]), top_k=1)
    [{'label': 'cat', 'score': 0.5}]
    """

    problem_type: str | None
    labels: tuple[str, ...]

    def best(self, logits: np.ndarray, top_k: int) -> list[dict[str, Any]]:
        """The best labels, best first; of a regression all its numbers, in order."""
        if self.problem_type == contract.REGRESSION:
            return self._named(logits, np.arange(len(logits)))
        scores = sigmoid(logits) if self.problem_type == contract.MULTI_LABEL else softmax(logits)
        return self._named(scores, np.argsort(-scores, kind="stable")[:top_k])

    def _named(self, scores: np.ndarray, chosen: np.ndarray) -> list[dict[str, Any]]:
        return [{"label": self.labels[i], "score": float(scores[i])} for i in chosen]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, in float64; the largest logit is taken off first, so that none overflows."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Of each by itself, in float64; no exponential overflows."""
    small = np.exp(-np.abs(logits.astype(np.float64)))
    return np.where(logits >= 0, 1.0, small) / (1.0 + small)
