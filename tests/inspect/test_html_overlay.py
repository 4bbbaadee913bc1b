"""The interactive figure of attention over an image: its data, and its pixels in a browser."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keras_tx.errors import ConfigError
from keras_tx.inspect import PatchGrid
from keras_tx.inspect.figures import overlay_map, overlay_mask
from keras_tx.inspect.html_elements import html_document
from keras_tx.inspect.html_overlay import embedded_photograph, overlay_fragment, query_maps
from tests.chromium import Page, needs_chromium

LAYERS, HEADS, ROWS, COLUMNS = 2, 3, 4, 6
GRID = PatchGrid(ROWS, COLUMNS, 1)
READY = "document.querySelector('.ktx-overlay').dataset.ready"
TITLE = "document.querySelector('.ktx-overlay figcaption').textContent"
LOSSY = 4.0  # mean difference of 8-bit values: the photograph is stored as JPEG


def photograph() -> np.ndarray:
    y, x = np.mgrid[:300, :420]
    return np.stack([x * 255 / 420, y * 255 / 300, 128 + 60 * np.sin(x / 9)], axis=-1).astype("uint8")


def attentions(grid: PatchGrid = GRID) -> list[np.ndarray]:
    tokens = grid.prefix + grid.rows * grid.columns
    weights = np.random.default_rng(0).random((LAYERS, HEADS, tokens, tokens)) ** 4
    return list((weights / weights.sum(axis=-1, keepdims=True)).astype("float32"))


def fragment_of(image: np.ndarray, layers: list[np.ndarray], grid: PatchGrid) -> str:
    return overlay_fragment(image, [query_maps(weights, grid) for weights in layers], grid)


def open_page(page: Page, path: Path, fragment: str, **options: Any) -> None:
    path.write_text(html_document("Image", "", fragment), "utf-8")
    page.open(path, **options)
    page.wait_for(READY)


def drawn(page: Page) -> np.ndarray:
    """The pixels of the figure's canvas."""
    address = page.evaluate("document.querySelector('.ktx-overlay .image canvas').toDataURL('image/png')")
    with Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))) as image:
        return np.asarray(image.convert("RGB"))


def click_patch(page: Page, row: float, column: float) -> None:
    box = "document.querySelector('.ktx-overlay .image canvas').getBoundingClientRect()"
    left, top, width, height = page.evaluate(f"(({{x, y, width, height}}) => [x, y, width, height])({box})")
    x, y = left + (column + 0.5) / COLUMNS * width, top + (row + 0.5) / ROWS * height
    page.hover(x, y)
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


def assert_close(page: Page, expected: np.ndarray) -> None:
    actual = drawn(page)
    assert actual.shape == expected.shape
    assert np.abs(actual.astype(int) - expected).mean() < LOSSY


@needs_chromium
def test_canvas_equals_overlay_map(page: Page, tmp_path: Path):
    image, weights = photograph(), attentions()
    last = weights[-1][:, :, 1:].reshape(HEADS, -1, ROWS, COLUMNS)
    open_page(page, tmp_path / "page.html", fragment_of(image, weights, GRID))
    assert_close(page, overlay_map(image, last[:, 0].mean(axis=0), smooth=False))
    assert page.evaluate(TITLE).startswith("Layer 1, mean of the heads: attention of the class token.")
    on_patches = last[:, 0].sum(axis=(1, 2)).mean()
    assert f"{100 * on_patches:.1f} % of the attention is on patches" in page.evaluate(TITLE)

    click = "document.querySelectorAll('.ktx-overlay td button')[{}].click()"
    page.evaluate(click.format(HEADS + 1 + 2))  # layer 1, head 2
    assert_close(page, overlay_map(image, last[2, 0], smooth=False))
    page.evaluate("document.querySelectorAll('.ktx-overlay input')[0].click()")
    assert_close(page, overlay_map(image, last[2, 0]))
    page.evaluate("document.querySelectorAll('.ktx-overlay input')[0].click()")

    click_patch(page, 1, 4)
    query = last[2, 1 + COLUMNS + 4]
    assert_close(page, overlay_map(image, query, smooth=False))
    assert "head 2: attention of the patch in row 1, column 4." in page.evaluate(TITLE)
    assert f"row 1, column 4: {100 * query[1, 4]:.1f}"[:19] in page.evaluate(TITLE)

    page.evaluate("document.querySelectorAll('.ktx-overlay input')[1].click()")
    order = np.argsort(-query.ravel())
    count = int(np.searchsorted(np.cumsum(query.ravel()[order]), 0.6 * query.sum()) + 1)
    mask = np.zeros(ROWS * COLUMNS, bool)
    mask[order[:count]] = True
    assert_close(page, overlay_mask(image, mask.reshape(ROWS, COLUMNS)))
    assert f"the {count} of 24 patches" in page.evaluate(TITLE)
    assert not page.problems


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1300, True), (360, False)])
def test_page_fits_its_window(page: Page, tmp_path: Path, width: int, dark: bool):
    fragment = fragment_of(photograph(), attentions(), GRID)
    open_page(page, tmp_path / "page.html", fragment, width=width, dark=dark)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert not page.problems


