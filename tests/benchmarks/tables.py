"""The tables of a report: one for each race, and one of the goals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.benchmarks import comparisons
from tests.benchmarks.cases import CASES, DECODE, IMAGES, PREFILL, TEXTS
from tests.benchmarks.goals import GOALS, judge
from tests.benchmarks.results import Measured, Outcome, differing

# Of a section: the head of a column, the figure, and what one unit of it is.
Column = tuple[str, str, float, str]
MB = 1e6
COLUMNS: dict[str, tuple[Column, ...]] = {
    comparisons.MODELS: (("load, s", "load", 1, ".2f"), ("process, MB", "resident", MB, ".0f")),
    comparisons.START: (
        ("all, s", "all", 1, ".2f"),
        ("imports, s", "importing", 1, ".2f"),
        ("load, s", "load", 1, ".2f"),
        ("process, MB", "resident", MB, ".0f"),
        ("at most, MB", "peak", MB, ".0f"),
    ),
    comparisons.EXPORT: (
        ("again, s", "again", 1, ".2f"),
        ("nodes", "nodes", 1, ".0f"),
        ("a block", "nodes a block", 1, ".0f"),
        ("size, MB", "size", MB, ".0f"),
        ("memory, MB", "exporting", MB, ".0f"),
    ),
    comparisons.TRAINING: (("load, s", "load", 1, ".1f"), ("process, MB", "resident", MB, ".0f")),
}
UNITS = {
    comparisons.EXPORT: (1.0, "s"),
    comparisons.MACHINE: (1.0, "G/s"),
}  # of a case; elsewhere milliseconds


def table(outcome: Outcome) -> list[str]:
    """Medians, half of the middle half of the turns as a share of them, and of the machine's rate."""
    if not outcome.measured and not outcome.absent:
        return ["Nobody ran it."]
    columns = [
        column
        for column in COLUMNS.get(outcome.section, ())
        if any(found.samples(column[1]) for found in outcome.measured)
    ]
    _, unit = UNITS.get(outcome.section, (1e3, "ms"))
    off = {case: differing(outcome.measured, case) for case in outcome.cases}
    rows = []
    for found in outcome.measured:
        notes = [found.said] if found.said else []
        notes += [f"{how[found.name]}: {case}" for case, how in off.items() if found.name in how]
        cells = [_case(outcome.section, found, case) for case in outcome.cases]
        cells += [_figure(found, figure, scale, form) for _, figure, scale, form in columns]
        rows.append([found.name, *cells, "; ".join(notes)])
    empty = [""] * (len(outcome.cases) + len(columns))
    rows += [[name, *empty, why] for name, why in outcome.absent.items()]
    head = [unit, *outcome.cases, *(name for name, *_ in columns), ""]
    return [*_table(head, rows), *_throughput(outcome)]


def _throughput(outcome: Outcome) -> list[str]:
    """What the medians are in a second; of models only."""
    lines = []
    for case in CASES.get(outcome.subject, ()) if outcome.section == comparisons.MODELS else ():
        made, unit = {
            IMAGES: (case.batch, "images"),
            TEXTS: (case.batch, "texts"),
            PREFILL: (case.lengths[1], "tokens"),
            DECODE: (1, "tokens"),
        }[case.kind]
        found = [
            f"{one.name} {made / one.median(case.name):.4g}"
            for one in outcome.measured
            if one.seconds.get(case.name)
        ]
        if found:
            lines += ["", f"{unit.capitalize()} a second, {case.name}: {', '.join(found)}."]
    return lines


def _case(section: str, found: Measured, case: str) -> str:
    if not found.seconds.get(case):
        return ""
    scale, _ = UNITS.get(section, (1e3, ""))
    value = 1 / found.median(case) if section == comparisons.MACHINE else found.median(case) * scale
    form = ".3f" if value < 1 else ".2f" if value < 10 else ".1f"
    cell = f"{value:{form}} ± {found.spread(case):.0%}"
    if len(found.seconds[case]) == 1:
        cell = f"{value:{form}}, one turn"
    share = found.shares.get(case)
    return cell if share is None else f"{cell}, {share:.0%}"


def _figure(found: Measured, name: str, scale: float, form: str) -> str:
    return f"{found.median(name) / scale:{form}}" if found.samples(name) else ""


def goal_rows(outcomes: Sequence[Outcome]) -> list[str]:
    judged = [found for goal in GOALS if (found := judge(goal, outcomes))]
    if not judged:
        return []
    rows = [[found.what, found.ours, found.goal, found.seen, found.verdict] for found in judged]
    return _table(["case", "ours", "goal", "seen", ""], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _row(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"
