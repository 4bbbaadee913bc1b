"""Attention with embeddings of offsets equals the formula of Shaw et al., written with NumPy in float64."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.layers import MultiHeadAttention
from keras_tx.layers.key_value_cache import KeyValueCache, caching
from tests.drawing import as_numpy, built, draw
from tests.tolerances import assert_close


def embeddings_of_offsets(layer: MultiHeadAttention) -> np.ndarray:
    """r (tokens, tokens, size): the sum of the rows of each axis for each query and key."""
    assert layer.relative is not None
    grid, before = layer.relative.grid, layer.prefix_tokens
    places = np.stack([index.ravel() for index in np.indices(grid)], axis=-1)
    r = np.zeros((before + len(places), before + len(places), layer.size))
    for i, query in enumerate(places):
        for j, key in enumerate(places):
            for axis, table in enumerate(layer.relative.tables):
                r[before + i, before + j] += as_numpy(table)[key[axis] - query[axis] + grid[axis] - 1]
    return r


def attention_weights(layer: MultiHeadAttention, x: np.ndarray) -> np.ndarray:
    def heads(dense: keras.layers.Dense) -> np.ndarray:
        y = x.astype("float64") @ as_numpy(dense.kernel) + as_numpy(dense.bias)
        return y.reshape(*x.shape[:2], layer.num_heads, layer.size)

    q, k = heads(layer.query), heads(layer.key)
    r = embeddings_of_offsets(layer)[: x.shape[1], : x.shape[1]]
    scores = np.einsum("bihd,bjhd->bhij", q, k) + np.einsum("bihd,ijd->bhij", q, r)
    scores /= np.sqrt(layer.size)
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    "grid, prefix_tokens, tokens",
    [((2, 3), 0, 6), ((2, 3), 2, 8), ((1, 4), 0, 4), (6, 0, 6), (9, 2, 7), (1, 0, 1)],
)
def test_equals_the_formula(grid, prefix_tokens, tokens):
    x = draw(2, tokens, 8)
    layer = built(MultiHeadAttention(2, relative_grid=grid, prefix_tokens=prefix_tokens), x)
    _, weights = layer(x, return_attention_scores=True)
    assert_close(as_numpy(weights), attention_weights(layer, x))


def test_a_bias_and_masks_apply_too():
    x, bias, mask = draw(2, 6, 8), draw(2, 6, 6, seed=5), np.array([[1] * 6, [1, 1, 1, 1, 0, 0]])
    layer = built(MultiHeadAttention(2, relative_grid=(2, 3)), x)
    _, weights = layer(x, bias=bias, padding_mask=mask, return_attention_scores=True)
    expected = attention_weights(layer, x) * np.exp(bias)[:, None] * mask[:, None, None]
    assert_close(as_numpy(weights), expected / expected.sum(-1, keepdims=True))


def test_zero_embeddings_change_nothing():
    x = draw(2, 6, 8)
    layer, plain = built(MultiHeadAttention(2, relative_grid=6), x), built(MultiHeadAttention(2), x)
    layer.relative.tables[0].assign(np.zeros((11, 4)))
    plain.set_weights([w for w in layer.get_weights() if w.shape != (11, 4)])
    assert_close(as_numpy(layer(x)), as_numpy(plain(x)))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"relative_grid": (2, 2, 2)}, r"relative_grid=\(2, 2, 2\)"),
        ({"relative_grid": 0}, "relative_grid"),
        ({"prefix_tokens": 2}, "prefix_tokens=2"),
        ({"relative_grid": 4, "rotary_base": 1e4}, r"relative_grid=4 and rotary_base=10000"),
    ],
)
def test_options_that_do_not_fit_raise(options, message):
    with pytest.raises(ConfigError, match=message):
        MultiHeadAttention(2, **options)


PAST = (np.zeros((1, 2, 3, 4), "float32"),) * 2


@pytest.mark.parametrize(
    "grid, tokens, options, message",
    [
        ((2, 3), 7, {}, r"0 \+ 2 x 3 = 6 tokens, but the input has 7"),
        ((2, 3), 5, {}, "5"),
        (6, 7, {}, r"0 \+ 6 = 6 tokens, but the input has 7"),
        (6, 6, {"value": draw(1, 6, 8)}, "called with value"),
        (6, 6, {"past": PAST}, "called with past"),
    ],
)
def test_calls_that_do_not_fit_raise(grid, tokens, options, message):
    layer = MultiHeadAttention(2, relative_grid=grid, causal="past" in options)
    with pytest.raises(ConfigError, match=message):
        layer(draw(1, tokens, 8), **options)


def test_a_cache_raises():
    layer = built(MultiHeadAttention(2, relative_grid=6, causal=True), draw(1, 3, 8))
    with caching(KeyValueCache(np.ones((1, 3), bool))), pytest.raises(ConfigError, match="relative_grid=6"):
        layer(draw(1, 3, 8))
