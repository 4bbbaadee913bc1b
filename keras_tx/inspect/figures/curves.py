"""Figures of curves: deletion and insertion scores, and attention at initialization."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keras_tx.errors import ConfigError
from keras_tx.inspect.faithfulness import FaithfulnessCurve
from keras_tx.inspect.figures.canvas import check_figure_path, new_figure, write_figure
from keras_tx.inspect.initialization import AttentionStatistics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Path = str | os.PathLike[str] | None

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # of Okabe and Ito
STYLES = ("-", "--", "-.", ":")  # so that lines differ without color


def draw_faithfulness(
    curves: Mapping[str, FaithfulnessCurve],
    *,
    labels: tuple[str, str] = ("share of deleted elements", "score"),
    path: Path = None,
) -> Figure:
    """Draws deletion or insertion curves of several explanations, each with its area.

    Args:
        curves: results of `Faithfulness.deletion` or `Faithfulness.insertion` by the name of the explanation.
            The line is the mean over the examples.
        labels: of the horizontal and the vertical axis.
        path: of a PNG, SVG or HTML file; None writes none.

    Returns:
        The figure.

    Raises:
        ConfigError: if there are no curves, or the path cannot be written.

    Example:

    >>> import numpy as np
    >>> curve = FaithfulnessCurve(np.array([0.0, 0.5, 1.0]), np.array([[0.9, 0.2, 0.1]]))
    >>> figure = draw_faithfulness({"relevance": curve})
    """
    check_figure_path(path)
    if not curves:
        raise ConfigError("curves is empty, expected a curve for each explanation.")
    figure = new_figure(5, 3.5)
    axes = figure.add_subplot()
    for index, (name, curve) in enumerate(curves.items()):
        label = f"{name} (area {curve.area.mean():.3f})"
        axes.plot(curve.shares, curve.scores.mean(axis=0), label=label, **_line(index))
    axes.set_xlim(0, 1)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    figure.legend(loc="outside upper center", frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return write_figure(figure, path)


def draw_attention_statistics(
    statistics: Mapping[str, AttentionStatistics], *, label: str = "layer", path: Path = None
) -> Figure:
    """Draws entropy and gradients of attention, beside each other.

    Args:
        statistics: results of `head_width_statistics` or `model_statistics` by name, such as "scaled".
        label: of the horizontal axis, such as "width d of a head".
        path: of a PNG, SVG or HTML file; None writes none.

    Returns:
        The figure. The gradient is the median over queries, on a logarithmic axis.

    Raises:
        ConfigError: if there are no statistics, or their layers differ, or the path cannot be written.

    Example:

    >>> import numpy as np
    >>> values = np.array([3.7, 3.6])
    >>> scaled = AttentionStatistics([4, 16], values, values, values)
    >>> figure = draw_attention_statistics({"scaled": scaled})
    """
    check_figure_path(path)
    names = {tuple(one.layers) for one in statistics.values()}
    if len(names) != 1:
        raise ConfigError(f"statistics has {len(names)} different lists of layers, expected one.")
    (layers,) = names
    figure = new_figure(8, 3.5)
    panels: Any = figure.subplots(1, 2)
    for index, (name, one) in enumerate(statistics.items()):
        for axes, values in zip(panels, (one.entropy, one.median_gradient), strict=True):
            axes.plot(range(len(layers)), values, marker="o", markersize=4, label=name, **_line(index))
    for axes in panels:
        axes.set_xticks(
            range(len(layers)), list(map(str, layers)), rotation=90 if len(str(layers[0])) > 5 else 0
        )
        axes.set_xlabel(label)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("entropy (nats)")
    panels[1].set_yscale("log")
    panels[1].set_ylabel("norm of a query's gradient (median)")
    panels[0].legend(frameon=False, fontsize=8)
    return write_figure(figure, path)


def _line(index: int) -> dict[str, Any]:
    return {"color": COLORS[index % len(COLORS)], "linestyle": STYLES[index % len(STYLES)], "linewidth": 1.5}
