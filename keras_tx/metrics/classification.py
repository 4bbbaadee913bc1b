"""Classification metrics: F1, Matthews correlation, and accuracy with several labels per sample."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx.errors import ConfigError, nearest, whole_number
from keras_tx.metrics.base import Ratio, labels_and_weights

AVERAGES = ("binary", "micro", "macro")


class _Counts(keras.metrics.Metric):
    """A confusion matrix of logits (batch, ..., classes) and labels (batch, ...)."""

    def __init__(self, num_classes: int, name: str, **kwargs: Any):
        super().__init__(name=name, **kwargs)
        self.num_classes = whole_number("num_classes", num_classes)
        self.counts = self.add_variable(  # (true, predicted)
            shape=(self.num_classes, self.num_classes), initializer="zeros", name="counts"
        )

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        if y_pred.shape[-1] != self.num_classes:
            raise ConfigError(
                f"Metric {self.name!r} has num_classes={self.num_classes}, but the model has "
                f"{y_pred.shape[-1]} classes. Pass num_classes={y_pred.shape[-1]}."
            )
        predicted = ops.reshape(ops.argmax(y_pred, axis=-1), (-1,))
        if len(y_true.shape) == len(y_pred.shape):  # labels of shape (batch, 1)
            y_true = ops.squeeze(y_true, -1)
        labels, weights = labels_and_weights(y_true, sample_weight)
        labels, weights = ops.reshape(labels, (-1,)), ops.reshape(weights, (-1,))
        true = ops.one_hot(labels, self.num_classes, dtype="float32") * weights[:, None]
        counts = ops.matmul(ops.transpose(true), ops.one_hot(predicted, self.num_classes, dtype="float32"))
        self.counts.assign_add(counts)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_classes": self.num_classes}


@keras.saving.register_keras_serializable("keras_tx")
class ClassAccuracy(Ratio):
    """The fraction of samples whose class is predicted correctly, computed from logits.

    Labels are integers (batch,) or (batch, 1), or class probabilities (batch, classes), as MixUp and CutMix
    return; the most probable class is then the expected one.

    Args:
        name: name of the metric.

    Example:

    >>> import numpy as np
    >>> metric = ClassAccuracy()
    >>> metric.update_state(np.array([1, 0]), np.array([[0.0, 1.0], [0.0, 1.0]]))
    >>> metric.update_state(np.array([[0.3, 0.7]]), np.array([[0.0, 1.0]]))
    >>> round(float(metric.result()), 3)
    0.667
    """

    def __init__(self, name: str = "accuracy", **kwargs: Any):
        super().__init__(name, **kwargs)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        labels = ops.convert_to_tensor(y_true)
        classes = labels.shape[-1] if len(labels.shape) == 2 else 1
        if classes is None:  # of tf.data; as in ClassCrossentropy, class numbers are integers
            classes = y_pred.shape[-1] if "float" in keras.backend.standardize_dtype(labels.dtype) else 1
        if classes == y_pred.shape[-1]:
            labels = ops.argmax(labels, axis=-1)
        if sample_weight is not None:
            sample_weight = ops.reshape(sample_weight, (-1,))
        labels, weights = labels_and_weights(ops.reshape(labels, (-1,)), sample_weight)
        correct = ops.cast(ops.equal(labels, ops.cast(ops.argmax(y_pred, axis=-1), "int32")), "float32")
        self.add(correct * weights, weights)


@keras.saving.register_keras_serializable("keras_tx")
class F1(_Counts):
    """F1 score: the harmonic mean of precision and recall, computed from logits.

    Args:
        num_classes: number of classes.
        average: "binary" computes the score of class 1 of two. "macro" is the mean of the scores of the
            classes that occur in labels or predictions. "micro" counts the predictions of all classes
            together.
        name: name of the metric.

    Raises:
        ConfigError: `average` is unknown, or "binary" with more than two classes.

    Example:

    >>> import numpy as np
    >>> metric = F1()
    >>> metric.update_state(np.array([1, 1, 0, 0]), np.eye(2)[[1, 0, 1, 0]])
    >>> float(metric.result())
    0.5
    """

    def __init__(self, num_classes: int = 2, average: str = "binary", name: str = "f1", **kwargs: Any):
        if average not in AVERAGES:
            raise ConfigError(f"average={average!r} is unknown. {nearest(str(average), AVERAGES)}")
        if average == "binary" and num_classes != 2:
            raise ConfigError(
                f"average='binary' requires num_classes=2, not {num_classes}. Pass 'macro' or 'micro'."
            )
        super().__init__(num_classes, name, **kwargs)
        self.average = average

    def result(self) -> Any:
        correct = ops.diagonal(self.counts)
        predicted_and_true = ops.sum(self.counts, axis=0) + ops.sum(self.counts, axis=1)
        if self.average == "micro":
            return ops.divide_no_nan(2 * ops.sum(correct), ops.sum(predicted_and_true))
        scores = ops.divide_no_nan(2 * correct, predicted_and_true)
        if self.average == "binary":
            return scores[1]
        occurring = ops.sum(ops.cast(predicted_and_true > 0, "float32"))
        return ops.divide_no_nan(ops.sum(scores), occurring)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "average": self.average}


@keras.saving.register_keras_serializable("keras_tx")
class Matthews(_Counts):
    """Matthews correlation coefficient of two or more classes, computed from logits.

    1 is a perfect prediction, 0 is chance level.

    Args:
        num_classes: number of classes.
        name: name of the metric.

    Example:

    >>> import numpy as np
    >>> metric = Matthews()
    >>> metric.update_state(np.array([1, 0]), np.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> float(metric.result())
    1.0
    """

    def __init__(self, num_classes: int = 2, name: str = "matthews", **kwargs: Any):
        super().__init__(num_classes, name, **kwargs)

    def result(self) -> Any:
        # Shares instead of counts: float32 rounds the squares of large counts.
        shares = ops.divide_no_nan(self.counts, ops.sum(self.counts))
        true, predicted = ops.sum(shares, axis=1), ops.sum(shares, axis=0)
        covariance = ops.sum(ops.diagonal(shares)) - ops.sum(true * predicted)
        variances = (1 - ops.sum(true * true)) * (1 - ops.sum(predicted * predicted))
        return ops.divide_no_nan(covariance, ops.sqrt(ops.maximum(variances, 0.0)))


@keras.saving.register_keras_serializable("keras_tx")
class MultiLabelF1(keras.metrics.Metric):
    """F1 score of multi-label classification: targets 0 or 1 and logits, both of shape (batch, classes).

    A class is predicted where its logit is above 0, which is a probability above 0.5.

    Args:
        num_classes: number of classes.
        average: "micro" counts the predictions of all classes together. "macro" is the mean of the scores
            of all classes; a class that is neither labelled nor predicted scores 0.
        name: name of the metric.

    Raises:
        ConfigError: `average` is unknown.

    Example:

    >>> import numpy as np
    >>> metric = MultiLabelF1(3)
    >>> metric.update_state(np.array([[1, 1, 0]]), np.array([[2.0, -1.0, -3.0]]))
    >>> round(float(metric.result()), 3)
    0.667
    """

    def __init__(self, num_classes: int, average: str = "micro", name: str = "f1", **kwargs: Any):
        if average not in AVERAGES[1:]:
            raise ConfigError(f"average={average!r} is unknown. {nearest(str(average), AVERAGES[1:])}")
        super().__init__(name=name, **kwargs)
        self.num_classes, self.average = whole_number("num_classes", num_classes), average
        self.right, self.either = (
            self.add_variable(shape=(self.num_classes,), initializer="zeros", name=name)
            for name in ("right", "either")
        )

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        if not all(_is_compatible(x.shape, self.num_classes) for x in (y_true, y_pred)):
            raise ConfigError(
                f"Metric {self.name!r} expects targets and logits of shape (batch, {self.num_classes}), but "
                f"the targets have shape {y_true.shape} and the logits {y_pred.shape}."
            )
        true, predicted = ops.cast(y_true, "float32"), ops.cast(y_pred > 0, "float32")
        right, either = true * predicted, true + predicted
        if sample_weight is not None:
            weights = ops.cast(sample_weight, "float32")
            weights = weights if len(weights.shape) > 1 else weights[:, None]
            right, either = right * weights, either * weights
        self.right.assign_add(ops.sum(right, axis=0))
        self.either.assign_add(ops.sum(either, axis=0))

    def result(self) -> Any:
        right, either = self.right, self.either
        if self.average == "micro":
            return ops.divide_no_nan(2 * ops.sum(right), ops.sum(either))
        return ops.mean(ops.divide_no_nan(2 * ops.convert_to_tensor(right), ops.convert_to_tensor(either)))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "num_classes": self.num_classes, "average": self.average}


@keras.saving.register_keras_serializable("keras_tx")
class MultiLabelAccuracy(Ratio):
    """The fraction of correct predictions of multi-label classification, computed from logits.

    Targets are 0 or 1; targets and logits have the shape (batch, classes).

    Args:
        name: name of the metric.

    Example:

    >>> import numpy as np
    >>> metric = MultiLabelAccuracy()
    >>> metric.update_state(np.array([[1, 1, 0, 0]]), np.array([[2.0, -1.0, -3.0, -1.0]]))
    >>> float(metric.result())
    0.75
    """

    def __init__(self, name: str = "accuracy", **kwargs: Any):
        super().__init__(name=name, **kwargs)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        right = ops.cast(ops.equal(ops.cast(y_true, "float32") > 0.5, y_pred > 0), "float32")
        weights = ops.ones_like(right)
        if sample_weight is not None:
            factors = ops.cast(sample_weight, "float32")
            weights = weights * (factors if len(factors.shape) > 1 else factors[:, None])
        self.add(right * weights, weights)


def _is_compatible(shape: Any, classes: int) -> bool:
    """Whether a shape, which may be partly unknown, can be (batch, classes)."""
    if getattr(shape, "rank", 2) is None:
        return True
    return len(shape) == 2 and shape[-1] in (None, classes)
