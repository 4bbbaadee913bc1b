"""Labels with their weights, and a metric that is the ratio of two sums."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx import contract


def labels_and_weights(y_true: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Returns integer labels and their weights; unlabelled positions have label 0 and weight 0."""
    labels = ops.cast(y_true, "int32")
    labelled = ops.not_equal(labels, contract.NO_LABEL)
    weights = ops.cast(labelled, "float32")
    if sample_weight is not None:
        factors = ops.cast(sample_weight, "float32")
        if len(factors.shape) < len(weights.shape):
            factors = ops.expand_dims(factors, -1)  # one weight for all tokens of a sample
        weights = weights * factors
    return ops.where(labelled, labels, 0), weights


class Ratio(keras.metrics.Metric):
    """The ratio of two sums over all batches."""

    def __init__(self, name: str, **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.total = self.add_variable(shape=(), initializer="zeros", name="total")
        self.count = self.add_variable(shape=(), initializer="zeros", name="count")

    def add(self, total: Any, count: Any) -> None:
        self.total.assign_add(ops.sum(ops.cast(total, "float32")))
        self.count.assign_add(ops.sum(ops.cast(count, "float32")))

    def result(self) -> Any:
        return ops.divide_no_nan(self.total, self.count)
