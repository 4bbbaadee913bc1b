"""keras-tx bench: our models and their peers, side by side on this machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from keras_tx.bench.field import FIELD, GOALS
from keras_tx.errors import ConfigError, nearest

SUMMARY = "measure against the peers, side by side on this machine"
DESCRIPTION = """\
Runs the same weights in keras-tx, Keras, PyTorch, Optimum, OpenVINO, llama.cpp and onnxruntime-genai: each
in a process of its own, in turns, and gives medians and how far the runs were apart. Contenders that are not
installed are listed as such. Some cannot live in one environment: --python names another one's Python.
"""
EPILOG = """\
examples:
  keras-tx bench results                              all subjects, all that is installed here
  keras-tx bench results --quick --subject bert-base  some minutes
  keras-tx bench results --python optimum=/venvs/optimum/bin/python --python llama.cpp=/venvs/llama/bin/python

RESULTS gets bench.json, bench.md and a picture for each subject. The models are made below it, once, in
RESULTS/subjects: about 5 GB.
"""
SUBJECTS = tuple(dict.fromkeys(goal.subject for goal in GOALS))
PACKAGES = tuple(dict.fromkeys(contender.package for contender in FIELD))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", metavar="RESULTS", type=Path, help="folder for what was measured")
    parser.add_argument(
        "--subject", action="append", choices=SUBJECTS, help="only this model; may be repeated"
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="only this contender, as in the tables; repeated"
    )
    parser.add_argument(
        "--python", action="append", default=[], metavar="CONTENDER=PATH", help="the Python that has it"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds: within about five minutes")


def execute(arguments: argparse.Namespace) -> int:
    pythons = _pythons(arguments.python)
    contenders = _contenders(arguments.only)
    from keras_tx.bench import machine, report, side_by_side, subjects
    from keras_tx.bench.cases import CASES

    rounds, seconds = (5, 12.0) if arguments.quick else (15, 60.0)
    measured, absent = {}, {}
    for subject in arguments.subject or SUBJECTS:
        place = arguments.results / "subjects" / subject
        print(f"{subject}: making the models in {place}", file=sys.stderr)
        subjects.prepare(subject, place)
    looked = machine.look()
    print(looked, file=sys.stderr)
    for subject in arguments.subject or SUBJECTS:
        measured[subject], absent[subject] = side_by_side.measure(
            [contender for contender in contenders if subject in contender.subjects],
            arguments.results / "subjects" / subject,
            [case.name for case in CASES[subject]],
            rounds=rounds,
            seconds=seconds,
            pythons=pythons,
            say=lambda line: print(f"  {line}", file=sys.stderr),
        )
    results = report.Results(looked, report.today(), measured, absent)
    results.save(arguments.results)
    print(report.markdown(results))
    return 0


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


def _contenders(only: list[str] | None) -> list:
    names = [contender.name for contender in FIELD]
    for name in only or ():
        if name not in names:
            raise ConfigError(f"--only {name!r}: no such contender. {nearest(name, names)}")
    return [contender for contender in FIELD if only is None or contender.name in only]
