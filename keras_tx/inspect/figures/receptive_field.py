"""Figures of effective receptive fields."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tx.errors import ConfigError
from keras_tx.inspect.figures.canvas import SEQUENTIAL, check_figure_path, new_figure, write_figure
from keras_tx.inspect.receptive_field import central_square, field_center

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Path = str | os.PathLike[str] | None

SMALLEST = 1e-3  # of the largest gradient; below it the color does not change


def draw_receptive_fields(
    fields: Mapping[str, Any], *, share: float = 0.5, columns: int = 4, path: Path = None
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
    for index, axes in enumerate(panels.flat):
        if index >= len(fields):
            axes.axis("off")
            continue
        title, field = list(fields.items())[index]
        field = np.asarray(field, "float64")
        image = axes.imshow(
            np.maximum(field / field.max(), SMALLEST),
            cmap=SEQUENTIAL,
            norm="log",
            vmin=SMALLEST,
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
    label = "gradient, as a share of the largest"
    figure.colorbar(image, ax=panels.ravel().tolist(), label=label, extend="min", shrink=0.8)
    return write_figure(figure, path)
