"""Figures of matrices: similarity of layers and positions, filters, receptive fields."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tx.errors import ConfigError
from keras_tx.inspect.figures.canvas import (
    SEQUENTIAL,
    FigurePath,
    check_figure_path,
    new_figure,
    write_figure,
)
from keras_tx.inspect.receptive_field import central_square, field_center
from keras_tx.inspect.similarity import LayerSimilarity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE = 3.6  # inches of the shorter side of a matrix of layers; the longer one is at most twice as long
SMALLEST_GRADIENT = 1e-3  # of the largest one; below it the color of a receptive field does not change
LABELS_PER_INCH = 9  # where names do not fit, every second, third ... layer has its name


def draw_layer_similarity(
    similarity: LayerSimilarity, *, labels: tuple[str, str] = ("layers", "layers"), path: FigurePath = None
) -> Figure:
    """Draws the CKA of layers as a heat map with a color bar, the first layer at the bottom left.

    Values that are not defined (NaN) are gray.

    Args:
        similarity: result of `layer_similarity`.
        labels: names of the first model (the rows) and of the second (the columns).
        path: of a PNG, SVG or HTML file; None writes none.

    Returns:
        The figure.

    Raises:
        ConfigError: if the path cannot be written.

    Example:

    >>> from keras_tx.inspect.similarity import LayerSimilarity
    >>> result = LayerSimilarity(np.eye(2), ("block_0", "block_1"), ("block_0", "block_1"))
    >>> figure = draw_layer_similarity(result, labels=("ViT", "ViT"))
    """
    check_figure_path(path)
    matrix = np.asarray(similarity.matrix)
    rows, columns = matrix.shape
    ratio = min(max(columns / rows, 0.5), 2)
    width, height = SIDE * max(ratio, 1), SIDE * max(1 / ratio, 1)
    figure = new_figure(width + 2.4, height + 1.4)
    axes = figure.add_subplot()
    axes.set_facecolor("0.8")
    image = axes.imshow(matrix, cmap=SEQUENTIAL, vmin=0, vmax=1, origin="lower", interpolation="nearest")
    axes.set_aspect("equal" if ratio == columns / rows else "auto")
    _set_names(axes.yaxis, similarity.layers_a, height)
    _set_names(axes.xaxis, similarity.layers_b, width)
    axes.tick_params(axis="x", rotation=90)
    axes.set_ylabel(labels[0])
    axes.set_xlabel(labels[1])
    low = np.nanmin(matrix, initial=0) < 0
    figure.colorbar(image, ax=axes, label="linear CKA", extend="min" if low else "neither", shrink=0.8)
    return write_figure(figure, path)


def _set_names(axis: Any, names: Sequence[str], inches: float) -> None:
    step = math.ceil(len(names) / (LABELS_PER_INCH * inches))
    axis.set_ticks(range(0, len(names), step), names[::step], fontsize=8 if len(names) <= 24 else 6)


def draw_position_similarity(similarity: Any, *, path: FigurePath = None) -> Figure:
    """Draws the similarity of positional embeddings, as in Dosovitskiy et al., figure 7.

    For a grid, each position has a map of its similarity with all positions, drawn where the position is.
    For a sequence, there is one map. The colors range from the smallest value to 1.

    Args:
        similarity: result of `position_similarity`, (rows, columns, rows, columns) or (length, length).
        path: of a PNG, SVG or HTML file; None writes none.

    Returns:
        The figure.

    Raises:
        ConfigError: if the array has another shape, or the path cannot be written.

    Example:

    >>> figure = draw_position_similarity(np.eye(4).reshape(2, 2, 2, 2))
    """
    check_figure_path(path)
    similarity = np.asarray(similarity)
    half = similarity.ndim // 2
    if similarity.ndim not in (2, 4) or similarity.shape[:half] != similarity.shape[half:]:
        raise ConfigError(
            f"similarity has the shape {similarity.shape}, expected (rows, columns, rows, columns) or "
            "(length, length)."
        )
    if half == 1:
        figure = new_figure(4.6, 3.8)
        axes = figure.add_subplot()
        image = axes.imshow(
            similarity, cmap=SEQUENTIAL, vmin=similarity.min(), vmax=1, interpolation="nearest"
        )
        axes.set_xlabel("position")
        axes.set_ylabel("position")
    else:
        rows, columns = similarity.shape[:2]
        maps = np.full((rows * (rows + 1) - 1, columns * (columns + 1) - 1), np.nan)  # 1 cell of space
        for row, column in np.ndindex(rows, columns):
            top, left = row * (rows + 1), column * (columns + 1)
            maps[top : top + rows, left : left + columns] = similarity[row, column]
        figure = new_figure(*_size(*maps.shape))
        axes = figure.add_subplot()
        image = axes.imshow(maps, cmap=SEQUENTIAL, vmin=similarity.min(), vmax=1, interpolation="nearest")
        _set_positions(axes.yaxis, rows)
        _set_positions(axes.xaxis, columns)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("column of the patch")
        axes.set_ylabel("row of the patch")
    figure.colorbar(image, ax=axes, label="cosine similarity", shrink=0.8)
    return write_figure(figure, path)


def _set_positions(axis: Any, count: int) -> None:
    """Numbers the maps from 1, at most about 14 of them."""
    step = math.ceil(count / 14)
    numbers = range(0, count, step)
    axis.set_ticks([n * (count + 1) + (count - 1) / 2 for n in numbers], [str(n + 1) for n in numbers])


def _size(height: int, width: int) -> tuple[float, float]:
    """Width and height in inches of a figure of this ratio, with a color bar."""
    ratio = width / height
    return (1.2 + 4.6 * min(ratio, 1.5), 0.6 + 4.6 * min(1 / ratio, 1.5))


def draw_filters(filters: Any, *, columns: int = 7, path: FigurePath = None) -> Figure:
    """Draws filters as a grid of images, row by row, as in the left part of Dosovitskiy et al., figure 7.

    Each filter is scaled by its largest magnitude, so that gray is 0. Filters of three channels are in color,
    those of one channel in gray.

    Args:
        filters: (count, height, width, channels), such as the components of `principal_filters`.
        columns: number of filters in a row.
        path: of a PNG, SVG or HTML file; None writes none.

    Returns:
        The figure.

    Raises:
        ConfigError: if the filters have neither one nor three channels, or the path cannot be written.

    Example:

    >>> figure = draw_filters(np.random.default_rng(0).standard_normal((28, 16, 16, 3)))
    """
    check_figure_path(path)
    filters = np.asarray(filters, "float64")
    if filters.ndim != 4 or filters.shape[-1] not in (1, 3) or not len(filters):
        raise ConfigError(
            f"filters has the shape {filters.shape}, expected (count, height, width, channels) with 1 or 3 "
            "channels."
        )
    if columns < 1:
        raise ConfigError(f"columns={columns}, expected 1 or more.")
    scale = np.abs(filters).max(axis=(1, 2, 3), keepdims=True)
    images = 0.5 + 0.5 * filters / np.where(scale == 0, 1, scale)
    columns = min(columns, len(images))
    rows = math.ceil(len(images) / columns)
    figure = new_figure(0.8 * columns, 0.8 * rows * filters.shape[1] / filters.shape[2])
    for index, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        axes.axis("off")
        if index < len(images):
            image = images[index] if images.shape[-1] == 3 else images[index, ..., 0]
            axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    return write_figure(figure, path)


def draw_receptive_fields(
    fields: Mapping[str, Any], *, share: float = 0.5, columns: int = 4, path: FigurePath = None
) -> Figure:
    """Draws effective receptive fields beside each other, such as those of a ViT and a CNN.

    Each field is divided by its largest value, and colors are logarithmic. A square around its center shows
    where a share of the field is; its side is in the title.

    Args:
        fields: results of `effective_receptive_field` by title.
        share: the share in the square.
        columns: number of fields in a row.
        path: of a PNG, SVG or HTML file; None writes none.

    Returns:
        The figure.

    Raises:
        ConfigError: if there are no fields, a field is 0 everywhere, or the path cannot be written.

    Example:

    >>> figure = draw_receptive_fields({"block_0": np.ones((8, 8)), "block_1": np.eye(8)})
    """
    check_figure_path(path)
    if not fields or columns < 1:
        raise ConfigError(
            f"There are {len(fields)} fields and columns={columns}, expected 1 or more of both."
        )
    sides = {title: central_square(field, share) for title, field in fields.items()}
    columns = min(columns, len(fields))
    rows = -(-len(fields) // columns)
    figure = new_figure(2.4 * columns + 1, 2.6 * rows)
    panels = figure.subplots(rows, columns, squeeze=False)
    image: Any = None
    for index, (axes, (title, field)) in enumerate(zip(panels.flat, fields.items(), strict=False)):
        field = np.asarray(field, "float64")
        image = axes.imshow(
            np.maximum(field / field.max(), SMALLEST_GRADIENT),
            cmap=SEQUENTIAL,
            norm="log",
            vmin=SMALLEST_GRADIENT,
            vmax=1,
            interpolation="nearest",
        )
        center, half = np.array(field_center(field)[::-1]), sides[title] / 2
        corners = center + half * np.array([(-1, -1), (-1, 1), (1, 1), (1, -1), (-1, -1)])
        (low, high), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        axes.plot(*corners.T, color="white", linewidth=1)
        axes.set(xlim=(low, high), ylim=(bottom, top))
        axes.set_title(f"{title}\n{share:.0%} in {sides[title]} pixels", fontsize=9)
        axes.tick_params(labelsize=7)
        if index % columns == 0:
            axes.set_ylabel("pixels", fontsize=8)
        if index >= len(fields) - columns:
            axes.set_xlabel("pixels", fontsize=8)
    for axes in panels.flat[len(fields) :]:
        axes.axis("off")
    label = "gradient, as a share of the largest"
    figure.colorbar(image, ax=panels.ravel().tolist(), label=label, extend="min", shrink=0.8)
    return write_figure(figure, path)
