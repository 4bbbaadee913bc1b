"""Figures of texts: which token attends to which, and tokens in the color of a score."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tx.errors import ConfigError
from keras_tx.inspect.figures.canvas import (
    DIVERGING,
    SEQUENTIAL,
    FigurePath,
    check_figure_path,
    new_figure,
    paint,
    write_figure,
)

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

LABELS = 60  # tokens of an axis; of more, every second, third ... has its label
IN_GRID = 24  # as LABELS, where a figure has several maps
CELL = 0.22  # inches of a token in a map
LINE = 92  # characters of a line of text
CHARACTER = 0.0867  # inches, of DejaVu Sans Mono at 10 points: 13 pixels of 150 per inch
WHITE_TO_BLUE = "Blues"  # tokens without a score are white, and the text stays readable


def draw_token_attention(
    attention: Any,
    queries: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    head: int | str | None = None,
    labels: tuple[str, str] = ("query", "key"),
    path: FigurePath = None,
) -> Figure:
    """Draws which token attends to which, as a heat map with a row per query: of each head, one, or the mean.

    Args:
        attention: array (heads, queries, keys), of one layer and one text.
        queries: the tokens that attend.
        keys: the tokens that are attended to; by default the queries.
        head: the index of a head, or "mean"; by default all heads in a grid.
        labels: names of the rows and columns.
        path: of a PNG, SVG or HTML file; None writes none.

    Returns:
        The figure.

    Raises:
        ConfigError: if the shapes do not agree, the head does not exist, or the path cannot be written.

    Example:

    >>> causal = np.tril(np.ones((2, 3, 3))) / np.array([1, 2, 3])[:, None]
    >>> figure = draw_token_attention(causal, ["Once", " upon", " a"], head="mean")
    """
    check_figure_path(path)
    keys = queries if keys is None else keys
    maps = _maps(attention, (len(queries), len(keys)), head)
    columns = math.ceil(math.sqrt(len(maps)))
    rows = math.ceil(len(maps) / columns)
    single = len(maps) == 1
    cell = CELL if single else min(0.13, 2.4 / max(len(queries), len(keys)))
    longest = max(_width(token) for token in [*queries, *keys])
    margin = 0.09 * min(longest, 20)
    figure = new_figure(
        1.5 + margin + columns * max(1.2, cell * min(len(keys), 150)),
        0.9 + margin + rows * max(0.8, 0.3 + cell * min(len(queries), 150)),
    )
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    most = max(float(maps.max()), 1e-9)
    image = None
    for index, axes in enumerate(grid.flat):
        if index >= len(maps):
            axes.set_axis_off()
            continue
        image = axes.imshow(maps[index], cmap=SEQUENTIAL, vmin=0, vmax=most, interpolation="nearest")
        axes.set_title(
            f"head {index if head is None else head}" if head != "mean" else "mean of heads", fontsize=9
        )
        _name_tokens(axes.yaxis, queries, LABELS if single else IN_GRID)
        _name_tokens(axes.xaxis, keys, LABELS if single else IN_GRID)
        axes.tick_params(axis="x", rotation=90)
        axes.label_outer()
        axes.tick_params(labelbottom=index + columns >= len(maps))  # the lowest map of its column
    for axes in grid.flat:
        for text in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            text.set_parse_math(False)  # a token may have dollar signs
    figure.supylabel(labels[0], fontsize=10)
    figure.supxlabel(labels[1], fontsize=10)
    assert image is not None
    figure.colorbar(image, ax=grid, label="attention weight", shrink=0.8)
    return write_figure(figure, path)


def draw_token_scores(
    tokens: Sequence[str], scores: Any, *, label: str = "score", path: FigurePath = None
) -> Figure:
    """Draws a text whose tokens have the color of a score, such as attention or an attribution.

    Positive scores are blue, or red if there are also negative ones, which are then blue; 0 is white.

    Args:
        tokens: the tokens of a text.
        scores: a number for each token.
        label: name of the scores, with their unit if they have one.
        path: of a PNG, SVG or HTML file; None writes none.

    Returns:
        The figure.

    Raises:
        ConfigError: if the numbers of tokens and scores differ, a score is not finite, or the path cannot be
            written.

    Example:

    >>> figure = draw_token_scores(["a", "bad", "film"], [0.1, -0.8, 0.0], label="attribution")
    """
    check_figure_path(path)
    values = np.asarray(scores, "float64")
    if values.shape != (len(tokens),) or not len(tokens):
        raise ConfigError(f"scores has the shape {values.shape}, but there are {len(tokens)} tokens.")
    if not np.isfinite(values).all():
        raise ConfigError("scores has NaN or infinite values, expected finite ones.")
    signed = bool(values.min() < 0)
    most = float(np.abs(values).max()) or 1.0
    limits = (-most if signed else 0.0, most)
    colors = DIVERGING if signed else WHITE_TO_BLUE
    places, count = _places(tokens)
    below = 0.7  # inches for the color bar
    width, height = CHARACTER * (LINE + 4), 0.29 * count + below + 0.1
    figure = new_figure(width, height)
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    figure.set_layout_engine("none")  # a unit of the axes is a character
    axes = figure.add_axes((0, below / height, 1, 1 - (below + 0.1) / height))
    axes.set(xlim=(-2, LINE + 2), ylim=(count, 0))
    axes.set_axis_off()
    for (line, column), token, color in zip(places, tokens, paint(values, limits, colors), strict=True):
        text = _shown(token)
        box = Rectangle((column - 0.2, line + 0.08), _width(text) + 0.4, 0.84, color=color / 255, linewidth=0)
        axes.add_patch(box)
        dark = float(color @ (0.2126, 0.7152, 0.0722)) < 120
        style = {"family": "monospace", "fontsize": 10, "color": "white" if dark else "black"}
        axes.text(column, line + 0.5, text, va="center_baseline", parse_math=False, **style)
    bar = figure.add_axes((0.025, 0.38 / height, min(0.5, 3 / width), 0.13 / height))
    figure.colorbar(ScalarMappable(Normalize(*limits), colors), cax=bar, orientation="horizontal")
    bar.set_title(label, fontsize=9, loc="left", pad=3, parse_math=False)
    bar.tick_params(labelsize=8)
    return write_figure(figure, path)


def _maps(attention: Any, shape: tuple[int, int], head: int | str | None) -> np.ndarray:
    """The maps to draw: (maps, queries, keys)."""
    array = np.asarray(attention, "float32")
    if array.ndim != 3 or array.shape[1:] != shape or not array.size:
        raise ConfigError(
            f"attention has the shape {array.shape}, expected (heads, queries, keys) = (heads, {shape[0]}, "
            f"{shape[1]}) for these tokens."
        )
    if head is None:
        return array
    if head == "mean":
        return array.mean(axis=0, keepdims=True)
    if isinstance(head, bool) or not isinstance(head, int | np.integer) or not 0 <= head < len(array):
        raise ConfigError(f"head is {head!r}, expected an index from 0 to {len(array) - 1} or 'mean'.")
    return array[int(head)][None]


def _name_tokens(axis: Axis, tokens: Sequence[str], most: int) -> None:
    step = math.ceil(len(tokens) / most)
    axis.set_ticks(range(0, len(tokens), step), [_shown(token) for token in tokens[::step]], fontsize=8)


def _shown(token: str) -> str:
    token = token.replace("\n", "\u21b5").replace("\t", "\u21e5")
    return token if token.strip() else token.replace(" ", "\u2423") or "\u2205"


def _width(text: str) -> int:
    """Characters of a monospaced font."""
    return sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in text)


def _places(tokens: Sequence[str]) -> tuple[list[tuple[int, int]], int]:
    """The line and column of each token, and the number of lines."""
    places, line, column = [], 0, 0
    for token in tokens:
        width = _width(_shown(token))
        if column and column + width > LINE:
            line, column = line + 1, 0
        places.append((line, column))
        column += width + 1
    return places, line + 1
