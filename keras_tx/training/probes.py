"""Classifiers on the features of a model that is not trained: a linear probe and k-shot classification."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_tx.errors import ConfigError, whole_number
from keras_tx.models.adapters.layer_selection import HEAD, select_whole


def linear_probe(model: Any) -> Any:
    """Freezes all layers below the head, and returns the model.

    Dropout below the head stays active in `fit`. The head is trained as usual:

        model = linear_probe(tx.from_checkpoint(path, head=tx.ClassifierHead(3)))
        model.compile(tx.AdamW(1e-2, weight_decay=0.0))

    Args:
        model: a model with a head, before `compile`.

    Returns:
        The same model.

    Raises:
        ConfigError: the model has no head, or no layer above its blocks.

    Example:

    >>> import keras_tx
    >>> model = linear_probe(keras_tx.vit("Mu/2", image_size=8, num_classes=3))
    >>> [weight.path for weight in model.trainable_weights]
    ['logits/kernel', 'logits/bias']
    """
    if getattr(model, "head", None) is None:
        raise ConfigError(f"Model {model.name!r} has no head to train. Pass head= or num_classes=.")
    _freeze_others(model, model.head_layers())
    if not model.trainable_weights:
        raise ConfigError(f"The head of model {model.name!r} has no weights of its own, because it is tied.")
    return model


def train_head(model: Any) -> None:
    """Freezes all layers but the head and the pooler, which is often new like the head."""
    _freeze_others(model, select_whole(model, HEAD))


def _freeze_others(model: Any, trained: list[Any]) -> None:
    for layer in model.layers:
        if layer.weights and layer not in trained:
            layer.trainable = False


def k_shot_accuracy(
    features: Any,
    labels: Any,
    test_features: Any,
    test_labels: Any,
    *,
    shots: int = 10,
    regularization: float = 1.0,
    seed: int = 0,
) -> float:
    """Computes the accuracy of a linear classifier of features, trained on a few samples per class.

    The classifier is regularized least squares with targets -1 and 1, in closed form, as in section 4.1 of
    Dosovitskiy et al. (2021). Features are standardized by the mean and the standard deviation of the
    training features, as in big_vision, and have a bias.

    Args:
        features: array (samples, width), from `model.predict` of a model with `head=None`.
        labels: class numbers (samples,).
        test_features: features of the test samples.
        test_labels: class numbers of the test samples.
        shots: training samples per class.
        regularization: factor of the squared weights.
        seed: seed of the choice of the samples.

    Returns:
        The fraction of test samples whose class is predicted correctly.

    Raises:
        ConfigError: a class has fewer samples than `shots`, or shapes do not match.

    Example:

    >>> import numpy as np
    >>> labels = np.arange(40) % 4
    >>> features = np.eye(4)[labels] + np.random.default_rng(0).normal(0, 0.1, (40, 4))
    >>> k_shot_accuracy(features, labels, features, labels, shots=5)
    1.0
    """
    features, labels = _checked(features, labels, "features")
    test_features, test_labels = _checked(test_features, test_labels, "test_features")
    classes, counts = np.unique(labels, return_counts=True)
    if counts.min() < whole_number("shots", shots):
        few = classes[counts.argmin()]
        raise ConfigError(f"Class {few} has {counts.min()} samples, fewer than shots={shots}.")
    if regularization < 0:
        raise ConfigError(f"regularization={regularization!r} is negative. Pass 0 or more.")
    random = np.random.default_rng(seed)
    rows = np.concatenate([random.permutation(np.flatnonzero(labels == c))[:shots] for c in classes])
    mean, std = features[rows].mean(0), features[rows].std(0) + 1e-5

    def standardized(x: np.ndarray) -> np.ndarray:
        return np.concatenate([(x - mean) / std, np.ones((len(x), 1))], axis=1)

    x, targets = standardized(features[rows]), np.where(labels[rows, None] == classes, 1.0, -1.0)
    weights = np.linalg.solve(x.T @ x + regularization * np.eye(x.shape[1]), x.T @ targets)
    predicted = classes[np.argmax(standardized(test_features) @ weights, axis=1)]
    return float(np.mean(predicted == test_labels))


def _checked(features: Any, labels: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(features, "float64"), np.asarray(labels)
    if x.ndim != 2 or y.shape != (len(x),):
        raise ConfigError(
            f"{name} has the shape {x.shape} with labels of shape {y.shape}, expected (samples, width) and "
            "(samples,)."
        )
    return x, y
