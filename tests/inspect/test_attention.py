"""Maps, rollout, distances and entropies of attention, against DINO, the papers' formulas and loops."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.inspect import (
    PatchGrid,
    class_token_map,
    inspect,
    mass_threshold,
    patch_maps,
    reference_point_map,
    rollout,
)
from keras_tx.inspect.attention import entropy_in_nats, mean_attention_distance, patch_distances, pooled_map
from tests.drawing import redraw
from tests.tolerances import assert_close

GRID = PatchGrid(2, 3, 2)
ATTENTION = np.random.default_rng(0).random((2, 4, 8, 8)).astype("float32")


def test_maps_have_the_weights_of_their_patches():
    every = patch_maps(ATTENTION, GRID)
    of_class, of_points = (
        class_token_map(ATTENTION, GRID),
        reference_point_map(ATTENTION, GRID, [(1, 0), (0, 2)]),
    )
    assert every.shape == (2, 4, 8, 2, 3) and of_class.shape == (2, 4, 2, 3)
    assert of_points.shape == (2, 4, 2, 2, 3)
    for row, column in np.ndindex(2, 3):
        key = 2 + 3 * row + column
        np.testing.assert_array_equal(every[..., row, column], ATTENTION[..., key])
        np.testing.assert_array_equal(of_class[..., row, column], ATTENTION[..., 0, key])
        np.testing.assert_array_equal(of_points[:, :, 0, row, column], ATTENTION[..., 5, key])
        np.testing.assert_array_equal(of_points[:, :, 1, row, column], ATTENTION[..., 4, key])


def test_pooled_map_has_no_registers():
    np.testing.assert_array_equal(pooled_map(ATTENTION, GRID), class_token_map(ATTENTION, GRID))
    patches = pooled_map(ATTENTION, PatchGrid(2, 3, 2, registers=2))
    expected = ATTENTION[..., 2:, 2:].sum(axis=2) / 6
    np.testing.assert_allclose(patches, expected.reshape(2, 4, 2, 3), rtol=1e-6)


def dino_threshold(attention: np.ndarray, threshold: float) -> np.ndarray:
    """The steps of DINO's visualize_attention.py, in PyTorch: one row per head."""
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[torch]"')
    values, order = torch.sort(torch.from_numpy(attention))
    values = values / values.sum(dim=1, keepdim=True)
    inside = torch.cumsum(values, dim=1) > 1 - threshold
    back = torch.argsort(order)
    return torch.stack([inside[head][back[head]] for head in range(len(inside))]).numpy()


@pytest.mark.parametrize("mass", [0.1, 0.6, 0.95])
def test_mass_threshold_equals_dino(mass):
    maps = np.random.default_rng(1).random((5, 7, 6))
    inside = mass_threshold(maps, mass)
    np.testing.assert_array_equal(inside.reshape(5, 42), dino_threshold(maps.reshape(5, 42), mass))
    for map, one in zip(maps, inside, strict=True):
        assert map[one].sum() >= mass * map.sum()
        assert map[one].sum() - map[one].min() < mass * map.sum()  # one patch less is too little


def test_wrong_maps_raise():
    with pytest.raises(ConfigError, match=r"\(2, 4, 8, 8\).*9 keys"):
        patch_maps(ATTENTION, PatchGrid(2, 4, 1))
    with pytest.raises(ConfigError, match=r"prefix=0.* has no class token"):
        class_token_map(ATTENTION, PatchGrid(2, 4, 0))
    with pytest.raises(ConfigError, match="has no class token"):
        class_token_map(ATTENTION, PatchGrid(2, 3, 2, registers=2))
    with pytest.raises(ConfigError, match=r"\(2, 4, 1, 8\).*8 tokens"):
        class_token_map(ATTENTION[:, :, :1], GRID)
    with pytest.raises(ConfigError, match=r"\(2, 0\), but the grid has 2 x 3"):
        reference_point_map(ATTENTION, GRID, [(2, 0)])
    with pytest.raises(ConfigError, match="mass=0 is out of range"):
        mass_threshold(np.ones((2, 2)), 0)
    with pytest.raises(ConfigError, match=r"\(2, 2\).*0 or more"):
        mass_threshold(-np.ones((2, 2)))


