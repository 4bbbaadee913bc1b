"""A bar chart of each comparison, keras-tx in colour."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks import comparisons
from tests.benchmarks.report import Report
from tests.benchmarks.results import Outcome

HIGHLIGHT, GREY = "#2a6f97", "#c4c4c4"
BAR, TITLE = 0.27, 0.6  # inches


def draw(report: Report, folder: Path) -> list[Path]:
    """Writes a PNG for each comparison; returns their paths."""
    paths = []
    for outcome in report.outcomes:
        if outcome.results and outcome.section != comparisons.MACHINE:
            paths.append(folder / f"{outcome.section}-{outcome.model}.png")
            _draw(outcome, paths[-1])
    return paths


def _draw(outcome: Outcome, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    unit, scale = ("s", 1.0) if outcome.section in (comparisons.EXPORT, comparisons.START) else ("ms", 1e3)
    panels = [
        [result for result in outcome.results if result.samples(_shown(outcome, c))] for c in outcome.cases
    ]
    heights = [TITLE + BAR * len(panel) for panel in panels]
    figure = Figure(figsize=(8, sum(heights) + 0.3), dpi=110, layout="constrained")
    axes = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axis, case, panel in zip(axes, outcome.cases, panels, strict=True):
        shown = _shown(outcome, case)
        ordered = sorted(panel, key=lambda result: result.median(shown), reverse=True)
        values = [result.median(shown) * scale for result in ordered]
        noise = [value * result.spread(shown) for value, result in zip(values, ordered, strict=True)]
        names = [result.name for result in ordered]
        colors = [HIGHLIGHT if _ours(outcome, name) else GREY for name in names]
        axis.barh(names, values, color=colors, height=0.75)
        axis.errorbar(values, range(len(values)), xerr=noise, fmt="none", ecolor="#555555", elinewidth=1)
        ends = [value + error for value, error in zip(values, noise, strict=True)]
        for row, (value, end) in enumerate(zip(values, ends, strict=True)):
            label = f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
            axis.annotate(label, (end, row), (5, 0), textcoords="offset points", va="center", fontsize=9)
        axis.set_xlim(0, max([*ends, 1e-9]) * 1.12)
        axis.set_title(f"{outcome.model}, {case}: {unit}, less is better", loc="left", fontsize=10)
        axis.tick_params(labelsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    unfinished = path.with_suffix(".unfinished")
    FigureCanvasAgg(figure).print_png(unfinished)
    unfinished.replace(path)


def _ours(outcome: Outcome, name: str) -> bool:
    """In training, keras-tx's models are those in Keras."""
    mine = ("keras ",) if outcome.section == comparisons.TRAINING else ("keras-tx", "batched")
    return name.startswith(mine)


def _shown(outcome: Outcome, case: str) -> str:
    """Of a start, the whole time until the answer."""
    return "all" if outcome.section == comparisons.START else case
