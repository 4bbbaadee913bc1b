"""Maps over photographs: where they lie, their colors, and the figures of heads, masks and points."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keras_tx.errors import ConfigError, ImageError
from keras_tx.inspect.figures import (
    draw_layers,
    draw_maps,
    draw_overlay,
    draw_reference_points,
    enlarge_map,
    overlay_map,
    overlay_mask,
)
from keras_tx.inspect.figures.images import read_photograph
from keras_tx.processing.image import ImageTransform

PATCH, ROWS, COLUMNS = 4, 6, 8


def photograph(height: int = 90, width: int = 200) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), "uint8")


def maps(count: int) -> np.ndarray:
    return np.random.default_rng(1).random((count, ROWS, COLUMNS), "float32")


@pytest.mark.parametrize("orientation", [1, 6])  # 6: the file has to be rotated
def test_map_lies_where_the_pixels_were(orientation: int):
    """A white rectangle of a file, seen by the model, is the same rectangle of the enlarged map."""
    pixels = np.zeros((96, 192, 3), "uint8")
    pixels[:48, 96:] = 255
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(file, "PNG", exif=exif)
    model_input = ImageTransform(size=(ROWS * PATCH, COLUMNS * PATCH), mean=0, std=1)(file)[0, :, :, 0]
    map = model_input.reshape(ROWS, PATCH, COLUMNS, PATCH).mean(axis=(1, 3))
    upright = read_photograph(file)
    enlarged = enlarge_map(map, upright.shape[:2], smooth=False)
    assert enlarged.shape == upright.shape[:2]
    covered = enlarged > 0.5
    np.testing.assert_array_equal(covered, upright[:, :, 0] > 127)


def test_map_without_the_remainder_lies_where_the_pixels_were():
    """The model sees 20 x 30 pixels in patches of 8, which leave 4 rows and 6 columns."""
    pixels = np.zeros((60, 120, 3), "uint8")
    pixels[24:48, 64:96] = 255  # the patch in row 1, column 2
    model_input = ImageTransform(size=(20, 30), mean=0, std=1)(pixels)[0, :, :, 0]
    map = model_input[:16, :24].reshape(2, 8, 3, 8).mean(axis=(1, 3))
    covered = (16 / 20, 24 / 30)
    enlarged = enlarge_map(map, (60, 120), smooth=False, covered=covered)
    np.testing.assert_array_equal(enlarged > 0.5, pixels[:, :, 0] > 127)
    mask = overlay_mask(pixels, map > 0.5, covered=covered)
    assert (mask[24:48, 64:96] == 255).all()
    figure = draw_reference_points(pixels, [(1, 2)], map[None], covered=covered)
    np.testing.assert_allclose(figure.axes[0].lines[0].get_xydata()[0], (79.5, 35.5))


def test_smooth_map_has_the_values_at_the_centers():
    map = maps(1)[0]
    enlarged = enlarge_map(map, (ROWS * 9, COLUMNS * 7))
    np.testing.assert_allclose(enlarged[4::9, 3::7], map, rtol=1e-6)
    blocks = enlarge_map(map, (ROWS * 9, COLUMNS * 7), smooth=False)
    np.testing.assert_array_equal(blocks, map.repeat(9, 0).repeat(7, 1))


def test_overlay_keeps_the_lightness_of_the_map():
    """In gray, an overlay over a photograph of one color orders its pixels as the map."""
    map = np.linspace(0, 1, 8)[None]
    overlay = overlay_map(np.full((20, 80, 3), 90, "uint8"), map, smooth=False)
    gray = np.asarray(Image.fromarray(overlay).convert("L"))[10, 5::10].astype(int)
    assert (np.diff(gray) > 5).all()


def test_negative_values_have_their_own_colors():
    overlay = overlay_map(np.full((4, 30, 3), 128, "uint8"), [[-1.0, 0.0, 1.0]], smooth=False).astype(int)
    negative, zero, positive = overlay[2, 5], overlay[2, 15], overlay[2, 25]
    assert negative[2] > negative[0] and positive[0] > positive[2]  # blue, red
    assert np.ptp(zero) < 6
    limited = overlay_map(np.full((4, 30, 3), 128, "uint8"), [[1.0, 1.0, 1.0]], limits=(0, 2))
    half = overlay_map(np.full((4, 30, 3), 128, "uint8"), [[0.5, 0.5, 0.5]], limits=(0, 1))
    np.testing.assert_array_equal(limited, half)


def test_mask_keeps_the_photograph_inside():
    image, mask = photograph(ROWS * 10, COLUMNS * 10), maps(1)[0] > 0.5
    overlay = overlay_mask(image, mask)
    inside = mask.repeat(10, 0).repeat(10, 1)
    np.testing.assert_array_equal(overlay[inside], image[inside])
    assert (np.ptp(overlay[~inside].astype(int), axis=1) == 0).all()
    assert overlay[~inside].min() > 180


def test_overlay_has_the_size_and_pixels_of_the_photograph(tmp_path: Path):
    image, map = photograph(427, 333), maps(1)[0]
    draw_overlay(image, map, path=tmp_path / "overlay.png")
    with Image.open(tmp_path / "overlay.png") as file:
        np.testing.assert_array_equal(np.asarray(file.convert("RGB")), overlay_map(image, map))


def test_panels_and_titles():
    figure = draw_maps(photograph(), maps(3), titles=["a", "b", "c"])
    *panels, _ = figure.axes
    assert [axes.get_title().split("\n")[0] for axes in panels] == ["image", "a", "b", "c"]
    assert [axes.images[0].get_array().shape for axes in panels] == [(90, 200, 3)] * 4
    assert f"largest {maps(3)[0].max():.3g}" in panels[1].get_title()
    limited = draw_maps(photograph(), maps(3), limits=(0, 1))
    assert limited.axes[1].get_title() == "head 0"


def test_maps_of_zeros_have_an_empty_mask():
    figure = draw_maps(photograph(), np.zeros((1, 2, 3)), masks=np.zeros((1, 2, 3), bool))
    assert "0 of 6 patches,\n0 % of the sum" in [axes.get_title() for axes in figure.axes]


def test_masks_follow_their_maps():
    masks = maps(2) > 0.5
    first, inside, *_ = draw_maps(photograph(), maps(2), masks=masks).axes
    assert first.get_title().startswith("head 0")
    share = maps(2)[0][masks[0]].sum() / maps(2)[0].sum()
    assert f"{masks[0].sum()} of 48 patches,\n{100 * share:.0f} % of the sum" == inside.get_title()


def test_points_are_drawn_on_their_patches():
    figure = draw_reference_points(photograph(60, 160), [(0, 0), (5, 7)], maps(2))
    first, *others, _ = figure.axes
    centers = [(9.5, 4.5), (149.5, 54.5)]
    assert [tuple(line.get_xydata()[0]) for line in first.lines] == centers
    assert [tuple(axes.lines[0].get_xydata()[0]) for axes in others] == centers
    assert [text.get_text() for text in first.texts] == ["1", "2"]


def test_table_of_layers(tmp_path: Path):
    figure = draw_layers(photograph(), maps(6).reshape(2, 3, ROWS, COLUMNS), path=tmp_path / "layers.svg")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "1", "2"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1"]
    assert (tmp_path / "layers.svg").read_bytes().startswith(b"<?xml")


def test_photographs(tmp_path: Path):
    gray = photograph()[:, :, 0]
    np.testing.assert_array_equal(read_photograph(gray), np.repeat(gray[:, :, None], 3, axis=2))
    np.testing.assert_array_equal(read_photograph(photograph() / 255.0), photograph())
    Image.fromarray(photograph()).save(tmp_path / "photograph.png")
    np.testing.assert_array_equal(read_photograph(tmp_path / "photograph.png"), photograph())


def test_invalid_arguments_raise():
    with pytest.raises(ConfigError, match=r"\(3, 6, 8\)"):
        overlay_map(photograph(), maps(3))
    with pytest.raises(ConfigError, match="NaN"):
        overlay_map(photograph(), [[np.nan]])
    with pytest.raises(ConfigError, match="titles has 1"):
        draw_maps(photograph(), maps(2), titles=["a"])
    with pytest.raises(ConfigError, match=r"\(2, 6, 8\), expected \(3, 6, 8\)"):
        draw_maps(photograph(), maps(3), masks=maps(2) > 0.5)
    with pytest.raises(ConfigError, match="points has 1"):
        draw_reference_points(photograph(), [(0, 0)], maps(2))
    with pytest.raises(ConfigError, match=r"\(6, 0\).*6 x 8"):
        draw_reference_points(photograph(), [(6, 0)], maps(1))
    with pytest.raises(ConfigError, match=r"\(3, 6, 8\)"):
        draw_layers(photograph(), maps(3))
    with pytest.raises(ImageError, match=r"\(2, 2, 4\)"):
        draw_overlay(np.zeros((2, 2, 4), "uint8"), maps(1)[0])
    with pytest.raises(ImageError, match="from 0 to 2"):
        draw_overlay(np.array([[0.0, 2.0]]), maps(1)[0])
    with pytest.raises(ImageError, match="none"):
        draw_overlay("none.png", maps(1)[0])


def test_path_is_checked_before_the_image_is_read(tmp_path: Path):
    for draw in (draw_overlay, draw_maps, draw_layers):
        with pytest.raises(ConfigError, match=r"a\.gif"):
            draw("none.png", maps(1), path=tmp_path / "a.gif")
