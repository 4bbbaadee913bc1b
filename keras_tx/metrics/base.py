"""What the metrics share: labels that count, and a quotient of two sums."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx import contract


def labels_and_weights(y_true: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Labels as integers, 0 where there is none, and the weight of each: 0 where there is none."""
    labels = ops.cast(y_true, "int32")
    labelled = ops.not_equal(labels, contract.NO_LABEL)
    weights = ops.cast(labelled, "float32")
    if sample_weight is not None:
        given = ops.cast(sample_weight, "float32")
        if len(given.shape) < len(weights.shape):
            given = ops.expand_dims(given, -1)  # one weight for all tokens of a sample
        weights = weights * given
    return ops.where(labelled, labels, 0), weights


class Ratio(keras.metrics.Metric):
    """A sum over a sum, both over all batches."""

    def __init__(self, name: str, **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.total = self.add_variable(shape=(), initializer="zeros", name="total")
        self.count = self.add_variable(shape=(), initializer="zeros", name="count")

    def add(self, total: Any, count: Any) -> None:
        self.total.assign_add(ops.sum(ops.cast(total, "float32")))
        self.count.assign_add(ops.sum(ops.cast(count, "float32")))

    def result(self) -> Any:
        return ops.divide_no_nan(self.total, self.count)
