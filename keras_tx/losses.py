"""Losses on logits: every head gives logits, so a loss that expects probabilities trains wrong in silence."""

from __future__ import annotations

from typing import Any

import keras

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
    function = _function(loss)
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


def _named(name: str, kind: str) -> Any:
    module = getattr(keras, kind)
    if kind == "metrics" and name in AS_THE_DATA_SAYS:
        raise ConfigError(
            f"The metric {name!r} is taken on probabilities, but the model gives logits. Say which one: "
            "'sparse_categorical_crossentropy' or 'categorical_crossentropy'."
        )
    try:
        function = _function(module.get(name))
    except ValueError:
        return name  # "accuracy" is none of the module's, and for any other Keras says what it knows
    if function in PROBABILITIES_ONLY:
        _refuse(function)
    made = getattr(module, ON_LOGITS.get(function, ""), None)
    return name if made is None else made(from_logits=True)


def _function(loss: Any) -> str:
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
