"""Figures of matrices: similarity of layers and positions, attention distances, filters."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tx.errors import ConfigError
from keras_tx.inspect.figures.canvas import SEQUENTIAL, check_figure_path, new_figure, write_figure
from keras_tx.inspect.similarity import LayerSimilarity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Path = str | os.PathLike[str] | None

SIDE = 3.6  # inches of the shorter side of a matrix of layers; the longer one is at most twice as long
LABELS_PER_INCH = 9  # where names do not fit, every second, third ... layer has its name


def draw_layer_similarity(
    similarity: LayerSimilarity, *, labels: tuple[str, str] = ("layers", "layers"), path: Path = None
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


def draw_attention_distance(
    distances: Any, *, label: str = "mean attention distance (pixels)", path: Path = None
) -> Figure:
    """Draws the mean attention distance of each head over the depth, as in Dosovitskiy et al., figure 7.

    A dot is a head; the line connects the means of the layers.

    Args:
        distances: (layers, heads), or one array (heads,) per layer.
        label: of the vertical axis; with another one, the figure shows another value of each head, such as
            its entropy in nats.
        path: of a PNG, SVG or HTML file; None writes none.

    Returns:
        The figure.

    Raises:
        ConfigError: if the distances have another shape, or the path cannot be written.

    Example:

    >>> figure = draw_attention_distance(np.random.default_rng(0).uniform(0, 120, (12, 12)))
    """
    from matplotlib.ticker import MaxNLocator

    check_figure_path(path)
    layers = [np.asarray(layer, "float64") for layer in distances]
    if not layers or any(layer.ndim != 1 or not layer.size for layer in layers):
        raise ConfigError(f"distances has {len(layers)} layers, expected one array (heads,) for each layer.")
    figure = new_figure(5, 3.5)
    axes = figure.add_subplot()
    depth = np.arange(len(layers))
    axes.plot(depth, [layer.mean() for layer in layers], color="0.6", linewidth=1, zorder=1, label="mean")
    axes.scatter(
        np.repeat(depth, [len(layer) for layer in layers]),
        np.concatenate(layers),
        s=18,
        color="tab:blue",
        alpha=0.75,
        linewidths=0,
        label="head",
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("layer")
    axes.set_ylabel(label)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return write_figure(figure, path)


def draw_position_similarity(similarity: Any, *, path: Path = None) -> Figure:
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


def draw_filters(filters: Any, *, columns: int = 7, path: Path = None) -> Figure:
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
