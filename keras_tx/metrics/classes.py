"""Metrics of classes, from the counts of each true and predicted class: F1 and Matthews correlation."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx.errors import ConfigError, nearest, whole_number
from keras_tx.metrics.ratio import labels_and_weights

AVERAGES = ("binary", "micro", "macro")


class _Counts(keras.metrics.Metric):
    """Counts how often each class was taken for each; logits (batch, ..., classes), labels (batch, ...)."""

    def __init__(self, classes: int, name: str, **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.classes = whole_number("classes", classes)
        self.counts = self.add_variable(  # (true, predicted)
            shape=(self.classes, self.classes), initializer="zeros", name="counts"
        )

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        if y_pred.shape[-1] != self.classes:
            raise ConfigError(
                f"Metric {self.name!r} was made for {self.classes} classes, but the model has "
                f"{y_pred.shape[-1]}."
            )
        predicted = ops.reshape(ops.argmax(y_pred, axis=-1), (-1,))
        if len(y_true.shape) == len(y_pred.shape):  # (batch, 1), as some data sets have labels
            y_true = ops.squeeze(y_true, -1)
        labels, weights = labels_and_weights(y_true, sample_weight)
        labels, weights = ops.reshape(labels, (-1,)), ops.reshape(weights, (-1,))
        true = ops.one_hot(labels, self.classes, dtype="float32") * weights[:, None]
        counted = ops.matmul(ops.transpose(true), ops.one_hot(predicted, self.classes, dtype="float32"))
        self.counts.assign_add(counted)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "classes": self.classes}


@keras.saving.register_keras_serializable("keras_tx")
class F1(_Counts):
    """The harmonic mean of precision and recall, on logits.

    >>> import numpy as np
    >>> metric = F1()
    >>> metric.update_state(np.array([1, 1, 0, 0]), np.eye(2)[[1, 0, 1, 0]])
    >>> float(metric.result())
    0.5

    Args:
        classes: number of classes.
        average: "binary": of class 1 of two. "macro": the mean over the classes that occur. "micro": over
            all decisions together.
    """

    def __init__(self, classes: int = 2, average: str = "binary", name: str = "f1", **kwargs: Any):
        if average not in AVERAGES:
            raise ConfigError(f"average={average!r} is unknown. {nearest(str(average), AVERAGES)}")
        if average == "binary" and classes != 2:
            raise ConfigError(f"average='binary' is for 2 classes, not {classes}. Use 'macro' or 'micro'.")
        super().__init__(classes, name, **kwargs)
        self.average = average

    def result(self) -> Any:
        right = ops.diagonal(self.counts)
        predicted_and_true = ops.sum(self.counts, axis=0) + ops.sum(self.counts, axis=1)
        if self.average == "micro":
            return ops.divide_no_nan(2 * ops.sum(right), ops.sum(predicted_and_true))
        each = ops.divide_no_nan(2 * right, predicted_and_true)
        if self.average == "binary":
            return each[1]
        occur = ops.sum(ops.cast(predicted_and_true > 0, "float32"))
        return ops.divide_no_nan(ops.sum(each), occur)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "average": self.average}


@keras.saving.register_keras_serializable("keras_tx")
class Matthews(_Counts):
    """Matthews correlation of labels and decisions, for two classes or more; 0 is chance.

    >>> import numpy as np
    >>> metric = Matthews()
    >>> metric.update_state(np.array([1, 0]), np.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> float(metric.result())
    1.0
    """

    def __init__(self, classes: int = 2, name: str = "matthews", **kwargs: Any):
        super().__init__(classes, name, **kwargs)

    def result(self) -> Any:
        # Shares rather than counts, whose squares float32 would round.
        shares = ops.divide_no_nan(self.counts, ops.sum(self.counts))
        true, predicted = ops.sum(shares, axis=1), ops.sum(shares, axis=0)
        covariance = ops.sum(ops.diagonal(shares)) - ops.sum(true * predicted)
        variances = (1 - ops.sum(true * true)) * (1 - ops.sum(predicted * predicted))
        return ops.divide_no_nan(covariance, ops.sqrt(ops.maximum(variances, 0.0)))
