"""Metrics of question answering: exact match and token overlap of answer spans."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx import contract
from keras_tx.errors import ConfigError, whole_number
from keras_tx.metrics.base import Ratio


class _Span(Ratio):
    """Labels and logits are dicts of "start_logits" and "end_logits", as for SpanHead."""

    def __init__(self, longest: int, name: str, **kwargs: Any):
        super().__init__(name, **kwargs)
        self.longest = whole_number("longest", longest)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        if not isinstance(y_true, dict) or not {contract.START_LOGITS, contract.END_LOGITS} <= set(y_true):
            raise ConfigError(
                f"The labels of metric {self.name!r} are not a dict of 'start_logits' and 'end_logits'. Pass "
                "the positions of the first and last token of each answer under these keys."
            )
        start, end = (
            ops.reshape(ops.cast(y_true[name], "int32"), (-1,))
            for name in (contract.START_LOGITS, contract.END_LOGITS)
        )
        predicted = best_span(y_pred[contract.START_LOGITS], y_pred[contract.END_LOGITS], self.longest)
        scores = self.score(start, end, *predicted)
        if isinstance(sample_weight, dict):  # one weight per output; both are the same
            sample_weight = sample_weight[contract.START_LOGITS]
        weights = ops.ones_like(scores)
        if sample_weight is not None:
            weights = ops.reshape(ops.cast(sample_weight, "float32"), (-1,))
        self.add(scores * weights, weights)

    def score(self, start: Any, end: Any, predicted_start: Any, predicted_end: Any) -> Any:
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "longest": self.longest}


def best_span(start_logits: Any, end_logits: Any, longest: int) -> tuple[Any, Any]:
    """First and last token (batch,) of the span with the largest sum of logits, at most `longest` tokens."""
    length = ops.shape(start_logits)[1]
    positions = ops.arange(length, dtype="int32")
    distance = positions[None, :] - positions[:, None]
    possible = ops.logical_and(distance >= 0, distance < longest)  # (start, end)
    scores = ops.cast(start_logits, "float32")[:, :, None] + ops.cast(end_logits, "float32")[:, None, :]
    flat = ops.reshape(ops.where(possible, scores, -1e30), (-1, length * length))
    best = ops.cast(ops.argmax(flat, axis=-1), "int32")
    return best // length, best % length


@keras.saving.register_keras_serializable("keras_tx")
class SpanExactMatch(_Span):
    """The fraction of samples whose predicted span is exactly the answer.

    Args:
        longest: the largest number of tokens of a predicted span.
        name: name of the metric.

    Raises:
        ConfigError: `longest` is below 1.

    Example:

    >>> import numpy as np
    >>> metric = SpanExactMatch()
    >>> logits = {"start_logits": np.eye(4)[[1]], "end_logits": np.eye(4)[[2]]}
    >>> metric.update_state({"start_logits": np.array([1]), "end_logits": np.array([2])}, logits)
    >>> float(metric.result())
    1.0
    """

    def __init__(self, longest: int = 30, name: str = "exact_match", **kwargs: Any):
        super().__init__(longest, name, **kwargs)

    def score(self, start: Any, end: Any, predicted_start: Any, predicted_end: Any) -> Any:
        same = ops.logical_and(ops.equal(start, predicted_start), ops.equal(end, predicted_end))
        return ops.cast(same, "float32")


@keras.saving.register_keras_serializable("keras_tx")
class SpanF1(_Span):
    """The mean token overlap of predicted spans and answers: 2 * shared / (predicted + true) tokens.

    Args:
        longest: the largest number of tokens of a predicted span.
        name: name of the metric.

    Raises:
        ConfigError: `longest` is below 1.

    Example:

    >>> import numpy as np
    >>> metric = SpanF1()
    >>> logits = {"start_logits": np.eye(4)[[1]], "end_logits": np.eye(4)[[2]]}
    >>> metric.update_state({"start_logits": np.array([2]), "end_logits": np.array([3])}, logits)
    >>> float(metric.result())
    0.5
    """

    def __init__(self, longest: int = 30, name: str = "span_f1", **kwargs: Any):
        super().__init__(longest, name, **kwargs)

    def score(self, start: Any, end: Any, predicted_start: Any, predicted_end: Any) -> Any:
        shared = ops.maximum(ops.minimum(end, predicted_end) - ops.maximum(start, predicted_start) + 1, 0)
        lengths = (end - start + 1) + (predicted_end - predicted_start + 1)
        return 2 * ops.cast(shared, "float32") / ops.cast(lengths, "float32")
