from __future__ import annotations

import math

import keras
import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.layers import PositionalEmbedding
from keras_tx.layers.position_tables import fourier_features, resize_grid, sine_cosine
from tests.drawing import as_numpy, built, draw
from tests.tolerances import assert_close

KINDS = ["learned", "learned-2d", "sine-cosine", "fourier"]


def added(layer: PositionalEmbedding, x: np.ndarray) -> np.ndarray:
    return as_numpy(layer(x)) - x


def test_kind_none_is_the_identity():
    x = draw(2, 5, 8)
    np.testing.assert_array_equal(as_numpy(PositionalEmbedding(5, "none")(x)), x)


def test_learned_adds_its_table_to_prefix_and_grid():
    x = draw(2, 7, 8)
    layer = built(PositionalEmbedding((2, 3), prefix_tokens=1), x)
    np.testing.assert_array_equal(as_numpy(layer(x)), x + as_numpy(layer.table))


@pytest.mark.parametrize("tokens", [1, 3, 9])
@pytest.mark.parametrize("kind", ["learned", "sine-cosine", "fourier"])
def test_shorter_sequence_uses_the_first_rows(kind, tokens):
    layer = built(PositionalEmbedding(9, kind), draw(1, 9, 8))
    assert_close(added(layer, draw(1, tokens, 8)), as_numpy(layer.positions())[None, :tokens])


def test_learned_2d_concatenates_rows_and_columns():
    x = draw(1, 7, 8)
    layer = built(PositionalEmbedding((2, 3), "learned-2d", prefix_tokens=1), x)
    prefix, rows, columns = map(as_numpy, (layer.prefix, layer.rows, layer.columns))
    grid = [np.concatenate([rows[r], columns[c]]) for r in range(2) for c in range(3)]
    assert_close(added(layer, x)[0], np.stack([prefix[0], *grid]))


@pytest.mark.parametrize("grid", [(6,), (2, 3), (3, 1, 2)])
def test_fixed_kinds_add_nothing_to_the_prefix(grid):
    x = draw(1, 8, 12)
    layer = PositionalEmbedding(grid, "sine-cosine", prefix_tokens=2)
    assert_close(added(layer, x)[0], np.concatenate([np.zeros((2, 12)), sine_cosine(grid, 12)]))
    assert not layer.weights
    layer = built(PositionalEmbedding(grid, "fourier", prefix_tokens=2, bands=3), x)
    expected = fourier_features(grid, 3) @ as_numpy(layer.kernel)
    assert_close(added(layer, x)[0], np.concatenate([np.zeros((2, 12)), expected]))


@pytest.mark.parametrize("kind", KINDS)
def test_positions_differ_between_tokens(kind):
    layer = built(PositionalEmbedding((3, 4), kind), draw(1, 12, 8))
    rows = as_numpy(layer.positions())
    assert len(np.unique(np.round(rows, 5), axis=0)) == 12


@pytest.mark.parametrize("prefix_tokens", [0, 5])
def test_resize_from_another_grid_keeps_the_prefix(prefix_tokens):
    small, large = (PositionalEmbedding((n, n), prefix_tokens=prefix_tokens) for n in (14, 24))
    built(small, draw(1, 196 + prefix_tokens, 6))
    large.build((None, 576 + prefix_tokens, 6))
    large.resize_from(small)
    before, after = as_numpy(small.table), as_numpy(large.table)
    np.testing.assert_array_equal(after[:prefix_tokens], before[:prefix_tokens])
    np.testing.assert_array_equal(
        after[prefix_tokens:], resize_grid(before[prefix_tokens:], (14, 14), (24, 24))
    )


def test_resize_from_learned_2d_and_fourier():
    x = {(2, 3): draw(1, 7, 8), (4, 5): draw(1, 21, 8)}
    for kind in ("learned-2d", "fourier"):
        small, large = (built(PositionalEmbedding(grid, kind, prefix_tokens=1), x[grid]) for grid in x)
        small.weights[0].assign(as_numpy(small.weights[0]) + 1)
        large.resize_from(small)
        before, after = small.get_weights(), large.get_weights()
        np.testing.assert_array_equal(after[0], before[0])  # the prefix, or the projection
        if kind == "learned-2d":
            np.testing.assert_array_equal(after[1], resize_grid(before[1], (2,), (4,)))
            np.testing.assert_array_equal(after[2], resize_grid(before[2], (3,), (5,)))


@pytest.mark.parametrize("kind", ["learned", "learned-2d", "fourier"])
def test_learned_weights_have_gradients(kind):
    inputs = keras.Input((6, 8))
    layer = PositionalEmbedding((2, 3), kind)
    model = keras.Model(inputs, layer(inputs))
    before = [as_numpy(w).copy() for w in layer.trainable_weights]
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.train_on_batch(draw(2, 6, 8), draw(2, 6, 8, seed=3))
    assert all((as_numpy(w) != b).any() for w, b in zip(layer.trainable_weights, before, strict=True))


