"""Metrics of answers as spans of tokens: exact match and the overlap of tokens."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx import contract
from keras_tx.errors import ConfigError, whole_number
from keras_tx.metrics.base import Ratio


class _Span(Ratio):
    """Takes labels and logits as SpanHead has them: dicts of "start_logits" and "end_logits"."""

    def __init__(self, longest: int, name: str, **kwargs: Any):
        super().__init__(name, **kwargs)
        self.longest = whole_number("longest", longest)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        if not isinstance(y_true, dict) or not {contract.START_LOGITS, contract.END_LOGITS} <= set(y_true):
            raise ConfigError(
                f"Metric {self.name!r} needs labels as a dict of 'start_logits' and 'end_logits': the "
                "positions of the first and of the last token of each answer."
            )
        start, end = (
            ops.reshape(ops.cast(y_true[name], "int32"), (-1,))
            for name in (contract.START_LOGITS, contract.END_LOGITS)
        )
        found = best_span(y_pred[contract.START_LOGITS], y_pred[contract.END_LOGITS], self.longest)
        scores = self.score(start, end, *found)
        if isinstance(sample_weight, dict):  # one an output; a sample has one weight
            sample_weight = sample_weight[contract.START_LOGITS]
        weights = ops.ones_like(scores)
        if sample_weight is not None:
            weights = ops.reshape(ops.cast(sample_weight, "float32"), (-1,))
        self.add(scores * weights, weights)

    def score(self, start: Any, end: Any, found_start: Any, found_end: Any) -> Any:
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "longest": self.longest}


def best_span(start_logits: Any, end_logits: Any, longest: int) -> tuple[Any, Any]:
    """First and last token (batch,) of the span with the largest sum of logits, at most `longest` tokens."""
    length = ops.shape(start_logits)[1]
    places = ops.arange(length, dtype="int32")
    distance = places[None, :] - places[:, None]
    possible = ops.logical_and(distance >= 0, distance < longest)  # (start, end)
    scores = ops.cast(start_logits, "float32")[:, :, None] + ops.cast(end_logits, "float32")[:, None, :]
    flat = ops.reshape(ops.where(possible, scores, -1e30), (-1, length * length))
    best = ops.cast(ops.argmax(flat, axis=-1), "int32")
    return best // length, best % length


@keras.saving.register_keras_serializable("keras_tx")
class SpanExactMatch(_Span):
    """The share of samples whose best span is the answer, token for token.

    >>> import numpy as np
    >>> metric = SpanExactMatch()
    >>> logits = {"start_logits": np.eye(4)[[1]], "end_logits": np.eye(4)[[2]]}
    >>> metric.update_state({"start_logits": np.array([1]), "end_logits": np.array([2])}, logits)
    >>> float(metric.result())
    1.0

    Args:
        longest: spans longer than this many tokens are not considered.
    """

    def __init__(self, longest: int = 30, name: str = "exact_match", **kwargs: Any):
        super().__init__(longest, name, **kwargs)

    def score(self, start: Any, end: Any, found_start: Any, found_end: Any) -> Any:
        return ops.cast(ops.logical_and(ops.equal(start, found_start), ops.equal(end, found_end)), "float32")


@keras.saving.register_keras_serializable("keras_tx")
class SpanF1(_Span):
    """How many tokens the best span shares with the answer: the mean of 2 * shared / (found + true).

    >>> import numpy as np
    >>> metric = SpanF1()
    >>> logits = {"start_logits": np.eye(4)[[1]], "end_logits": np.eye(4)[[2]]}
    >>> metric.update_state({"start_logits": np.array([2]), "end_logits": np.array([3])}, logits)
    >>> float(metric.result())
    0.5

    Args:
        longest: spans longer than this many tokens are not considered.
    """

    def __init__(self, longest: int = 30, name: str = "span_f1", **kwargs: Any):
        super().__init__(longest, name, **kwargs)

    def score(self, start: Any, end: Any, found_start: Any, found_end: Any) -> Any:
        shared = ops.maximum(ops.minimum(end, found_end) - ops.maximum(start, found_start) + 1, 0)
        lengths = (end - start + 1) + (found_end - found_start + 1)
        return 2 * ops.cast(shared, "float32") / ops.cast(lengths, "float32")