def test_maps_of_an_inspector():
    images = (np.random.default_rng(0).random((2, 8, 12, 3)) * 255).astype("uint8")
    inspected = inspect(redraw(keras_tx.vit("Mu/2", image_size=(8, 12), depth=3, num_classes=3)))
    first, _, last = inspected.attention(images)
    (maps,) = inspected.class_token_maps(images)
    assert maps.base is None  # a view would keep all weights in memory
    np.testing.assert_array_equal(maps.reshape(2, 2, 24), last[:, :, 0, 1:])
    (maps,) = inspected.reference_point_maps(images, [(2, 5)], layers="block_0")
    assert maps.base is None
    np.testing.assert_array_equal(maps.reshape(2, 2, 24), first[:, :, 1 + 2 * 6 + 5, 1:])


RNG = np.random.default_rng(0)


def random_layers(count: int, *, causal: bool = False) -> list[np.ndarray]:
    scores = np.exp(RNG.standard_normal((count, 2, 3, 6, 6)))
    scores = np.tril(scores) if causal else scores
    return list((scores / scores.sum(-1, keepdims=True)).astype("float32"))


@pytest.mark.parametrize("causal", [False, True])
def test_rollout_equals_the_formula(causal):
    layers = random_layers(4, causal=causal)
    means = [layer.mean(1).astype("float64") for layer in layers]
    expected = functools.reduce(np.matmul, means[::-1])  # A_4 A_3 A_2 A_1
    assert_close(rollout(layers, residual=False), expected.astype("float32"))
    with_residual = []
    for mean in means:
        mixed = 0.5 * mean + 0.5 * np.eye(6)
        with_residual.append(mixed / mixed.sum(-1, keepdims=True))
    expected = with_residual[3] @ with_residual[2] @ with_residual[1] @ with_residual[0]
    result = rollout(iter(layers))
    assert result.dtype == np.float32
    assert_close(result, expected.astype("float32"))
    assert_close(result.sum(-1), np.ones((2, 6), "float32"))
    assert np.abs(expected - functools.reduce(np.matmul, with_residual)).max() > 1e-3  # the order counts


def reference(attentions: list[np.ndarray]) -> np.ndarray:
    """The loop of published implementations, in PyTorch."""
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[torch]"')
    result = torch.eye(attentions[0].shape[-1])
    for attention in attentions:
        fused = torch.from_numpy(attention).mean(dim=1)
        fused = (fused + torch.eye(fused.shape[-1])) / 2
        result = torch.matmul(fused / fused.sum(dim=-1, keepdim=True), result)
    return result.numpy()


def test_rollout_equals_a_reference_in_pytorch():
    layers = random_layers(5)
    assert_close(rollout(layers), reference(layers))


def test_rows_of_padding_stay_their_own():
    layers = random_layers(2)
    for layer in layers:
        layer[:, :, 4:] = layer[:, :, :, 4:] = 0
    expected = rollout([layer[:, :, :4, :4] for layer in layers], residual=False)
    np.testing.assert_array_equal(rollout(layers, residual=False)[:, :4, :4], expected)
    np.testing.assert_array_equal(rollout(layers)[:, 4:, 4:], np.eye(2, dtype="float32")[None].repeat(2, 0))


def test_wrong_arrays_raise():
    with pytest.raises(ConfigError, match="no layers"):
        rollout([])
    with pytest.raises(ConfigError, match=r"\(2, 3, 6, 5\) in layer 0"):
        rollout([np.ones((2, 3, 6, 5))])
    with pytest.raises(ConfigError, match=r"\(2, 3, 5, 5\) in layer 1"):
        rollout([np.ones((2, 3, 6, 6)), np.ones((2, 3, 5, 5))])


def test_rollout_of_an_inspector():
    inspected = inspect(redraw(keras_tx.t5("tiny")))
    ids = np.array([[5, 6, 7, 8, 1]])
    layers = inspected.attention(ids, part="encoder")
    np.testing.assert_array_equal(
        inspected.rollout(ids, part="encoder", residual=False), rollout(layers, residual=False)
    )
    with pytest.raises(ConfigError, match="part='cross' has no rollout"):
        inspected.rollout(ids, targets=ids, part="cross")


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
        (np.array([[[[1.5, -0.5]]]]), "minimum -0.5 and the sum 1"),
    ],
)
def test_other_arrays_raise(attention, text):
    with pytest.raises(ConfigError, match=text):
        entropy_in_nats(attention)


def test_another_grid_raises():
    with pytest.raises(ConfigError, match=r"prefix_tokens=1 and grid=\(2, 2\).*5, 5"):
        mean_attention_distance(weights(1, 1, 4, 4), (2, 2), 16, prefix_tokens=1)