@pytest.mark.parametrize("kind", ["learned", "sine-cosine", "fourier"])
def test_positions_select_rows_of_the_table(kind):
    x, positions = draw(2, 3, 8), np.array([[4, 0, 0], [1, 2, 5]], "int32")
    layer = built(PositionalEmbedding(6, kind), draw(1, 6, 8))
    table = as_numpy(layer.positions())
    np.testing.assert_array_equal(as_numpy(layer(x, positions)), x + table[positions])
    np.testing.assert_array_equal(as_numpy(layer(x, np.arange(3)[None])), as_numpy(layer(x)))


def test_invalid_positions_raise():
    x = draw(1, 3, 8)
    with pytest.raises(ConfigError, match="kind='none'.*positions="):
        PositionalEmbedding(3, "none")(x, np.zeros((1, 3), "int32"))
    with pytest.raises(ConfigError, match="positions= is float32"):
        PositionalEmbedding(3)(x, np.zeros((1, 3), "float32"))


@pytest.mark.parametrize(
    "config, shape, parts",
    [
        ({"grid": 5, "kind": "learnt"}, None, ["kind='learnt'", "'learned'"]),
        ({"grid": 5, "kind": "xyz"}, None, ["kind='xyz'", "Known: 'none'", "'fourier'"]),
        ({"grid": 0}, None, ["grid is 0", "a whole number, 1 or more"]),
        ({"grid": (2, 2, 2, 2)}, None, ["grid=(2, 2, 2, 2) has 4 axes", "(time, rows, columns)"]),
        ({"grid": (2, 2, 2), "kind": "learned-2d"}, None, ["kind='learned-2d'", "grid=(2, 2, 2)"]),
        ({"grid": (2, 2, 2), "kind": "sine-cosine"}, (1, 8, 8), ["width 8", "by 6", "3 axes"]),
        ({"grid": (2, 2, 2)}, (1, 7, 8), ["2 x 2 x 2 = 8 tokens", "has 7"]),
        ({"grid": (2, 2.5)}, None, ["grid is (2, 2.5)", "a whole number, 1 or more"]),
        ({"grid": 5, "kind": "learned-2d"}, None, ["kind='learned-2d'", "(rows, columns)", "grid=5"]),
        ({"grid": 5, "prefix_tokens": -1}, None, ["prefix_tokens is -1", "0 or more"]),
        ({"grid": 5, "kind": "fourier", "bands": 0}, None, ["bands is 0", "1 or more"]),
        ({"grid": 5, "kind": "sine-cosine"}, (1, 5, 7), ["'where'", "width 7", "by 2"]),
        ({"grid": (1, 5), "kind": "sine-cosine"}, (1, 5, 6), ["'where'", "width 6", "by 4"]),
        ({"grid": (1, 5), "kind": "learned-2d"}, (1, 5, 7), ["'where'", "width 7", "by 2"]),
        ({"grid": 5}, (1, 5), ["'where'", "(1, 5)", "(batch, tokens, width)"]),
        ({"grid": 5}, (1, 6, 8), ["'where'", "0 + 5 = 5 tokens", "has 6"]),
        ({"grid": (2, 3), "prefix_tokens": 1}, (1, 6, 8), ["'where'", "1 + 2 x 3 = 7 tokens", "has 6"]),
    ],
)
def test_errors_contain_argument_and_value(config, shape, parts):
    with pytest.raises(ConfigError) as error:
        PositionalEmbedding(**config, name="where").build(shape)
    assert all(part in str(error.value) for part in parts), str(error.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [1, 3, 5])
def test_another_grid_raises(kind, tokens):
    layer = built(PositionalEmbedding((2, 2), kind), draw(1, 4, 8))
    with pytest.raises(ConfigError, match=f"2 x 2 = 4 tokens, but the input has {tokens}"):
        layer(draw(1, tokens, 8))


def test_resize_from_another_kind_raises():
    layer = built(PositionalEmbedding((2, 2), prefix_tokens=1, name="new"), draw(1, 5, 8))
    for grid, config in (((4, 4), {}), (16, {"prefix_tokens": 1}), ((4, 4), {"kind": "fourier"})):
        other = PositionalEmbedding(grid, **config, name="old")
        other.build((1, math.prod(other.grid) + other.prefix_tokens, 8))
        with pytest.raises(ConfigError, match=r"'new'.*\(2, 2\).*'old'"):
            layer.resize_from(other)
    with pytest.raises(ConfigError, match="'old' is not built"):
        layer.resize_from(PositionalEmbedding((4, 4), prefix_tokens=1, name="old"))