@needs_chromium
@pytest.mark.parametrize("registers", [0, 1, 2])
def test_image_without_class_token(page: Page, tmp_path: Path, registers: int):
    grid = PatchGrid(ROWS, COLUMNS, registers, registers=registers)
    open_page(page, tmp_path / "page.html", fragment_of(photograph(), attentions(grid), grid))
    received = attentions(grid)[-1][:, registers:, registers:].mean(axis=(0, 1)).reshape(ROWS, COLUMNS)
    assert_close(page, overlay_map(photograph(), received, smooth=False))
    title = page.evaluate(TITLE)
    assert "attention of all patches, on average." in title and "class" not in title
    rest = {0: "patches.", 1: "the rest on the register.", 2: "the rest on the 2 registers."}
    assert title.endswith(rest[registers])
    button = "document.querySelector('.ktx-overlay .controls button').textContent"
    assert page.evaluate(button) == "All patches"
    assert not page.problems


@needs_chromium
def test_map_of_a_part_of_the_image(page: Page, tmp_path: Path):
    covered = (0.75, 0.9)
    grid = PatchGrid(ROWS, COLUMNS, 1, covered)
    open_page(page, tmp_path / "page.html", fragment_of(photograph(), attentions(), grid))
    maps = attentions()[-1][:, :, 1:].mean(axis=0).reshape(-1, ROWS, COLUMNS)
    assert_close(page, overlay_map(photograph(), maps[0], smooth=False, covered=covered))
    click_patch(page, 1.5 * covered[0] - 0.5, 4.5 * covered[1] - 0.5)
    assert "attention of the patch in row 1, column 4." in page.evaluate(TITLE)
    assert_close(page, overlay_map(photograph(), maps[1 + COLUMNS + 4], smooth=False, covered=covered))
    click_patch(page, ROWS - 0.6, 1)  # below the patches
    assert "row 1, column 4" in page.evaluate(TITLE)
    assert not page.problems


def test_photographs_in_pages():
    assert embedded_photograph(np.zeros((600, 1800, 3), "uint8")).shape == (300, 900, 3)
    digit = np.arange(64, dtype="uint8").reshape(8, 8)
    enlarged = embedded_photograph(digit)
    assert enlarged.shape == (300, 300, 3)
    np.testing.assert_array_equal(enlarged[18::38, 18::38, 0][:7, :7], digit[:7, :7])


def test_maps_of_the_class_token_only():
    complete = query_maps(attentions()[0], GRID)
    np.testing.assert_array_equal(complete, attentions()[0][:, :, 1:])
    np.testing.assert_array_equal(query_maps(attentions()[0], GRID, complete=False), complete[:, :1])
    assert '"queries": 1,' in overlay_fragment(photograph(), [complete[:, :1]], GRID)


def test_invalid_shapes_raise():
    with pytest.raises(ConfigError, match=r"\(3, 25, 25\).* 26 keys"):
        query_maps(attentions()[0], PatchGrid(ROWS, COLUMNS, 2))
