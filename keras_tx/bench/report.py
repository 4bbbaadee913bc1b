"""What was measured, as JSON, as Markdown and as a picture."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_tx.bench.field import GOALS
from keras_tx.bench.machine import Machine
from keras_tx.bench.side_by_side import Measured, differing, ratios


@dataclasses.dataclass(frozen=True)
class Results:
    """A run of the benchmark."""

    machine: Machine
    date: str
    subjects: dict[str, list[Measured]]
    absent: dict[str, dict[str, str]]  # subject -> contender -> why

    def save(self, folder: Path) -> None:
        """bench.json, bench.md, and a picture for each subject where matplotlib is installed."""
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dataclasses.asdict(self), indent=1)
        (folder / "bench.json").write_text(text + "\n", encoding="utf-8")
        (folder / "bench.md").write_text(markdown(self) + "\n", encoding="utf-8")
        for subject, measured in self.subjects.items():
            if measured:
                _draw(subject, measured, folder / f"{subject}.png")


def today() -> str:
    return datetime.date.today().isoformat()


def markdown(results: Results) -> str:
    lines = [f"{results.date}, {results.machine}.", ""]
    for subject, measured in results.subjects.items():
        lines += [f"### {subject}", "", *_table(measured), ""]
        for case in measured[0].seconds if measured else ():
            off = differing(measured, case)
            lines += [f"{case}: not the same result: {name}, by {share:.0%}" for name, share in off.items()]
        absent = results.absent[subject]
        lines += [f"Not measured: {name} ({why})" for name, why in absent.items()]
        goals = _goals(subject, measured)
        lines += ["", *goals, ""] if goals else [""]
    return "\n".join(lines).rstrip()


def _table(measured: Sequence[Measured]) -> list[str]:
    """Medians in milliseconds, with half of the middle half of the runs."""
    if not measured:
        return ["Nothing was measured."]
    cases = list(measured[0].seconds)
    head = ["ms", *cases, "load, s", "process, MB"]
    rows = [
        [
            found.name,
            *(f"{found.median(case) * 1e3:.1f} ± {found.spread(case):.0%}" for case in cases),
            f"{found.load_seconds:.2f}",
            f"{found.resident / 1e6:.0f}",
        ]
        for found in measured
    ]
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _goals(subject: str, measured: Sequence[Measured]) -> list[str]:
    found = {one.name: one for one in measured}
    rows = []
    for goal in GOALS:
        if goal.subject != subject or goal.ours not in found or goal.case not in found[goal.ours].seconds:
            continue
        what = [goal.case, goal.ours, goal.peer, f"{goal.ratio:g}x"]
        if goal.peer not in found:
            rows.append(_row([*what, "", "not measured"]))
            continue
        low, middle, high = ratios(found[goal.ours], found[goal.peer], goal.case)
        rows.append(_row([*what, f"{middle:.2f}x ({low:.2f} to {high:.2f})", verdict(goal.ratio, low, high)]))
    head = ["case", "ours", "against", "goal", "times as fast", ""]
    return [_row(head), _row(["---"] * len(head)), *rows] if rows else []


def verdict(goal: float, low: float, high: float) -> str:
    """Nothing is claimed that the middle half of the rounds does not bear out."""
    if low >= goal:
        return "reached"
    return "within the noise" if high >= goal else "missed"


def _row(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _draw(subject: str, measured: Sequence[Measured], path: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print(f"{path.name}: not drawn, matplotlib is not installed")
        return
    cases = list(measured[0].seconds)
    figure = Figure(figsize=(9, 1 + 0.3 * len(measured) * len(cases)), layout="constrained")
    for axes, case in zip(figure.subplots(len(cases), squeeze=False)[:, 0], cases, strict=True):
        ordered = sorted(measured, key=lambda found: found.median(case), reverse=True)
        names = [found.name for found in ordered]
        values = [found.median(case) * 1e3 for found in ordered]
        noise = [found.median(case) * found.spread(case) * 1e3 for found in ordered]
        colors = ["#2a6f97" if name.startswith("keras-tx") else "#bbbbbb" for name in names]
        axes.barh(names, values, xerr=noise, color=colors)
        axes.set_title(f"{subject}, {case}: ms, less is better", loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    FigureCanvasAgg(figure).print_png(path)
