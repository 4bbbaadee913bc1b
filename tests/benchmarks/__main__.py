"""Benchmark of keras-tx against other libraries, interleaved on this machine. See docs/benchmark.md."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from keras_tx import contract
from keras_tx.errors import ConfigError, KerasTxError, nearest
from tests.benchmarks import machine, models, report, results, runner
from tests.benchmarks.comparisons import (
    COMPARISONS,
    EXPORT,
    MACHINE,
    SECTIONS,
    START,
    STREAMS,
    TRAINING,
    Comparison,
    select,
)
from tests.benchmarks.contenders import PACKAGES
from tests.benchmarks.report import Report
from tests.benchmarks.results import Outcome

DESCRIPTION = """\
Runs the same weights in keras-tx, Keras, keras-hub, PyTorch, Optimum, OpenVINO, llama.cpp, CTranslate2
and onnxruntime-genai: each in a process of its own, interleaved in rounds. Prints medians and their spread.
Contenders that are not installed are listed as such; --python names the Python of another environment.
"""
EPILOG = """\
sections:
{sections}

examples:
  python -m tests.benchmarks results                       everything: about an hour
  python -m tests.benchmarks results --quick               the cases of the goals: about eight minutes
  python -m tests.benchmarks results --section training    one section
  python -m tests.benchmarks results --section models --model bert-base
  python -m tests.benchmarks results --python optimum=/venvs/optimum/bin/python

Writes bench.json and bench.md into RESULTS after each comparison; Ctrl-C keeps the finished rounds.
The models are written once into RESULTS/models, about 7 GB, which takes some minutes.
""".format(sections="\n".join(f"  {name:<10}{text}" for name, text in SECTIONS.items()))
REPORT, FILES = "bench.json", "models"  # their presence identifies a folder of results
_OTHERS = [one for one in COMPARISONS if one.section != MACHINE]
MODEL_NAMES = tuple(dict.fromkeys(one.model for one in _OTHERS))
CONTENDERS = tuple(dict.fromkeys(contender.name for one in _OTHERS for contender in one.contenders))
# Rounds, and seconds after which a case gets no further round; other values where a round is long
QUICK, QUICK_OF = (3, 8.0), {START: (3, 60.0), EXPORT: (1, 60.0)}
FULL, FULL_OF = (15, 60.0), {STREAMS: (7, 120.0), START: (7, 240.0), EXPORT: (3, 600.0), TRAINING: (7, 240.0)}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("results", metavar="RESULTS", type=Path, help="the folder for the results")
    parser.add_argument(
        "--section", action="append", choices=tuple(SECTIONS), help="only this section; repeatable"
    )
    parser.add_argument("--model", action="append", choices=MODEL_NAMES, help="only this model; repeatable")
    parser.add_argument(
        "--contender", action="append", metavar="NAME", help="only this contender; repeatable"
    )
    parser.add_argument(
        "--python", action="append", default=[], metavar="PACKAGE=PATH", help="its Python; repeatable"
    )
    parser.add_argument("--quick", action="store_true", help="the cases of the goals, in about eight minutes")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the selected comparisons; returns the exit code."""
    arguments = parser().parse_args(argv)
    _check_folder(arguments.results)
    pythons = _pythons(arguments.python)
    for name in arguments.contender or ():
        if name not in CONTENDERS:
            raise ConfigError(f"--contender {name!r} is unknown. {nearest(name, CONTENDERS)}")
    sections = [*dict.fromkeys([MACHINE, *(arguments.section or SECTIONS)])]
    selected, omitted = select(
        sections, arguments.model or MODEL_NAMES, arguments.contender or (), arguments.quick
    )
    if sections != [MACHINE] and all(one.section == MACHINE for one in selected):
        raise ConfigError(
            "No comparison has this section, model and contender together "
            f"({' '.join(argv if argv is not None else sys.argv[1:])}). Omit one of the options."
        )
    done = Report(machine.describe(()), omitted=omitted)
    try:
        _run(selected, arguments.results, pythons, arguments.quick, done)
    except KeyboardInterrupt:
        done.stopped = True
        print("interrupted; the finished rounds are kept", file=sys.stderr)
    done.save(arguments.results)
    print(report.markdown(done))
    return 130 if done.stopped else 0


def _check_folder(folder: Path) -> None:
    """Raises for a folder with other content: gigabytes of models are written into it."""
    if not folder.exists() or any((folder / name).exists() for name in (REPORT, FILES)):
        return
    if folder.is_dir() and not any(folder.iterdir()):
        return
    kind = "a folder with other files" if folder.is_dir() else "a file"
    if (folder / contract.MANIFEST).exists():
        kind = "an exported folder, which keras-tx bench measures"
    raise ConfigError(f"{folder} is {kind}. Choose a new folder for the results.")


def _run(
    selected: list[Comparison], folder: Path, pythons: dict[str, str], quick: bool, done: Report
) -> None:
    costs = {}
    for name in dict.fromkeys(one.model for one in selected if one.section != MACHINE):
        _say(f"{name}: model in {folder / FILES / name}", "")
        with _minutes(done, "preparation"):
            costs[name] = models.prepare(name, folder / FILES / name)
    for one in selected:
        _say(f"{one.section}: {one.model}", "")
        place = folder / FILES / one.model
        place.mkdir(parents=True, exist_ok=True)
        rounds, seconds = QUICK_OF.get(one.section, QUICK) if quick else FULL_OF.get(one.section, FULL)
        outcome = Outcome(one.section, one.model, [case.name for case in one.cases])
        done.outcomes.append(outcome)
        try:
            with _minutes(done, one.section):
                runner.run_comparison(
                    one, outcome, place, rounds=rounds, seconds=seconds, pythons=pythons, say=_say
                )
        finally:
            done.machine = machine.describe(done.outcomes)
            if one.section != MACHINE:
                results.add_figures(outcome, costs[one.model])
            for comparison, measured in zip(selected, done.outcomes, strict=False):
                if comparison.section != MACHINE:
                    results.add_utilization(measured, comparison, costs[comparison.model], done.machine)
        done.save(folder)


@contextmanager
def _minutes(done: Report, name: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        done.minutes[name] = done.minutes.get(name, 0) + (time.perf_counter() - start) / 60


def _say(line: str, indent: str = "  ") -> None:
    print(f"{indent}{line}", file=sys.stderr, flush=True)


def _pythons(options: list[str]) -> dict[str, str]:
    pythons = {}
    for option in options:
        name, _, path = option.partition("=")
        if name not in PACKAGES:
            raise ConfigError(f"--python {option}: unknown package {name!r}. {nearest(name, PACKAGES)}")
        if not Path(path).is_file():
            raise ConfigError(f"--python {option}: {path!r} is not a file. Pass the path of a Python.")
        pythons[name] = path
    return pythons


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KerasTxError as error:
        sys.exit(f"error: {error}")
