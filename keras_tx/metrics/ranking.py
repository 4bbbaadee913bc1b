"""Ranking metrics: Spearman correlation and nearest-neighbor accuracy."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx.errors import whole_number
from keras_tx.metrics.base import Ratio


@keras.saving.register_keras_serializable("keras_tx")
class Spearman(keras.metrics.Metric):
    """Spearman's rank correlation of labels and predictions; equal values share their mean rank.

    Ranks require all samples, so up to `capacity` samples are stored.

    Args:
        capacity: the largest number of samples; the result is NaN if there are more.
        name: name of the metric.

    Raises:
        ConfigError: `capacity` is below 1.

    Example:

    >>> import numpy as np
    >>> metric = Spearman()
    >>> metric.update_state(np.array([1.0, 2.0, 3.0]), np.array([[10.0], [20.0], [500.0]]))
    >>> round(float(metric.result()), 4)
    1.0
    """

    def __init__(self, capacity: int = 16384, name: str = "spearman", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.capacity = whole_number("capacity", capacity)
        self.labels = self.add_variable(shape=(self.capacity,), initializer="zeros", name="labels")
        self.predictions = self.add_variable(shape=(self.capacity,), initializer="zeros", name="predictions")
        self.seen = self.add_variable(shape=(), initializer="zeros", dtype="int32", name="seen")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        labels = ops.cast(ops.reshape(y_true, (-1,)), "float32")
        predictions = ops.cast(ops.reshape(y_pred, (-1,)), "float32")
        count = ops.shape(labels)[0]
        # Samples beyond the capacity overwrite earlier ones, and the result is NaN.
        positions = ops.mod(ops.arange(count, dtype="int32") + self.seen, self.capacity)[:, None]
        self.labels.assign(ops.scatter_update(self.labels, positions, labels))
        self.predictions.assign(ops.scatter_update(self.predictions, positions, predictions))
        self.seen.assign_add(ops.cast(count, "int32"))

    def result(self) -> Any:
        real = ops.arange(self.capacity, dtype="int32") < self.seen
        weights = ops.cast(real, "float32")
        count = ops.cast(self.seen, "float32")
        # JAX sorts and searches tensors, not variables.
        tensors = (ops.convert_to_tensor(self.labels), ops.convert_to_tensor(self.predictions))
        first, second = (weights * (_ranks(values, real) - (count + 1) / 2) for values in tensors)
        variances = ops.sum(first * first) * ops.sum(second * second)
        correlation = ops.divide_no_nan(ops.sum(first * second), ops.sqrt(variances))
        return ops.where(self.seen > self.capacity, float("nan"), correlation)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "capacity": self.capacity}


def _ranks(values: Any, real: Any) -> Any:
    """Ranks from 1. Unused positions (`real` is False) sort last and do not affect the other ranks."""
    ordered = ops.sort(ops.where(real, values, float("inf")))
    below = ops.searchsorted(ordered, values, side="left")
    up_to = ops.searchsorted(ordered, values, side="right")
    return (ops.cast(below, "float32") + ops.cast(up_to, "float32") + 1) / 2


@keras.saving.register_keras_serializable("keras_tx")
class NearestNeighborAccuracy(Ratio):
    """The fraction of vectors whose nearest neighbor in the batch, by cosine, has the same label.

    Vectors whose label occurs once in the batch are ignored.

    Args:
        name: name of the metric.

    Example:

    >>> import numpy as np
    >>> metric = NearestNeighborAccuracy()
    >>> metric.update_state(np.array([1, 1, 2]), np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]))
    >>> float(metric.result())
    1.0
    """

    def __init__(self, name: str = "nearest_neighbor_accuracy", **kwargs: Any):
        super().__init__(name, **kwargs)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        labels = ops.reshape(y_true, (-1,))
        vectors = ops.normalize(ops.cast(y_pred, "float32"), axis=-1)
        own = ops.eye(ops.shape(labels)[0], dtype="float32")
        nearest = ops.argmax(ops.matmul(vectors, ops.transpose(vectors)) - 3 * own, axis=-1)
        same_label = ops.equal(labels[:, None], labels[None, :])
        paired = ops.cast(ops.sum(ops.cast(same_label, "float32") - own, axis=-1) > 0, "float32")
        right = ops.cast(ops.equal(ops.take(labels, nearest, axis=0), labels), "float32")
        self.add(right * paired, paired)
