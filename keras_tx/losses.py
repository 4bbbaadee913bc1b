"""Losses on logits, and the check that a loss or metric of Keras expects logits, as all heads return."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx import contract
from keras_tx.errors import ConfigError

ON_LOGITS = {  # classes with from_logits=, by the name of their function
    "binary_crossentropy": "BinaryCrossentropy",
    "binary_focal_crossentropy": "BinaryFocalCrossentropy",
    "categorical_crossentropy": "CategoricalCrossentropy",
    "categorical_focal_crossentropy": "CategoricalFocalCrossentropy",
    "sparse_categorical_crossentropy": "SparseCategoricalCrossentropy",
    "AUC": "AUC",
}
PROBABILITIES_ONLY = frozenset(
    "categorical_generalized_cross_entropy dice kl_divergence poisson tversky binary_accuracy BinaryAccuracy "
    "BinaryIoU FalseNegatives FalsePositives Precision PrecisionAtRecall Recall RecallAtPrecision "
    "SensitivityAtSpecificity SpecificityAtSensitivity TrueNegatives TruePositives".split()
)
AMBIGUOUS = ("crossentropy", "ce")  # Keras chooses the kind by the labels, and expects probabilities


def on_logits(loss: Any, kind: str = "losses") -> Any:
    """Converts losses or metrics so that they are computed from logits.

    The name of a cross-entropy becomes an object with `from_logits=True`. Losses for which it makes no
    difference, such as mean squared error, and functions of the user are returned unchanged.

    Args:
        loss: a loss or metric, its name, or a list, tuple or dict of these.
        kind: "losses" or "metrics", the module of Keras that contains the names.

    Returns:
        `loss`, or a list or dict like it.

    Raises:
        ConfigError: a loss or metric expects probabilities.
    """
    if isinstance(loss, dict):
        return {key: on_logits(value, kind) for key, value in loss.items()}
    if isinstance(loss, (list, tuple)):
        return [on_logits(value, kind) for value in loss]
    if isinstance(loss, str):
        return _named(loss, kind)
    function = function_name(loss)
    known = getattr(keras.losses, function, getattr(keras.metrics, function, None))
    if not isinstance(loss, keras.losses.Loss | keras.metrics.Metric) and loss is not known:
        return loss
    if function in PROBABILITIES_ONLY:
        _refuse(function)
    if function in ON_LOGITS and not _from_logits(loss):
        raise ConfigError(
            f"{type(loss).__name__} {function!r} expects probabilities, but the model outputs logits. Pass "
            f"{ON_LOGITS[function]}(from_logits=True), or the name {function!r}."
        )
    return loss


def refuse_categorical_loss(loss: Any) -> None:
    """Raises a ConfigError for a categorical loss of a multi-label head, whose classes are independent."""
    if isinstance(loss, dict | list | tuple):
        for value in loss.values() if isinstance(loss, dict) else loss:
            refuse_categorical_loss(value)
        return
    name = loss if isinstance(loss, str) else function_name(loss)
    if "categorical" in name.lower():
        raise ConfigError(
            f"The loss {name!r} expects one class per sample, but MultiLabelHead predicts any number. Pass "
            "'binary_crossentropy' or no loss, or use ClassifierHead for one class per sample."
        )


def _named(name: str, kind: str) -> Any:
    module = getattr(keras, kind)
    if kind == "metrics" and name in AMBIGUOUS:
        raise ConfigError(
            f"The metric {name!r} expects probabilities, but the model outputs logits. Pass "
            "'sparse_categorical_crossentropy' or 'categorical_crossentropy'."
        )
    try:
        function = function_name(module.get(name))
    except ValueError:
        return name  # such as "accuracy"; Keras raises an error for unknown names
    if function in PROBABILITIES_ONLY:
        _refuse(function)
    cls = getattr(module, ON_LOGITS.get(function, ""), None)
    return name if cls is None else cls(from_logits=True)


def function_name(loss: Any) -> str:
    """The name of the function that computes a loss or metric, or else of its class."""
    wrapped = getattr(loss, "fn", getattr(loss, "_fn", None))
    return getattr(wrapped or loss, "__name__", type(loss).__name__)


def _from_logits(loss: Any) -> bool:
    arguments = getattr(loss, "_fn_kwargs", None) or {}
    return bool(
        arguments.get("from_logits", getattr(loss, "_from_logits", getattr(loss, "from_logits", False)))
    )


def _refuse(name: str) -> None:
    raise ConfigError(
        f"{name!r} expects probabilities, but the model outputs logits. Use a cross-entropy or "
        "'accuracy', or write a function that applies softmax to y_pred first."
    )


@keras.saving.register_keras_serializable("keras_tx")
class TokenCrossentropy(keras.losses.Loss):
    """Cross-entropy per token from logits, averaged over the labelled tokens.

    Tokens with the label -100 or sample weight 0, such as padding, are ignored, so the loss does not depend
    on the amount of padding in a batch.

    Args:
        label_smoothing: the fraction of the target that is spread evenly over all classes.
        name: name of the loss.

    Raises:
        ConfigError: `label_smoothing` is out of range.

    Example:

    >>> import numpy as np
    >>> logits = np.log([[[0.5, 0.5], [0.1, 0.9]]]).astype("float32")
    >>> round(float(TokenCrossentropy()(np.array([[0, -100]]), logits)), 3)
    0.693
    """

    def __init__(self, label_smoothing: float = 0.0, name: str = "token_crossentropy", **kwargs: Any):
        kwargs.setdefault("reduction", "sum_over_batch_size")
        super().__init__(name=name, **kwargs)
        if not 0 <= label_smoothing < 1:
            raise ConfigError(
                f"label_smoothing={label_smoothing!r} is out of range. Pass 0 or more, and less than 1."
            )
        self.label_smoothing = label_smoothing

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        # Keras's reduction divides by the number of all elements, and JAX drops the mask that corrects it.
        losses, weights = self.call(y_true, y_pred), self._weights(y_true, sample_weight)
        if self.reduction in (None, "none"):
            return losses * weights
        total = ops.sum(losses * weights)
        return total if self.reduction == "sum" else ops.divide_no_nan(total, ops.sum(weights))

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The loss of each token, shape (batch, sequence); 0 for tokens without a label."""
        labels, logits = ops.cast(y_true, "int32"), ops.cast(y_pred, "float32")
        if len(labels.shape) != len(logits.shape) - 1:
            raise ConfigError(
                f"TokenCrossentropy got labels of shape {tuple(labels.shape)} for logits of shape "
                f"{tuple(logits.shape)}. Pass one integer label per token."
            )
        labelled = ops.not_equal(labels, contract.NO_LABEL)
        losses = ops.sparse_categorical_crossentropy(ops.where(labelled, labels, 0), logits, from_logits=True)
        if self.label_smoothing:
            even = ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1)
            losses = (1 - self.label_smoothing) * losses + self.label_smoothing * even
        return ops.where(labelled, losses, 0.0)

    def _weights(self, y_true: Any, sample_weight: Any) -> Any:
        weights = ops.cast(ops.not_equal(ops.cast(y_true, "int32"), contract.NO_LABEL), "float32")
        if sample_weight is None:
            return weights
        factors = ops.cast(sample_weight, "float32")
        if len(factors.shape) < len(weights.shape):
            factors = ops.expand_dims(factors, -1)  # one weight for all tokens of a sample
        return weights * factors

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable("keras_tx")
class ContrastiveLoss(keras.losses.Loss):
    """Supervised contrastive loss (Khosla et al., 2020) of the cosines of the vectors in a batch.

    The loss is small when vectors with the same label are close and others are far apart. If each label
    occurs twice, it is the in-batch negatives loss of sentence encoders. Vectors whose label occurs once in
    the batch are ignored.

    Args:
        temperature: divisor of the cosines; lower values give more weight to hard negatives.
        name: name of the loss.

    Raises:
        ConfigError: `temperature` is 0 or negative.

    Example:

    >>> import numpy as np
    >>> vectors = np.eye(4, dtype="float32")[[0, 0, 1, 1]]
    >>> loss = ContrastiveLoss()
    >>> float(loss(np.array([5, 5, 6, 6]), vectors)) < 1e-6
    True
    >>> float(loss(np.array([5, 6, 5, 6]), vectors)) > 1
    True
    """

    def __init__(self, temperature: float = 0.05, name: str = "contrastive_loss", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        if not temperature > 0:
            raise ConfigError(f"temperature={temperature!r} is out of range. Pass a number above 0.")
        self.temperature = temperature

    def call(self, y_true: Any, y_pred: Any) -> Any:
        labels = ops.reshape(y_true, (-1,))
        count = ops.shape(labels)[0]
        vectors = ops.normalize(ops.cast(y_pred, "float32"), axis=-1)
        others = 1.0 - ops.eye(count, dtype="float32")
        scores = ops.matmul(vectors, ops.transpose(vectors)) / self.temperature - 1e9 * (1.0 - others)
        log_shares = scores - ops.logsumexp(scores, axis=-1, keepdims=True)
        same_label = ops.cast(ops.equal(labels[:, None], labels[None, :]), "float32") * others
        partners = ops.sum(same_label, axis=-1)
        losses = -ops.divide_no_nan(ops.sum(log_shares * same_label, axis=-1), partners)
        # Keras averages over all vectors; only those with a partner count.
        paired = ops.sum(ops.cast(partners > 0, "float32"))
        return losses * ops.divide_no_nan(ops.cast(count, "float32"), paired)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "temperature": self.temperature}
