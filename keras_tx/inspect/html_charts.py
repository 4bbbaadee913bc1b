"""Line charts and a confusion matrix as elements of a page."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Callable, Sequence

import numpy as np

Points = list[tuple[float, float]]
Place = Callable[[float, float], tuple[float, float]]

WIDTH, HEIGHT = 760, 280
LEFT, RIGHT, TOP, BOTTOM = 64, 748, 14, 236
STYLES = ("", ' stroke-dasharray="7 4"', ' stroke-dasharray="2 4"')  # so that lines differ without color
MARKED = 40  # points of a line that are drawn as dots as well


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a chart: its name and its points."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def line_chart(lines: Sequence[Line], *, x_label: str, y_label: str) -> str:
    """Returns an SVG with lines; values that are not finite are left out.

    Args:
        lines: at most three.
        x_label: label of the horizontal axis, whose values are whole numbers.
        y_label: label of the values, for screen readers.
    """
    points = [
        [(x, y) for x, y in zip(line.x, line.y, strict=True) if math.isfinite(x) and math.isfinite(y)]
        for line in lines
    ]
    every = [point for line in points for point in line]
    if not every:
        return '<p class="report-faint">No values.</p>'
    x_ticks = ticks(min(x for x, _ in every), max(x for x, _ in every), whole=True)
    y_ticks = ticks(min(y for _, y in every), max(y for _, y in every))

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return LEFT + (RIGHT - LEFT) * across, BOTTOM - (BOTTOM - TOP) * up

    parts = _grid(x_ticks, y_ticks, at)
    for index, (line, known) in enumerate(zip(lines, points, strict=True)):
        parts += _drawn(index, html.escape(line.name), known, [at(x, y) for x, y in known])
    across, up = html.escape(x_label), html.escape(y_label)
    parts.append(f'<text x="{RIGHT}" y="{HEIGHT - 1}" text-anchor="end">{across}</text>')
    return (
        f'<div class="report-scroll"><svg class="report-chart" viewBox="0 0 {WIDTH} {HEIGHT + 6}" role="img" '
        f'aria-label="{up} over {across}">{"".join(parts)}</svg></div>'
    )


def _grid(x_ticks: list[float], y_ticks: list[float], at: Place) -> list[str]:
    parts = []
    for tick in y_ticks:
        _, y = at(x_ticks[0], tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y:.1f}" dy="4" text-anchor="end">{tick:.6g}</text>')
    for tick in x_ticks:
        x, _ = at(tick, y_ticks[0])
        anchor = "end" if x > RIGHT - 20 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{BOTTOM + 19}" text-anchor="{anchor}">{tick:,.6g}</text>')
    return parts


def _drawn(index: int, name: str, known: Points, places: Points) -> list[str]:
    """A line with its points, if they are few, and its name below the chart."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [f'<polyline class="line line{index}"{STYLES[index]} points="{path}"/>']
    if len(known) <= MARKED:
        for (x, y), (across, down) in zip(known, places, strict=True):
            place = f'class="line{index}" cx="{across:.1f}" cy="{down:.1f}" r="3.5"'
            parts.append(f"<circle {place}><title>{name}, {x:,.6g}: {y:.5g}</title></circle>")
    left = LEFT + 10 + 190 * index
    parts.append(
        f'<line class="line line{index}"{STYLES[index]} x1="{left}" x2="{left + 28}" y1="{HEIGHT - 5}" '
        f'y2="{HEIGHT - 5}"/><text x="{left + 36}" y="{HEIGHT - 1}">{name}</text>'
    )
    return parts


def ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """Returns about five round numbers that cover a range; with `whole`, whole numbers."""
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        low, high = low - max(abs(low), 1.0) / 2, high + max(abs(high), 1.0) / 2
    scale = 10.0 ** math.floor(math.log10(high - low))
    step = next(size * scale for size in (0.2, 0.5, 1.0, 2.0, 5.0) if (high - low) / (size * scale) <= 5.5)
    step = max(step, 1.0) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.10g}") for number in range(first, last + 1)]


def confusion_table(matrix: np.ndarray, labels: Sequence[str]) -> str:
    """Returns a table of counts (label, prediction); a cell is darker for a larger share of its row."""
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    heads = "".join(f'<th scope="col"><span>{html.escape(label)}</span></th>' for label in labels)
    rows = []
    for row, (label, counts) in enumerate(zip(labels, matrix.tolist(), strict=True)):
        cells = "".join(
            f'<td class="{"right" if row == column else "wrong"}" style="--share: {100 * share:.0f}%" '
            f'title="{html.escape(f"{label} as {other}: {count} ({share:.0%})")}">{count or ""}</td>'
            for column, (other, count, share) in enumerate(zip(labels, counts, shares[row], strict=True))
        )
        recall = f"{shares[row, row]:.0%}" if any(counts) else ""
        rows.append(
            f'<tr><th scope="row">{html.escape(label)}</th>{cells}<td class="share">{recall}</td></tr>'
        )
    head = f'<tr><th>label</th>{heads}<th class="share">right</th></tr>'
    return (
        f'<div class="report-scroll"><table class="report-heat report-confusion"><thead>{head}</thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
