"""What was measured, as JSON, as Markdown and as pictures.

    python -m tests.benchmarks.report RESULTS/bench.json docs/benchmark.md

writes the tables into a page, between its two markers.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import sys
from pathlib import Path

from tests.benchmarks.machine import Machine, Rate
from tests.benchmarks.results import Measured, Outcome
from tests.benchmarks.tables import goal_rows, table

DISTURBED = 1.15  # share of what the machine can do that says more of how that was measured
BEGIN, END = "<!-- measured:begin -->", "<!-- measured:end -->"


@dataclasses.dataclass
class Results:
    """A run of the benchmark.

    Args:
        left_out: in words, what a quick run did without.
        minutes: by section, what it took.
    """

    machine: Machine
    date: str
    outcomes: list[Outcome] = dataclasses.field(default_factory=list)
    left_out: list[str] = dataclasses.field(default_factory=list)
    minutes: dict[str, float] = dataclasses.field(default_factory=dict)
    stopped: bool = False

    def save(self, folder: Path) -> None:
        """bench.json and bench.md; pictures are drawn at the end."""
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / "bench.json", json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        _write(folder / "bench.md", markdown(self) + "\n")

    @classmethod
    def read(cls, path: Path) -> Results:
        given = json.loads(path.read_text("utf-8"))
        given["machine"]["rates"] = {kind: Rate(**rate) for kind, rate in given["machine"]["rates"].items()}
        outcomes = [
            Outcome(**one | {"measured": [Measured(**found) for found in one["measured"]]})
            for one in given["outcomes"]
        ]
        return cls(**given | {"machine": Machine(**given["machine"]), "outcomes": outcomes})


def today() -> str:
    return datetime.date.today().isoformat()


def markdown(results: Results) -> str:
    lines = [f"{results.date}, {results.machine}.", ""]
    with_what = _versions(results.outcomes)
    if with_what:
        lines += [f"With {with_what}.", ""]
    if results.stopped:
        lines += ["It was stopped before its end.", ""]
    if results.minutes:
        took = ", ".join(f"{name} {minutes:.1f}" for name, minutes in results.minutes.items())
        lines += [f"It took {sum(results.minutes.values()):.1f} minutes: {took}.", ""]
    too_fast = disturbed(results.outcomes)
    if too_fast:
        lines += [
            f"The machine was disturbed while its own rates were measured: up to {too_fast:.0%} of them were "
            "reached. Shares and absolute times are worth less than ratios.",
            "",
        ]
    goals = goal_rows(results.outcomes)
    if goals:
        lines += ["### Goals", "", *goals, ""]
    for outcome in results.outcomes:
        lines += [f"### {outcome.section}: {outcome.subject}", "", *table(outcome), ""]
    if results.left_out:
        lines += ["A quick run: up to three turns, of exports one, and without", ""]
        lines += [f"- {name}" for name in results.left_out]
    return "\n".join(lines).rstrip()


def disturbed(outcomes: list[Outcome]) -> float:
    """The largest share of the machine's rates, if it is more than an error of measurement; or 0."""
    most = max((share for one in outcomes for m in one.measured for share in m.shares.values()), default=0)
    return most if most > DISTURBED else 0


def _versions(outcomes: list[Outcome]) -> str:
    """Each library with its version, and whose it is where contenders have several."""
    found: dict[str, dict[str, list[str]]] = {}
    for outcome in outcomes:
        for measured in outcome.measured:
            for library, version in measured.versions.items():
                who = found.setdefault(library, {}).setdefault(version, [])
                who += [] if measured.name.split()[0] in who else [measured.name.split()[0]]
    parts = []
    for library, by_version in found.items():
        said = [f"{v} ({', '.join(who)})" if len(by_version) > 1 else v for v, who in by_version.items()]
        parts.append(f"{library} {' and '.join(said)}")
    return "; ".join(parts)


def put_into(page: Path, results: Results) -> None:
    """Between the page's markers; the rest of it stays."""
    text = page.read_text("utf-8")
    if BEGIN not in text or END not in text:
        raise SystemExit(f"{page}: expected the lines {BEGIN} and {END}, between which the tables belong.")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    _write(page, f"{before}\n{markdown(results)}\n{after}")


def _write(path: Path, text: str) -> None:
    aside = path.with_name(f"{path.name}.unfinished")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


if __name__ == "__main__":
    put_into(Path(sys.argv[2]), Results.read(Path(sys.argv[1])))
