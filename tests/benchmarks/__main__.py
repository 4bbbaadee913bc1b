"""Benchmark of keras-tx against other libraries, interleaved on this machine. See docs/benchmark.md."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_tx import contract
from keras_tx.errors import ConfigError, KerasTxError, nearest
from tests.benchmarks.comparisons import EXPORT, MACHINE, RACES, SECTIONS, START, TRAINING, chosen
from tests.benchmarks.contenders import PACKAGES

if TYPE_CHECKING:
    from tests.benchmarks.comparisons import Race
    from tests.benchmarks.report import Results

DESCRIPTION = """\
Runs the same weights in keras-tx, Keras, keras-hub, PyTorch, Optimum, OpenVINO, llama.cpp and
onnxruntime-genai: each in a process of its own, in turns, and gives medians and how far the turns were
apart. Contenders that are not installed are listed as such. Some cannot live in one environment: --python
names another one's Python.
"""
EPILOG = """\
sections:
{sections}

examples:
  python -m tests.benchmarks results                       everything: about an hour
  python -m tests.benchmarks results --quick               the cases of the goals: about five minutes
  python -m tests.benchmarks results --section training    one section
  python -m tests.benchmarks results --section models --subject bert-base
  python -m tests.benchmarks results --python optimum=/venvs/optimum/bin/python

RESULTS gets bench.json and bench.md, after each part anew, and pictures at the end: Ctrl-C keeps what was
measured. The models are made below it, once, in RESULTS/subjects: about 7 GB. The first run takes some
minutes more for them.
""".format(sections="\n".join(f"  {name:<10}{what}" for name, what in SECTIONS.items()))
REPORT, SUBJECTS_FOLDER = "bench.json", "subjects"  # which identify a folder of results
SUBJECTS = tuple(dict.fromkeys(race.subject for race in RACES if race.section != MACHINE))
CONTENDERS = tuple(
    dict.fromkeys(one.name for race in RACES if race.section != MACHINE for one in race.contenders)
)
# Turns, and seconds after which a case has had enough of them; and where a turn is long, others.
QUICK, QUICK_OF = (3, 8.0), {START: (3, 60.0), EXPORT: (1, 60.0)}
FULL, FULL_OF = (15, 60.0), {START: (7, 240.0), EXPORT: (3, 600.0), TRAINING: (7, 240.0)}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("results", metavar="RESULTS", type=Path, help="folder for what was measured")
    parser.add_argument(
        "--section", action="append", choices=tuple(SECTIONS), help="only this part; may be repeated"
    )
    parser.add_argument(
        "--subject", action="append", choices=SUBJECTS, help="only this model; may be repeated"
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="only this contender, as in the tables; repeated"
    )
    parser.add_argument(
        "--python", action="append", default=[], metavar="CONTENDER=PATH", help="the Python that has it"
    )
    parser.add_argument("--quick", action="store_true", help="what the goals name, within five minutes")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparisons that the arguments select; returns the exit code."""
    arguments = parser().parse_args(argv)
    _check_results(arguments.results)
    pythons = _pythons(arguments.python)
    for name in arguments.only or ():
        if name not in CONTENDERS:
            raise ConfigError(f"--only {name!r}: no such contender. {nearest(name, CONTENDERS)}")
    sections = [*dict.fromkeys([MACHINE, *(arguments.section or SECTIONS)])]
    races, without = chosen(sections, arguments.subject or SUBJECTS, arguments.only or (), arguments.quick)
    if not any(race.section != MACHINE for race in races) and sections != [MACHINE]:
        raise ConfigError(_nothing(arguments))
    from tests.benchmarks import machine, report

    results = report.Results(machine.described(()), report.today(), left_out=without)
    try:
        _run(races, arguments.results, pythons, arguments.quick, results)
    except KeyboardInterrupt:
        results.stopped = True
        print("stopped; what was measured is kept", file=sys.stderr)
    _save(results, arguments.results)
    print(report.markdown(results))
    return 130 if results.stopped else 0


def _check_results(folder: Path) -> None:
    """Raises a ConfigError for a folder with other content: gigabytes of models are written into it."""
    if not folder.exists() or any((folder / name).exists() for name in (REPORT, SUBJECTS_FOLDER)):
        return
    if folder.is_dir() and not any(folder.iterdir()):
        return
    kind = "a folder with other files" if folder.is_dir() else "a file"
    if (folder / contract.MANIFEST).exists():
        kind = "an exported folder"
    raise ConfigError(
        f"{folder} is {kind}, expected a new folder for results: bench measures models of its own, and "
        "writes up to 7 GB. Choose another name; keras-tx bench measures an exported folder."
    )


def _run(races: list[Race], folder: Path, pythons: dict[str, str], quick: bool, results: Results) -> None:
    from tests.benchmarks import machine, models, utilization
    from tests.benchmarks.results import Outcome
    from tests.benchmarks.runner import run_race

    facts = {}
    for subject in dict.fromkeys(race.subject for race in races if race.section != MACHINE):
        _say(f"{subject}: models in {folder / SUBJECTS_FOLDER / subject}", "")
        start = time.perf_counter()
        facts[subject] = models.prepare(subject, folder / SUBJECTS_FOLDER / subject)
        results.minutes["preparation"] = (
            results.minutes.get("preparation", 0) + (time.perf_counter() - start) / 60
        )
    for race in races:
        _say(f"{race.section}: {race.subject}", "")
        place = folder / SUBJECTS_FOLDER / race.subject
        place.mkdir(parents=True, exist_ok=True)
        rounds, seconds = QUICK_OF.get(race.section, QUICK) if quick else FULL_OF.get(race.section, FULL)
        outcome = Outcome(race.section, race.subject, [case.name for case in race.cases])
        results.outcomes.append(outcome)
        start = time.perf_counter()
        try:
            run_race(race, outcome, place, rounds=rounds, seconds=seconds, pythons=pythons, say=_say)
        finally:
            taken = (time.perf_counter() - start) / 60
            results.minutes[race.section] = results.minutes.get(race.section, 0) + taken
            results.machine = machine.described(results.outcomes)
            if race.section != MACHINE:
                utilization.add_figures(outcome, facts[race.subject])
            for one, found in zip(races, results.outcomes, strict=False):
                if one.section != MACHINE:
                    utilization.add_shares(found, one, facts[one.subject], results.machine)
        results.save(folder)


def _save(results: Results, folder: Path) -> None:
    from tests.benchmarks import charts

    results.save(folder)
    if importlib.util.find_spec("matplotlib"):
        charts.draw(results, folder)
    else:
        _say("no pictures: matplotlib is not installed", "")


def _say(line: str, indent: str = "  ") -> None:
    print(f"{indent}{line}", file=sys.stderr, flush=True)


def _nothing(arguments: Any) -> str:
    asked = {"section": arguments.section, "subject": arguments.subject, "only": arguments.only}
    given = " ".join(f"--{name} {value}" for name, values in asked.items() for value in values or ())
    quick = " --quick" if arguments.quick else ""
    return (
        f"{given}{quick}: nothing is left to measure. Expected a section that has the subject and the "
        f"contender; without these options all are measured."
    )


def _pythons(given: list[str]) -> dict[str, str]:
    found = {}
    for option in given:
        name, _, path = option.partition("=")
        if name not in PACKAGES:
            raise ConfigError(f"--python {option}: no contender {name!r}. {nearest(name, PACKAGES)}")
        if not Path(path).is_file():
            raise ConfigError(f"--python {option}: there is no file {path!r}, expected a Python.")
        found[name] = path
    return found


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KerasTxError as error:
        sys.exit(f"error: {error}")
