"""Figures of curves: attention distances, deletion and insertion scores, attention at initialization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_tx.errors import ConfigError
from keras_tx.inspect.faithfulness import FaithfulnessCurve
from keras_tx.inspect.figures.canvas import FigurePath, check_figure_path, new_figure, write_figure
from keras_tx.inspect.initialization import AttentionStatistics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # of Okabe and Ito
STYLES = ("-", "--", "-.", ":")  # so that lines differ without color


def draw_attention_distance(
    distances: Any, *, label: str = "mean attention distance (pixels)", path: FigurePath = None
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


def draw_faithfulness(
    curves: Mapping[str, FaithfulnessCurve],
    *,
    labels: tuple[str, str] = ("share of deleted elements", "score"),
    path: FigurePath = None,
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
    statistics: Mapping[str, AttentionStatistics], *, label: str = "layer", path: FigurePath = None
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
