from __future__ import annotations

import math

import numpy as np
import pytest

from keras_tx.layers.position_tables import fourier_features, resize_grid, sine_cosine
from tests.drawing import draw
from tests.tolerances import assert_close


def test_sine_cosine_of_a_sequence_is_the_papers_formula():
    """Vaswani et al., section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(the same)."""
    table = sine_cosine((50,), 8)
    for position in range(50):
        for i in range(4):
            angle = position / 10000 ** (2 * i / 8)
            assert table[position, 2 * i] == pytest.approx(math.sin(angle), abs=1e-7)
            assert table[position, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-7)


def test_sine_cosine_values_written_out():
    # sin 0, cos 0, sin 0, cos 0; sin 1, cos 1, sin 0.01, cos 0.01
    expected = [[0, 1, 0, 1], [0.84147098, 0.54030231, 0.00999983, 0.99995000]]
    np.testing.assert_allclose(sine_cosine((2,), 4), expected, atol=1e-7)


def test_sine_cosine_of_a_grid():
    """big_vision's posemb_sincos_2d: sin x, cos x, sin y, cos y; frequencies from 1 to 1/10000."""
    table = sine_cosine((2, 3), 12).reshape(2, 3, 4, 3)
    omega = [1.0, 0.01, 0.0001]
    for y in range(2):
        for x in range(3):
            expected = [[f(p * w) for w in omega] for p in (x, y) for f in (math.sin, math.cos)]
            np.testing.assert_allclose(table[y, x], expected, atol=1e-7)


def test_sine_cosine_of_a_video():
    """vit-pytorch's posemb_sincos_3d: sin x, cos x, sin y, cos y, sin t, cos t."""
    table = sine_cosine((2, 3, 4), 18).reshape(2, 3, 4, 6, 3)
    omega = [1.0, 0.01, 0.0001]
    for t, y, x in np.ndindex(2, 3, 4):
        expected = [[f(p * w) for w in omega] for p in (x, y, t) for f in (math.sin, math.cos)]
        np.testing.assert_allclose(table[t, y, x], expected, atol=1e-7)


def test_fourier_features_by_hand():
    """Three tokens at -1, 0, 1; two frequencies from 1 to 3/2; x, sin, sin, cos, cos."""
    expected = [
        [-1, 0, 1, -1, 0],  # sin(-pi), sin(-1.5 pi), cos(-pi), cos(-1.5 pi)
        [0, 0, 0, 1, 1],
        [1, 0, -1, -1, 0],
    ]
    np.testing.assert_allclose(fourier_features((3,), 2), expected, atol=1e-6)


@pytest.mark.parametrize("grid, bands", [((5,), 1), ((1,), 3), ((3, 4), 2), ((1, 7), 4), ((2, 3, 4), 2)])
def test_number_of_fourier_features(grid, bands):
    features = fourier_features(grid, bands)
    assert features.shape == (math.prod(grid), len(grid) * (2 * bands + 1))
    assert np.isfinite(features).all()
    if bands > 1:
        assert len(np.unique(features, axis=0)) == len(features)


@pytest.mark.parametrize(
    "old, new",
    [
        ((14, 14), (24, 24)),
        ((24, 24), (14, 14)),
        ((7, 5), (3, 11)),
        ((2, 2), (9, 9)),
        ((1, 4), (5, 4)),
        ((9, 9), (1, 1)),
    ],
)
@pytest.mark.parametrize(
    ("kind", "options"),
    [("plain", {}), ("aligned", {"align_corners": True}), ("antialiased", {"antialias": True})],
)
def test_resize_equals_torch_bicubic(old, new, kind, options):
    torch = pytest.importorskip("torch", reason='needs torch: pip install "keras-tx[parity]"')
    table = draw(math.prod(old), 6)
    image = torch.from_numpy(table.reshape(1, *old, 6)).permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(image, size=new, mode="bicubic", **options)
    expected = resized.permute(0, 2, 3, 1).reshape(-1, 6).numpy()
    assert_close(resize_grid(table, old, new, kind), expected)


def test_resize_of_one_axis_equals_torch_bicubic():
    torch = pytest.importorskip("torch", reason='needs torch: pip install "keras-tx[parity]"')
    table = draw(16, 6)
    image = torch.from_numpy(table.T.reshape(1, 6, 1, 16).copy())
    resized = torch.nn.functional.interpolate(image, size=(1, 40), mode="bicubic", align_corners=False)
    assert_close(resize_grid(table, (16,), (40,)), resized.reshape(6, 40).T.numpy())


def test_resize_of_three_axes_equals_one_after_the_other():
    table = draw(24, 5)
    expected = np.stack([resize_grid(image, (3, 4), (5, 2)) for image in table.reshape(2, 12, 5)])
    expected = resize_grid(expected.reshape(2, -1), (2,), (6,)).reshape(60, 5)
    assert_close(resize_grid(table, (2, 3, 4), (6, 5, 2)), expected)


def test_resize_to_the_same_grid_is_the_identity():
    table = draw(12, 5)
    np.testing.assert_array_equal(resize_grid(table, (3, 4), (3, 4)), table)


def test_resize_keeps_a_constant():
    np.testing.assert_allclose(resize_grid(np.full((6, 2), 0.3, "float32"), (2, 3), (5, 8)), 0.3, rtol=1e-6)
