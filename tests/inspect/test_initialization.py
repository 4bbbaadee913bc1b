"""Entropy and gradients of attention with and without 1 / sqrt(d)."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.inspect.initialization import head_width_statistics, model_statistics
from tests.drawing import draw, redraw
from tests.tolerances import assert_close


def test_without_the_factor_entropy_falls_and_gradients_vanish():
    widths = (16, 128, 1024)
    scaled, plain = (head_width_statistics(widths, scaled=scaled, batch=2) for scaled in (True, False))
    assert scaled.layers == list(widths)
    assert np.ptp(scaled.entropy) < 0.3  # it does not depend on the width
    assert (plain.entropy < scaled.entropy).all()
    assert plain.entropy[0] > 5 * plain.entropy[-1]
    assert scaled.median_gradient.max() < 1.5 * scaled.median_gradient.min()
    assert plain.median_gradient[-1] < 1e-2 * scaled.median_gradient[-1]


def test_entropy_is_that_of_normal_scores():
    """Queries and keys of variance 1 have scores of variance 1 with the factor, and of variance d without."""
    computed = [head_width_statistics((64,), scaled=scaled, batch=8, tokens=32) for scaled in (True, False)]
    rng = np.random.default_rng(0)
    for statistics, variance in zip(computed, (1, 64), strict=True):
        scores = rng.standard_normal((5000, 32)) * np.sqrt(variance)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        expected = -(weights * np.log(weights + 1e-300)).sum(axis=1).mean()
        assert_close(statistics.entropy, np.array([expected]), 0.1)  # 256 queries


def test_gradients_equal_those_of_scores_by_differences():
    """The gradient with respect to the scores, through a bias that is added to them."""
    layer = keras_tx.layers.MultiHeadAttention(1, scale=1.0)
    tokens = keras.Input((5, 8))
    model = redraw(keras.Model(tokens, layer(tokens)))
    x = draw(1, 5, 8)
    computed = model_statistics(model, x)
    factors = np.random.default_rng(0).standard_normal((1, 5, 8)) / np.sqrt(8)

    def score(bias: np.ndarray) -> float:
        return float((np.asarray(keras.ops.convert_to_numpy(layer(x, bias=bias))) * factors).sum())

    norms = np.zeros((5, 5))
    for index in np.ndindex(5, 5):
        step = np.zeros((5, 5), "float32")
        step[index] = 1e-2
        norms[index] = (score(step) - score(-step)) / 2e-2
    assert_close(computed.mean_gradient, np.linalg.norm(norms, axis=1).mean(keepdims=True), 1e-3)


def test_statistics_of_a_model():
    model = redraw(keras_tx.vit("Mu/2", image_size=8, depth=2))
    images = draw(2, 8, 8, 3)
    scaled, plain = (model_statistics(model, images, scaled=scaled) for scaled in (True, False))
    assert scaled.layers == ["block_0/attention", "block_1/attention"]
    assert (plain.entropy < scaled.entropy).all()
    assert (scaled.entropy < np.log(17)).all()
    assert all(layer.attention.scale is None for layer in model.layers if "block" in layer.name)
    tokens = keras.Input((4,))
    with pytest.raises(ConfigError, match="'plain' has no layers"):
        model_statistics(keras.Model(tokens, keras.layers.Dense(1)(tokens), name="plain"), draw(1, 4))
