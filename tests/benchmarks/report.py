"""A report of measurements as JSON, and as Markdown tables.

    python -m tests.benchmarks.report RESULTS/bench.json docs/benchmark.md
    python -m tests.benchmarks.report RESULTS/bench.json README.md
    python -m tests.benchmarks.report FIRST.json SECOND.json docs/benchmark.md

writes the tables into a page, between its markers: all of them, or in the README one column per model. If all
models of the results are encoder-decoders, both pages have other markers for them. Results of servers have
markers of their own, and may be in several files, of different contenders.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_tx.errors import ConfigError
from tests.benchmarks import comparisons
from tests.benchmarks.cases import (
    AT_16,
    BEAMS,
    BERT,
    CASES,
    DECODE,
    ENCODER_DECODERS,
    GENERATE,
    GPT,
    GREEDY,
    IMAGES,
    MARIAN,
    MINILM,
    MIXED,
    ONE,
    PREFILL,
    PREFILLED,
    SENTENCES,
    STREAM_CASES,
    T5_BASE,
    T5_SMALL,
    TEXTS,
    VIT,
)
from tests.benchmarks.goals import GOALS, judge
from tests.benchmarks.machine import Machine, Rate
from tests.benchmarks.page_tables import write_file, write_table
from tests.benchmarks.results import Outcome, Result, deviations

DISTURBED = 1.15  # utilization above which the rates of the machine are doubtful
README_MARKERS = "<!-- peers:begin -->", "<!-- peers:end -->"
README_COLUMNS = {
    "ViT-B/16, one image": (VIT, ONE),
    "BERT-base, 8 texts of 16 to 128 tokens": (BERT, MIXED),
    "GPT-2, prefill of 128": (GPT, PREFILLED),
    "GPT-2, one token": (GPT, AT_16),
}
SERVING_MARKERS = "<!-- serving:begin -->", "<!-- serving:end -->"
SERVING = {(comparisons.STREAMS, GPT), (comparisons.CLIENTS, MINILM)}
SEQ2SEQ_MARKERS = "<!-- encoder-decoders:begin -->", "<!-- encoder-decoders:end -->"
SEQ2SEQ_COLUMNS = {
    "T5-small, one target": (T5_SMALL, GREEDY),
    "T5-base, one target": (T5_BASE, GREEDY),
    "T5-base, 8 sources, 4 beams": (T5_BASE, BEAMS),
    "Marian, 100 sentences": (MARIAN, SENTENCES),
}
PEAK = "T5-base, peak, MB"
MB = 1e6
# By section, figures as columns: heading, figure, unit, format
COLUMNS: dict[str, tuple[tuple[str, str, float, str], ...]] = {
    comparisons.MODELS: (("load, s", "load", 1, ".2f"), ("process, MB", "resident", MB, ".0f")),
    comparisons.START: (
        ("all, s", "all", 1, ".2f"),
        ("imports, s", "importing", 1, ".2f"),
        ("load, s", "load", 1, ".2f"),
        ("process, MB", "resident", MB, ".0f"),
        ("peak, MB", "peak", MB, ".0f"),
    ),
    comparisons.EXPORT: (
        ("again, s", "again", 1, ".2f"),
        ("nodes", "nodes", 1, ".0f"),
        ("per block", "nodes a block", 1, ".0f"),
        ("size, MB", "size", MB, ".0f"),
        ("memory, MB", "exporting", MB, ".0f"),
    ),
    comparisons.CLIENTS: (("p50, ms", "p50", 1e-3, ".1f"), ("p99, ms", "p99", 1e-3, ".1f")),
    comparisons.STREAMS: (
        *(
            (f"first token, {case.name}, ms", f"first token, {case.name}", 1e-3, ".0f")
            for case in STREAM_CASES
        ),
        ("gap", "gap", 1, ".3f"),
        ("process, MB", "resident", MB, ".0f"),
    ),
    comparisons.TRAINING: (("load, s", "load", 1, ".1f"), ("process, MB", "resident", MB, ".0f")),
}
UNITS = {
    comparisons.EXPORT: (1.0, "s"),
    comparisons.MACHINE: (1.0, "G/s"),
    comparisons.STREAMS: (1.0, "tokens/s"),
}
# Of sections with a rate as their unit; other cases are in milliseconds
RATES = (comparisons.MACHINE, comparisons.STREAMS)


@dataclasses.dataclass
class Report:
    """A run of the benchmark.

    Args:
        omitted: in words, what a quick run left out.
        minutes: by section.
    """

    machine: Machine
    date: str = dataclasses.field(default_factory=lambda: datetime.date.today().isoformat())
    outcomes: list[Outcome] = dataclasses.field(default_factory=list)
    omitted: list[str] = dataclasses.field(default_factory=list)
    minutes: dict[str, float] = dataclasses.field(default_factory=dict)
    stopped: bool = False

    def save(self, folder: Path) -> None:
        """Writes bench.json and bench.md."""
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / "bench.json", json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        write_file(folder / "bench.md", markdown(self) + "\n")

    @classmethod
    def read(cls, path: Path) -> Report:
        content = json.loads(path.read_text("utf-8"))
        rates = {kind: Rate(**rate) for kind, rate in content["machine"]["rates"].items()}
        outcomes = [
            Outcome(**one | {"results": [Result(**result) for result in one["results"]]})
            for one in content["outcomes"]
        ]
        machine = Machine(**content["machine"] | {"rates": rates})
        return cls(**content | {"machine": machine, "outcomes": outcomes})


def merged(reports: Sequence[Report]) -> Report:
    """The results of several runs in one report.

    Raises a ConfigError if runs were on different machines, or have the same contender of a comparison.
    """
    first, *others = reports
    _check_mergeable(reports)
    outcomes = {(one.section, one.model): one for one in first.outcomes}
    for report in others:
        for outcome in report.outcomes:
            same = outcomes.setdefault((outcome.section, outcome.model), outcome)
            if same is not outcome and outcome.section != comparisons.MACHINE:
                same.results += outcome.results
                same.unavailable |= outcome.unavailable
        for name, minutes in report.minutes.items():
            first.minutes[name] = first.minutes.get(name, 0) + minutes
        first.omitted += [text for text in report.omitted if text not in first.omitted]
        first.stopped = first.stopped or report.stopped
    return dataclasses.replace(first, outcomes=[*outcomes.values()])


def _check_mergeable(reports: Sequence[Report]) -> None:
    machines = {(one.machine.cores, one.machine.processor, one.machine.threads): one for one in reports}
    if len(machines) > 1:
        names = "; ".join(f"{one.machine} ({one.date})" for one in machines.values())
        raise ConfigError(f"The results are from different machines, expected one: {names}. Measure again.")
    known: set[tuple[str, str, str]] = set()
    for report in reports:
        outcomes = [one for one in report.outcomes if one.section != comparisons.MACHINE]
        rows = {
            (one.section, one.model, name)
            for one in outcomes
            for name in (*(result.name for result in one.results), *one.unavailable)
        }
        if twice := sorted(known & rows):
            names = ", ".join(f"{name} ({section} {model})" for section, model, name in twice)
            raise ConfigError(
                f"Contenders are in more than one of the results: {names}. "
                "Select those of each run with --contender."
            )
        known |= rows


def markdown(report: Report, level: int = 3) -> str:
    """All tables, below headings of a level."""
    heading = "#" * level
    lines = [f"{report.date}, {report.machine}.", ""]
    versions = _versions(report.outcomes)
    if versions:
        lines += [f"With {versions}.", ""]
    if report.stopped:
        lines += ["The run was interrupted.", ""]
    if report.minutes:
        minutes = ", ".join(f"{name} {value:.1f}" for name, value in report.minutes.items())
        lines += [f"The run took {sum(report.minutes.values()):.1f} minutes: {minutes}.", ""]
    if highest_utilization(report.outcomes) > DISTURBED:
        lines += [
            f"Utilization is up to {highest_utilization(report.outcomes):.0%}: the machine was disturbed "
            "while its rates were measured. Ratios are more reliable than shares and absolute times.",
            "",
        ]
    goals = goal_table(report.outcomes)
    if goals:
        lines += [f"{heading} Goals", "", *goals, ""]
    for outcome in report.outcomes:
        lines += [f"{heading} {outcome.section}: {outcome.model}", "", *outcome_table(outcome), ""]
    if report.omitted:
        lines += ["A quick run, of up to three rounds (exports: one), without", ""]
        lines += [f"- {text}" for text in report.omitted]
    return "\n".join(lines).rstrip()


def highest_utilization(outcomes: Sequence[Outcome]) -> float:
    shares = [share for one in outcomes for r in one.results for share in r.utilization.values()]
    return max(shares, default=0)


def _versions(outcomes: Sequence[Outcome]) -> str:
    """Each library with its version, and the contenders where they have different ones."""
    libraries: dict[str, dict[str, dict[str, None]]] = {}
    for result in (result for outcome in outcomes for result in outcome.results):
        for library, version in result.versions.items():
            libraries.setdefault(library, {}).setdefault(version, {})[result.name.split()[0]] = None
    parts = []
    for library, versions in libraries.items():
        names = [
            f"{version} ({', '.join(contenders)})" if len(versions) > 1 else version
            for version, contenders in versions.items()
        ]
        parts.append(f"{library} {' and '.join(names)}")
    return "; ".join(parts)


def outcome_table(outcome: Outcome) -> list[str]:
    """Medians with half the interquartile range, and utilization of the machine."""
    if not outcome.results and not outcome.unavailable:
        return ["Not measured."]
    columns = [
        column
        for column in COLUMNS.get(outcome.section, ())
        if any(result.samples(column[1]) for result in outcome.results)
    ]
    _, unit = UNITS.get(outcome.section, (1e3, "ms"))
    different = {case: deviations(outcome.results, case) for case in outcome.cases}
    rows = []
    for result in outcome.results:
        notes = [result.note] if result.note else []
        notes += [f"{how[result.name]}: {case}" for case, how in different.items() if result.name in how]
        cells = [_case_cell(outcome.section, result, case) for case in outcome.cases]
        cells += [_figure_cell(result, figure, scale, form) for _, figure, scale, form in columns]
        rows.append([result.name, *cells, "; ".join(notes)])
    empty = [""] * (len(outcome.cases) + len(columns))
    rows += [[name, *empty, why] for name, why in outcome.unavailable.items()]
    head = [unit, *outcome.cases, *(name for name, *_ in columns), ""]
    return [*_table(head, rows), *_throughput(outcome)]


def _throughput(outcome: Outcome) -> Iterator[str]:
    for case in CASES.get(outcome.model, ()) if outcome.section == comparisons.MODELS else ():
        count, unit = {
            IMAGES: (case.batch, "Images"),
            TEXTS: (case.batch, "Texts"),
            PREFILL: (case.lengths[1], "Tokens"),
            DECODE: (1, "Tokens"),
            GENERATE: (case.batch * case.new_tokens, "Tokens"),
        }[case.kind]
        measured = [result for result in outcome.results if result.seconds.get(case.name)]
        if measured:
            speeds = [f"{result.name} {count / result.median(case.name):.4g}" for result in measured]
            yield from ("", f"{unit} per second, {case.name}: {', '.join(speeds)}.")


def _case_cell(section: str, result: Result, case: str) -> str:
    if not result.seconds.get(case):
        return ""
    scale, _ = UNITS.get(section, (1e3, ""))
    value = 1 / result.median(case) if section in RATES else result.median(case) * scale
    form = ".3f" if value < 1 else ".2f" if value < 10 else ".1f"
    cell = f"{value:{form}} ± {result.spread(case):.0%}"
    if len(result.seconds[case]) == 1:
        cell = f"{value:{form}}, one round"
    share = result.utilization.get(case)
    return cell if share is None else f"{cell}, {share:.0%}"


def _figure_cell(result: Result, name: str, scale: float, form: str) -> str:
    return f"{result.median(name) / scale:{form}}" if result.samples(name) else ""


def goal_table(outcomes: Sequence[Outcome]) -> list[str]:
    judged = [judgement for goal in GOALS if (judgement := judge(goal, outcomes))]
    if not judged:
        return []
    rows = [[one.case, one.contender, one.goal, one.measured, one.verdict] for one in judged]
    return _table(["case", "contender", "goal", "measured", ""], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)]


def _row(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


def readme_table(report: Report) -> str:
    """Medians in milliseconds: one column per model, one row per contender, keras-tx first."""
    columns = {name: _milliseconds(report.outcomes, *column) for name, column in README_COLUMNS.items()}
    lines = [f"Milliseconds, less is better; {_conditions(report)}:", "", *_contender_table(columns)]
    if any(name.endswith((" int4", " q4_0")) for column in columns.values() for name in column):
        lines += ["", "(With random weights, 4-bit files select other tokens than the rest.)"]
    return "\n".join(lines)


def seq2seq_table(report: Report) -> str:
    """The same table of encoder-decoders, and the peak of the memory of a process."""
    columns = {name: _milliseconds(report.outcomes, *column) for name, column in SEQ2SEQ_COLUMNS.items()}
    for outcome in report.outcomes:
        if (outcome.section, outcome.model) == (comparisons.START, T5_BASE):
            columns[PEAK] = {x.name: x.median("peak") / MB for x in outcome.results if x.samples("peak")}
    lines = [
        "Encoder-decoders: T5 reads 128 tokens and generates 64; Marian reads sentences of 4 to 64 tokens "
        f"and generates 32 for each. Milliseconds, less is better; {_conditions(report)}:",
        "",
    ]
    return "\n".join([*lines, *_contender_table(columns)])


def _conditions(report: Report) -> str:
    machine = report.machine
    return f"medians on {machine.cores} cores of {machine.processor}, {report.date}"


def _contender_table(columns: Mapping[str, Mapping[str, float]]) -> list[str]:
    names = dict.fromkeys(name for column in columns.values() for name in column)
    lines = [_row(["", *columns]), f"| --- |{' ---: |' * len(columns)}"]
    for name in sorted(names, key=lambda name: not name.startswith("keras-tx ")):
        cells = [_number(column[name]) if name in column else "" for column in columns.values()]
        lines.append(_row([name, *cells]))
    return lines


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 1e3 else f"{value:,.0f}"


def _milliseconds(outcomes: Sequence[Outcome], model: str, case: str) -> dict[str, float]:
    """Medians by contender."""
    measured = [one for one in outcomes if one.section == comparisons.MODELS]
    for outcome in measured:
        if outcome.model == model and case in outcome.cases:
            return {one.name: one.median(case) * 1e3 for one in outcome.results if one.seconds.get(case)}
    names = "; ".join(f"{one.model}: {', '.join(one.cases)}" for one in measured)
    raise ConfigError(
        f"The results have no case {case!r} of {model}, only {names or 'none'}. "
        "Run python -m tests.benchmarks without --model."
    )


def put_into(page: Path, report: Report) -> None:
    """Writes the tables between the markers of a page."""
    measured = {(one.section, one.model) for one in report.outcomes if one.section != comparisons.MACHINE}
    models = {model for _, model in measured}
    is_readme = README_MARKERS[0] in page.read_text("utf-8")
    if measured and measured <= SERVING:
        write_table(page, markdown(report, level=4), SERVING_MARKERS)
    elif models and models <= set(ENCODER_DECODERS):
        write_table(page, seq2seq_table(report) if is_readme else markdown(report, level=4), SEQ2SEQ_MARKERS)
    elif is_readme:
        write_table(page, readme_table(report), README_MARKERS)
    else:
        write_table(page, markdown(report))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the tables of a benchmark into a page.")
    parser.add_argument("results", type=Path, nargs="+", help="bench.json")
    parser.add_argument("page", type=Path, help="the page with the markers")
    arguments = parser.parse_args(argv)
    put_into(arguments.page, merged([Report.read(path) for path in arguments.results]))


if __name__ == "__main__":
    main()
