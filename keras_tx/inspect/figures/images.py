"""Maps over a photograph: attention of heads, masks, reference points, rollout, relevance.

A map is an array (rows, columns): a value per patch, or per pixel of the model's input. The image transform
of a model resizes the whole photograph, whatever its aspect is, so a map covers the whole photograph too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageFilter

from keras_tx.errors import ConfigError, ImageError
from keras_tx.inspect.figures.canvas import (
    DIVERGING,
    SEQUENTIAL,
    FigurePath,
    check_figure_path,
    new_figure,
    paint,
    write_figure,
)
from keras_tx.processing.image_file import read_image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Limits = tuple[float, float] | None
Shares = tuple[float, float]

WHOLE: Shares = (1.0, 1.0)

# Of an overlay: share of the map's colors, of the photograph's details, and of its shades.
COLOR, DETAIL, SHADE = 0.75, 0.6, 0.12
BLUR = 0.04  # of the longer side; smaller structures are details
OUTSIDE = 0.25  # contrast of a photograph outside of a mask
PANEL = 2.2  # inches, the longer side of a photograph beside others
THUMBNAIL = 64  # pixels, the longer side of a map in a table of layers and heads
GAP = 4  # pixels between them
# Okabe and Ito's colors, which the color-blind distinguish, and a shape for each.
POINTS = (("#E69F00", "o"), ("#56B4E9", "s"), ("#009E73", "D"), ("#F0E442", "^"), ("#0072B2", "v"))


def read_photograph(image: Any) -> np.ndarray:
    """Returns an image as an array (height, width, 3), uint8, at its own size.

    Args:
        image: path, bytes, open file or Pillow image, which is rotated by its EXIF tag; or an array (height,
            width) or (height, width, 1 or 3), uint8 or float in 0..1.

    Raises:
        ImageError: if the image cannot be read, or has another shape or other values.
    """
    if not isinstance(image, np.ndarray):
        name = repr(os.fspath(image)) if isinstance(image, str | os.PathLike) else "the image"
        return np.asarray(read_image(image, "RGB", name))
    array = image[:, :, None] if image.ndim == 2 else image
    if array.ndim != 3 or array.shape[2] not in (1, 3) or not array.size:
        raise ImageError(f"image is an array of shape {image.shape}, expected (height, width, 3).")
    if array.dtype != np.uint8:
        low, high = float(array.min()), float(array.max())
        if array.dtype.kind != "f" or not (low >= 0 and high <= 1):
            raise ImageError(
                f"image has {array.dtype} values from {low:g} to {high:g}, expected uint8, or float in 0..1."
            )
        array = np.rint(array * 255).astype("uint8")
    return np.repeat(array, 3 // array.shape[2], axis=2)


def enlarge_map(
    map: Any, size: tuple[int, int], *, smooth: bool = True, covered: Shares = WHOLE
) -> np.ndarray:
    """Returns a map at the size of the photograph, float32.

    Args:
        map: array (rows, columns).
        size: (height, width) of the photograph.
        smooth: interpolates between the centers of patches; otherwise each patch has one value.
        covered: shares of the height and width that the map covers, as in `PatchGrid`; the rest is 0.

    Raises:
        ConfigError: if the map is not an array of two axes with finite values, or a share is not in 0..1.

    Example:

    >>> enlarge_map([[0.0, 1.0]], (1, 4), smooth=False)
    array([[0., 0., 1., 1.]], dtype=float32)
    """
    array = np.asarray(map, "float32")
    if array.ndim != 2 or not array.size:
        raise ConfigError(f"The map has the shape {array.shape}, expected (rows, columns).")
    if not np.isfinite(array).all():
        raise ConfigError("The map has values that are infinite or NaN.")
    if not all(0 < share <= 1 for share in covered):
        raise ConfigError(f"covered is {covered!r}, expected two shares above 0 and up to 1.")
    resample = Image.Resampling.BILINEAR if smooth else Image.Resampling.NEAREST
    height, width = (max(1, round(side * share)) for side, share in zip(size, covered, strict=True))
    enlarged = np.zeros(size, "float32")
    enlarged[:height, :width] = np.asarray(Image.fromarray(array).resize((width, height), resample))
    return enlarged


def overlay_map(
    image: Any,
    map: Any,
    *,
    limits: Limits = None,
    colors: str | None = None,
    smooth: bool = True,
    covered: Shares = WHOLE,
) -> np.ndarray:
    """Returns a map in color with the details of a photograph, (height, width, 3), uint8.

    The lightness of the colors stays that of the map, so that the overlay is readable in gray.

    Args:
        image: the photograph, as in `read_photograph`.
        map: array (rows, columns).
        limits: values of the first and the last color; by default 0 and the largest value, or a range around
            0 if there are negative values.
        colors: name of a color map of matplotlib; by default viridis, or RdBu_r if there are negative values.
        smooth, covered: as in `enlarge_map`.

    Raises:
        ConfigError: if the map is not an array of two axes with finite values.
        ImageError: if the image cannot be read.
    """
    photograph = read_photograph(image)
    values = enlarge_map(map, photograph.shape[:2], smooth=smooth, covered=covered)
    painted = paint(values, _limits(map, limits), colors or _colors(map))
    blended = COLOR * painted + photograph_details(photograph)[:, :, None]
    return np.clip(np.rint(blended), 0, 255).astype("uint8")


def photograph_details(photograph: np.ndarray) -> np.ndarray:
    """Returns the details of a photograph, with few of its shades, which an overlay adds to its colors."""
    gray = Image.fromarray(photograph).convert("L")
    shades = np.asarray(gray.filter(ImageFilter.GaussianBlur(BLUR * max(gray.size))), "float32")
    return DETAIL * (np.asarray(gray, "float32") - shades) + SHADE * (shades - 128) + (1 - COLOR) * 128


def overlay_mask(image: Any, mask: Any, *, covered: Shares = WHOLE) -> np.ndarray:
    """Returns a photograph in color inside a mask, pale and gray outside, (height, width, 3), uint8.

    Args:
        image: the photograph, as in `read_photograph`.
        mask: boolean array (rows, columns), such as the patches with 60 % of the attention.
        covered: as in `enlarge_map`.
    """
    photograph = read_photograph(image)
    inside = enlarge_map(mask, photograph.shape[:2], smooth=False, covered=covered)[:, :, None] > 0.5
    gray = np.asarray(Image.fromarray(photograph).convert("L"), "float32")[:, :, None]
    return np.rint(np.where(inside, photograph, 255 - OUTSIDE * (255 - gray))).astype("uint8")


def draw_overlay(
    image: Any,
    map: Any,
    *,
    limits: Limits = None,
    colors: str | None = None,
    smooth: bool = True,
    covered: Shares = WHOLE,
    path: FigurePath = None,
) -> Figure:
    """Draws a map over a photograph. The PNG has the size of the photograph, without axes and margins.

    Args:
        image, map, limits, colors, smooth, covered: as in `overlay_map`.
        path: of a .png, .svg or .html file to write.

    Returns:
        A matplotlib figure.

    Raises:
        ConfigError: if the map has another shape, or the file cannot be written.
        ImageError: if the image cannot be read.
    """
    check_figure_path(path)
    overlay = overlay_map(image, map, limits=limits, colors=colors, smooth=smooth, covered=covered)
    height, width = overlay.shape[:2]
    figure = new_figure(width / 100, height / 100, dpi=100)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(overlay, interpolation="nearest", aspect="auto")
    axes.set_axis_off()
    return write_figure(figure, path)


def draw_maps(
    image: Any,
    maps: Any,
    *,
    titles: Sequence[str] | None = None,
    masks: Any = None,
    limits: Limits = None,
    smooth: bool = True,
    covered: Shares = WHOLE,
    columns: int | None = None,
    path: FigurePath = None,
) -> Figure:
    """Draws several maps over a photograph, such as the heads of a layer, after the photograph itself.

    Args:
        image: the photograph, as in `read_photograph`.
        maps: array (maps, rows, columns).
        titles: a title for each map; by default "head 0", "head 1" ...
        masks: boolean array (maps, rows, columns), drawn as DINO does: each overlay is followed by the
            photograph inside the mask.
        limits: values of the first and the last color; by default each map has its own, and its largest
            value is in its title.
        smooth, covered: as in `enlarge_map`.
        columns: number of columns; by default few panels of the last row are missing.
        path: of a .png, .svg or .html file to write.

    Returns:
        A matplotlib figure.

    Raises:
        ConfigError: if maps, titles or masks have other shapes, or the file cannot be written.
        ImageError: if the image cannot be read.
    """
    check_figure_path(path)
    photograph = read_photograph(image)
    maps, titles = _stack_of_maps(maps), _titles(titles, len(maps))
    if limits is None:
        largest = np.abs(maps).max(axis=(1, 2))
        titles = [f"{title}\nlargest {value:.3g}" for title, value in zip(titles, largest, strict=True)]
    overlays = [overlay_map(photograph, map, limits=limits, smooth=smooth, covered=covered) for map in maps]
    panels = list(zip(titles, overlays, strict=True))
    if masks is None:
        panels.insert(0, ("image", photograph))
    else:
        masks = _checked_masks(masks, maps)
        inside = [
            (_share(map, mask), overlay_mask(photograph, mask, covered=covered))
            for map, mask in zip(maps, masks, strict=True)
        ]
        panels = [panel for pair in zip(panels, inside, strict=True) for panel in pair]
    figure = _draw_panels(panels, columns, step=1 if masks is None else 2)
    _add_color_bar(figure, maps, limits)
    return write_figure(figure, path)


def draw_reference_points(
    image: Any,
    points: Sequence[tuple[int, int]],
    maps: Any,
    *,
    smooth: bool = True,
    covered: Shares = WHOLE,
    path: FigurePath = None,
) -> Figure:
    """Draws the patches of a photograph to which chosen patches attend, as DINO's figure of reference points.

    Args:
        image: the photograph, as in `read_photograph`.
        points: (row, column) of each chosen patch, from 0.
        maps: array (points, rows, columns), the map of each point.
        smooth, covered: as in `enlarge_map`.
        path: of a .png, .svg or .html file to write.

    Returns:
        A matplotlib figure.

    Raises:
        ConfigError: if points and maps do not agree, or the file cannot be written.
        ImageError: if the image cannot be read.
    """
    check_figure_path(path)
    photograph, maps = read_photograph(image), _stack_of_maps(maps)
    if len(points) != len(maps):
        raise ConfigError(f"points has {len(points)} patches, but maps has {len(maps)} maps.")
    rows, columns = maps.shape[1:]
    for row, column in points:
        if not (0 <= row < rows and 0 <= column < columns):
            raise ConfigError(f"points has {(row, column)}, but the grid has {rows} x {columns} patches.")
    titles = [f"{i + 1}: row {row}, column {column}" for i, (row, column) in enumerate(points)]
    overlays = [overlay_map(photograph, map, smooth=smooth, covered=covered) for map in maps]
    figure = _draw_panels([("image", photograph), *zip(titles, overlays, strict=True)])
    height, width = (side * share for side, share in zip(photograph.shape, covered, strict=False))
    first, *others = figure.axes
    for i, (row, column) in enumerate(points):
        color, marker = POINTS[i % len(POINTS)]
        at = ((column + 0.5) / columns * width - 0.5, (row + 0.5) / rows * height - 0.5)
        edge = {"markeredgecolor": "black", "markeredgewidth": 1.5, "clip_on": False}
        for axes in (first, others[i]):
            axes.plot(*at, marker, color=color, markersize=9, **edge)
        offset = (7, 7) if column < columns * 0.85 else (-14, 7)
        label = first.annotate(str(i + 1), at, xytext=offset, textcoords="offset points", weight="bold")
        label.set_bbox({"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"})
    _add_color_bar(figure, maps, None)
    return write_figure(figure, path)


def draw_layers(image: Any, maps: Any, *, path: FigurePath = None) -> Figure:
    """Draws a table of small maps: a row per layer, a column per head.

    Args:
        image: the photograph, as in `read_photograph`; its shape is that of the maps.
        maps: array (layers, heads, rows, columns). Each map has its own colors, from 0 to its largest value.
        path: of a .png, .svg or .html file to write.

    Returns:
        A matplotlib figure.

    Raises:
        ConfigError: if maps has another shape, or the file cannot be written.
        ImageError: if the image cannot be read.
    """
    check_figure_path(path)
    photograph, maps = read_photograph(image), np.asarray(maps, "float32")
    if maps.ndim != 4:
        raise ConfigError(f"maps has the shape {maps.shape}, expected (layers, heads, rows, columns).")
    layers, heads = maps.shape[:2]
    height, width = _fitted(photograph.shape[:2], THUMBNAIL)
    table = np.full((layers * (height + GAP) - GAP, heads * (width + GAP) - GAP, 3), 255, "uint8")
    for layer, head in np.ndindex(layers, heads):
        map = maps[layer, head]
        painted = paint(enlarge_map(map, (height, width), smooth=False), _limits(map, None), _colors(map))
        y, x = layer * (height + GAP), head * (width + GAP)
        table[y : y + height, x : x + width] = np.rint(painted)
    scale = max(1.0, 4.5 / (table.shape[1] / 110))  # at least 4.5 inches wide
    figure = new_figure(table.shape[1] / 110 * scale + 0.8, table.shape[0] / 110 * scale + 0.8)
    axes = figure.add_subplot()
    axes.imshow(table, interpolation="nearest")
    axes.set_xticks(np.arange(heads) * (width + GAP) + width / 2, [str(i) for i in range(heads)])
    axes.set_yticks(np.arange(layers) * (height + GAP) + height / 2, [str(i) for i in range(layers)])
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set(xlabel="head", ylabel="layer")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return write_figure(figure, path)


def _draw_panels(
    panels: Sequence[tuple[str, np.ndarray]], columns: int | None = None, *, step: int = 1
) -> Figure:
    """Images of one size with their titles, in rows; `step` panels stay together."""
    height, width = (side / max(panels[0][1].shape[:2]) * PANEL for side in panels[0][1].shape[:2])
    if columns is None:
        square = math.ceil(math.sqrt(2 * len(panels) / step**2 * height / width))
        near = range(max(1, square - 1), square + 3)
        columns = step * min(near, key=lambda count: (-len(panels) // step % count, abs(count - square)))
        columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(columns * (width + 0.1), rows * (height + 0.45) + 0.6)
    for i, (title, image) in enumerate(panels):
        axes = figure.add_subplot(rows, columns, i + 1)
        axes.imshow(image)
        axes.set_title(title, fontsize=8)
        axes.set_axis_off()
    return figure


def _add_color_bar(figure: Figure, maps: np.ndarray, limits: Limits) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    signed = bool(maps.min() < 0)
    own = (-1.0, 1.0) if signed else (0.0, 1.0)
    colors = ScalarMappable(Normalize(*(own if limits is None else limits)), _colors(maps))
    panels = figure.axes
    bar = figure.colorbar(colors, ax=panels, location="bottom", fraction=0.04, aspect=50, pad=0.02)
    bar.set_label("value / largest value of the map" if limits is None else "value", fontsize=8)
    bar.ax.tick_params(labelsize=8)


def _limits(map: Any, limits: Limits) -> tuple[float, float]:
    if limits is not None:
        return limits
    array = np.asarray(map)
    largest = float(np.abs(array).max())
    return (-largest if array.min() < 0 else 0.0), largest


def _colors(map: Any) -> str:
    return DIVERGING if np.asarray(map).min() < 0 else SEQUENTIAL


def _stack_of_maps(maps: Any) -> np.ndarray:
    array = np.asarray(maps, "float32")
    if array.ndim != 3 or not array.size:
        raise ConfigError(f"maps has the shape {array.shape}, expected (maps, rows, columns).")
    return array


def _titles(titles: Sequence[str] | None, count: int) -> list[str]:
    titles = [f"head {i}" for i in range(count)] if titles is None else list(titles)
    if len(titles) != count:
        raise ConfigError(f"titles has {len(titles)} texts, but maps has {count} maps.")
    return titles


def _checked_masks(masks: Any, maps: np.ndarray) -> np.ndarray:
    array = np.asarray(masks, bool)
    if array.shape != maps.shape:
        raise ConfigError(f"masks has the shape {array.shape}, expected {maps.shape} as maps.")
    return array


def _share(map: np.ndarray, mask: np.ndarray) -> str:
    share = 100 * map[mask].sum() / (map.sum() or 1)
    return f"{np.count_nonzero(mask)} of {mask.size} patches,\n{share:.0f} % of the sum"


def _fitted(size: tuple[int, ...], longer: int) -> tuple[int, int]:
    height, width = (max(1, round(side / max(size) * longer)) for side in size)
    return height, width
