"""Linear probes and k-shot classification of features."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.training import k_shot_accuracy, linear_probe
from tests.drawing import draw


def test_a_probe_changes_the_head_alone():
    model = linear_probe(keras_tx.vit("Mu/2", image_size=8, num_classes=3, stem="convolutions"))
    model.compile(keras_tx.AdamW(1e-2))
    before = [keras.ops.convert_to_numpy(weight).copy() for weight in model.weights]
    model.fit(draw(6, 8, 8, 3).clip(-1, 1), np.arange(6) % 3, verbose=0)
    changed = {
        weight.path
        for weight, value in zip(model.weights, before, strict=True)
        if not np.array_equal(keras.ops.convert_to_numpy(weight), value)
    }
    assert changed == {"logits/kernel", "logits/bias"}


def test_k_shot_equals_ridge_regression():
    linear_model = pytest.importorskip("sklearn.linear_model")
    random = np.random.default_rng(0)
    labels, test_labels = random.integers(0, 4, 60), random.integers(0, 4, 500)
    centers = random.normal(0, 1, (4, 9))
    features, test_features = (centers[y] + random.normal(0, 1.5, (len(y), 9)) for y in (labels, test_labels))
    shots = int(np.bincount(labels).min())
    accuracy = k_shot_accuracy(
        features, labels, test_features, test_labels, shots=shots, regularization=3.0, seed=5
    )
    rows = np.random.default_rng(5)
    rows = np.concatenate([rows.permutation(np.flatnonzero(labels == c))[:shots] for c in range(4)])
    mean, std = features[rows].mean(0), features[rows].std(0) + 1e-5
    x, test_x = (np.c_[(f - mean) / std, np.ones(len(f))] for f in (features, test_features))
    ridge = linear_model.Ridge(alpha=3.0, fit_intercept=False)
    ridge.fit(x[rows], 2.0 * np.eye(4)[labels[rows]] - 1)
    assert accuracy == np.mean(ridge.predict(test_x).argmax(1) == test_labels)
    assert 0.4 < accuracy < 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linear_probe(keras_tx.vit("Mu/2", image_size=8)), "'vit' has no head"),
        (lambda: k_shot_accuracy(draw(4, 2), [0, 0, 0, 1], draw(4, 2), [0] * 4, shots=2), "Class 1 has 1"),
        (lambda: k_shot_accuracy(draw(4, 2, 2), [0] * 4, draw(4, 2), [0] * 4), r"shape \(4, 2, 2\)"),
        (
            lambda: k_shot_accuracy(draw(4, 2), [0] * 4, draw(4, 2), [0] * 4, shots=1, regularization=-1),
            "regularization=-1",
        ),
    ],
)
def test_errors(call, message: str):
    with pytest.raises(ConfigError, match=message):
        call()
