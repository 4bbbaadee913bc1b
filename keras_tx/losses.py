"""Losses on logits: every head gives logits, so a loss that expects probabilities trains wrong in silence."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx import contract
from keras_tx.errors import ConfigError

ON_LOGITS = {  # by the name of the function that computes it
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
AS_THE_DATA_SAYS = ("crossentropy", "ce")  # Keras chooses a cross-entropy by the labels, on probabilities


def on_logits(loss: Any, kind: str = "losses") -> Any:
    """`loss` (or, with kind="metrics", a metric) such that it is right for logits.

    A name becomes the object that takes logits; an object or function that takes probabilities is
    refused; anything that does not care (mean squared error, a function of the user's) stays. Lists,
    tuples and dicts are gone through.
    """
    if isinstance(loss, dict):
        return {key: on_logits(value, kind) for key, value in loss.items()}
    if isinstance(loss, (list, tuple)):
        return [on_logits(value, kind) for value in loss]
    if isinstance(loss, str):
        return _named(loss, kind)
    function = function_name(loss)
    known = getattr(keras.losses, function, getattr(keras.metrics, function, None))
    ours_to_judge = isinstance(loss, keras.losses.Loss | keras.metrics.Metric) or loss is known
    if not ours_to_judge:
        return loss
    if function in PROBABILITIES_ONLY:
        _refuse(function)
    if function in ON_LOGITS and not _from_logits(loss):
        raise ConfigError(
            f"{type(loss).__name__} {function!r} expects probabilities, but the model gives logits and would "
            f"train or measure wrong without an error. Pass {ON_LOGITS[function]}(from_logits=True), or the "
            f"plain name {function!r}."
        )
    return loss


def refuse_categorical_loss(loss: Any) -> None:
    """For a head whose classes are each a question of its own: no cross-entropy by which one of them wins."""
    if isinstance(loss, dict | list | tuple):
        for value in loss.values() if isinstance(loss, dict) else loss:
            refuse_categorical_loss(value)
        return
    name = loss if isinstance(loss, str) else function_name(loss)
    if "categorical" in name.lower():
        raise ConfigError(
            f"The loss {name!r} is for classes of which one is right; a MultiLabelHead gives any number. "
            "Use 'binary_crossentropy', or leave the loss out; for one label of all, a ClassifierHead."
        )


def _named(name: str, kind: str) -> Any:
    module = getattr(keras, kind)
    if kind == "metrics" and name in AS_THE_DATA_SAYS:
        raise ConfigError(
            f"The metric {name!r} is taken on probabilities, but the model gives logits. Say which one: "
            "'sparse_categorical_crossentropy' or 'categorical_crossentropy'."
        )
    try:
        function = function_name(module.get(name))
    except ValueError:
        return name  # "accuracy" is none of the module's, and for any other Keras says what it knows
    if function in PROBABILITIES_ONLY:
        _refuse(function)
    made = getattr(module, ON_LOGITS.get(function, ""), None)
    return name if made is None else made(from_logits=True)


def function_name(loss: Any) -> str:
    """The name of the function that computes a loss or metric; of its class, where there is none."""
    wrapped = getattr(loss, "fn", getattr(loss, "_fn", None))
    return getattr(wrapped or loss, "__name__", type(loss).__name__)


def _from_logits(loss: Any) -> bool:
    arguments = getattr(loss, "_fn_kwargs", None) or {}
    return bool(
        arguments.get("from_logits", getattr(loss, "_from_logits", getattr(loss, "from_logits", False)))
    )


def _refuse(name: str) -> None:
    raise ConfigError(
        f"{name!r} is defined on probabilities, but the model gives logits. Use a cross-entropy or "
        "'accuracy', or a function of your own that applies softmax to y_pred first."
    )


@keras.saving.register_keras_serializable("keras_tx")
class TokenCrossentropy(keras.losses.Loss):
    """Cross-entropy of tokens: masked, next, or labelled ones. Its mean is over those that have a label.

    Padding, and whatever else is not to be learned, has the label -100 or the sample weight 0; neither
    enters the mean, so that the loss does not depend on how much padding a batch has.

    >>> import numpy as np
    >>> logits = np.log([[[0.5, 0.5], [0.1, 0.9]]]).astype("float32")
    >>> round(float(TokenCrossentropy()(np.array([[0, -100]]), logits)), 3)
    0.693

    Args:
        label_smoothing: share of the target that is spread evenly over all classes.
    """

    def __init__(self, label_smoothing: float = 0.0, name: str = "token_crossentropy", **kwargs: Any):
        kwargs.setdefault("reduction", "sum_over_batch_size")
        super().__init__(name=name, **kwargs)
        if not 0 <= label_smoothing < 1:
            raise ConfigError(
                f"label_smoothing={label_smoothing!r}: expected from 0 up to, not including, 1."
            )
        self.label_smoothing = label_smoothing

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        # Keras's reduction divides by all the elements, and JAX loses the mask that tells it otherwise.
        losses, weights = self.call(y_true, y_pred), self._weights(y_true, sample_weight)
        if self.reduction in (None, "none"):
            return losses * weights
        total = ops.sum(losses * weights)
        return total if self.reduction == "sum" else ops.divide_no_nan(total, ops.sum(weights))

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """The loss of each token (batch, sequence), 0 where it has no label."""
        labels, logits = ops.cast(y_true, "int32"), ops.cast(y_pred, "float32")
        if len(labels.shape) != len(logits.shape) - 1:
            raise ConfigError(
                f"TokenCrossentropy got labels of shape {tuple(labels.shape)} for logits of shape "
                f"{tuple(logits.shape)}: one whole number for each token is expected."
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
        given = ops.cast(sample_weight, "float32")
        if len(given.shape) < len(weights.shape):
            given = ops.expand_dims(given, -1)  # one weight for all tokens of a sample
        return weights * given

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable("keras_tx")
class ContrastiveLoss(keras.losses.Loss):
    """Draws the vectors of one label together and those of others apart, within a batch.

    The supervised contrastive loss of Khosla et al. on cosines; where each label occurs twice, in-batch
    negatives as sentence encoders are trained with. A vector alone in its label has no loss.

    >>> import numpy as np
    >>> vectors = np.eye(4, dtype="float32")[[0, 0, 1, 1]]
    >>> loss = ContrastiveLoss()
    >>> float(loss(np.array([5, 5, 6, 6]), vectors)) < 1e-6
    True
    >>> float(loss(np.array([5, 6, 5, 6]), vectors)) > 1
    True

    Args:
        temperature: what cosines are divided by; smaller, and near misses weigh more.
    """

    def __init__(self, temperature: float = 0.05, name: str = "contrastive_loss", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        if not temperature > 0:
            raise ConfigError(f"temperature={temperature!r}: expected a number above 0.")
        self.temperature = temperature

    def call(self, y_true: Any, y_pred: Any) -> Any:
        labels = ops.reshape(y_true, (-1,))
        count = ops.shape(labels)[0]
        vectors = ops.normalize(ops.cast(y_pred, "float32"), axis=-1)
        others = 1.0 - ops.eye(count, dtype="float32")
        scores = ops.matmul(vectors, ops.transpose(vectors)) / self.temperature - 1e9 * (1.0 - others)
        log_shares = scores - ops.logsumexp(scores, axis=-1, keepdims=True)
        alike = ops.cast(ops.equal(labels[:, None], labels[None, :]), "float32") * others
        partners = ops.sum(alike, axis=-1)
        losses = -ops.divide_no_nan(ops.sum(log_shares * alike, axis=-1), partners)
        # The mean shall be over those that have a partner.
        paired = ops.sum(ops.cast(partners > 0, "float32"))
        return losses * ops.divide_no_nan(ops.cast(count, "float32"), paired)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "temperature": self.temperature}
