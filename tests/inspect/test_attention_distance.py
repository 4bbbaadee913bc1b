"""Mean attention distance and entropy: values derived by hand, and an explicit loop."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.inspect.attention import entropy_in_nats, mean_attention_distance, patch_distances
from tests.tolerances import assert_close


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    """Attention weights (batch, heads, tokens, tokens), of very different size."""
    scores = np.exp(3 * np.random.default_rng(seed).standard_normal(shape))
    return (scores / scores.sum(axis=-1, keepdims=True)).astype("float32")


def by_hand(attention: np.ndarray, grid: tuple[int, int], patch: tuple[int, int], prefix: int) -> np.ndarray:
    places = list(itertools.product(range(grid[0]), range(grid[1])))
    heads = []
    for head in range(attention.shape[1]):
        distances = []
        for image in attention[:, head].astype("float64"):
            for i, (row, column) in enumerate(places):
                keys = image[prefix + i, prefix:]
                steps = [math.hypot((r - row) * patch[0], (c - column) * patch[1]) for r, c in places]
                distances.append(sum(w * d for w, d in zip(keys, steps, strict=True)) / keys.sum())
        heads.append(np.mean(distances))
    return np.array(heads)


@pytest.mark.parametrize(
    "grid, patch_size, patch, prefix",
    [((3, 3), 16, (16, 16), 1), ((2, 5), (4, 7), (4, 7), 0), ((4, 1), 8, (8, 8), 5)],
)
def test_distance_equals_a_loop_over_queries_and_keys(grid, patch_size, patch, prefix):
    tokens = prefix + grid[0] * grid[1]
    attention = weights(2, 3, tokens, tokens)
    actual = mean_attention_distance(attention, grid, patch_size, prefix)
    assert_close(actual, by_hand(attention, grid, patch, prefix))


def test_distance_of_attention_made_by_hand():
    line = (1, 4)  # four patches of 10 pixels in a row
    identity = np.eye(4)[None, None]
    assert mean_attention_distance(identity, line, 10)[0] == 0
    # Each patch has 3 + 2 + 1 + 0, 1 + 0 + 1 + 2, ... patches of distance: (6 + 4 + 4 + 6) / 16 patches.
    uniform = np.full((1, 1, 4, 4), 0.25)
    assert mean_attention_distance(uniform, line, 10)[0] == 10 * 20 / 16
    neighbor = np.eye(4)[[1, 2, 3, 2]][None, None]
    assert mean_attention_distance(neighbor, line, 10)[0] == 10
    diagonal = np.eye(4)[[3, 2, 1, 0]][None, None]  # the opposite corner of 2 x 2 patches
    assert mean_attention_distance(diagonal, (2, 2), (3, 4))[0] == 5


def test_class_token_has_no_distance():
    """Half of the weight on the class token does not change the distance; its own row does not count."""
    neighbor = np.eye(4)[[1, 2, 3, 2]]
    attention = np.zeros((1, 1, 5, 5))
    attention[0, 0, 1:, 0] = 0.5
    attention[0, 0, 1:, 1:] = 0.5 * neighbor
    attention[0, 0, 0] = [0, 1, 0, 0, 0]
    assert mean_attention_distance(attention, (1, 4), 10, prefix_tokens=1)[0] == 10


def test_query_without_weight_on_patches_is_left_out():
    attention = np.zeros((1, 2, 3, 3))
    attention[:, :, :, 0] = 1
    attention[0, 0, 1] = [0, 0, 1]  # head 0: one query attends to the other patch, 7 pixels away
    distances = mean_attention_distance(attention, (1, 2), 7, prefix_tokens=1)
    assert distances[0] == 7
    assert np.isnan(distances[1])


def test_distances_between_patches():
    distances = patch_distances((2, 3), (3, 4))
    assert distances[0].tolist() == [0, 4, 8, 3, 5, math.hypot(3, 8)]
    assert (distances == distances.T).all()


def test_entropy_equals_a_loop_and_its_bounds():
    attention = weights(2, 3, 4, 6)
    rows = attention.astype("float64").transpose(1, 0, 2, 3).reshape(3, -1, 6)
    expected = [np.mean([-sum(p * math.log(p) for p in row) for row in head]) for head in rows]
    assert_close(entropy_in_nats(attention), np.array(expected))
    uniform = np.full((1, 1, 3, 8), 1 / 8)
    assert entropy_in_nats(uniform)[0] == pytest.approx(math.log(8), rel=1e-12)
    assert entropy_in_nats(np.eye(4)[None, None])[0] == 0


def test_entropy_leaves_padding_out():
    attention = np.zeros((1, 2, 3, 4))
    attention[0, 0, 0] = 0.25
    entropy = entropy_in_nats(attention)
    assert entropy[0] == pytest.approx(math.log(4), rel=1e-12)
    assert np.isnan(entropy[1])


@pytest.mark.parametrize(
    "attention, text",
    [
        (np.full((2, 4, 4), 0.25), r"shape \(2, 4, 4\)"),
        (np.zeros((0, 1, 4, 4)), r"shape \(0, 1, 4, 4\)"),
        (np.full((1, 1, 4, 4), 0.5), "the sum 2"),
        (np.full((1, 1, 4, 4), np.nan), "the sum nan"),
        (np.array([[[[1.5, -0.5]]]]), "from -0.5"),
    ],
)
def test_other_arrays_raise(attention, text):
    with pytest.raises(ConfigError, match=text):
        entropy_in_nats(attention)


def test_another_grid_raises():
    with pytest.raises(ConfigError, match=r"prefix_tokens=1 and grid=\(2, 2\).*5, 5"):
        mean_attention_distance(weights(1, 1, 4, 4), (2, 2), 16, prefix_tokens=1)
