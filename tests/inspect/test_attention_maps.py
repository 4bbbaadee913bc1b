"""Maps of attention over the patches of an image, and the patches with a share of the mass."""

from __future__ import annotations

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
)
from keras_tx.inspect.attention import pooled_map
from tests.drawing import redraw

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
    with pytest.raises(ConfigError, match=r"\(2, 2\).*from 0"):
        mass_threshold(-np.ones((2, 2)))


def test_maps_of_an_inspector():
    images = (np.random.default_rng(0).random((2, 8, 12, 3)) * 255).astype("uint8")
    inspected = inspect(redraw(keras_tx.vit("Mu/2", image_size=(8, 12), depth=3, num_classes=3)))
    first, _, last = inspected.attention(images)
    (maps,) = inspected.class_token_maps(images)
    np.testing.assert_array_equal(maps.reshape(2, 2, 24), last[:, :, 0, 1:])
    (maps,) = inspected.reference_point_maps(images, [(2, 5)], layers="block_0")
    np.testing.assert_array_equal(maps.reshape(2, 2, 24), first[:, :, 1 + 2 * 6 + 5, 1:])
