"""keras-tx doctor: installed versions, devices and conflicts."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING

from keras_tx.commands.terminal import table

if TYPE_CHECKING:
    from keras_tx.doctor import Facts, Finding

SUMMARY = "show versions, providers and GPUs, and report conflicts with their remedies"
DESCRIPTION = """\
Shows installed versions (read from package metadata, without importing anything), the providers of
onnxruntime and the GPUs that nvidia-smi lists. Reports conflicts, each with its remedy: two onnxruntime
wheels or none, CUDA libraries of different major versions, a driver that is too old, CUDA that does not
start, and unsupported versions. Works on a serving machine without Keras.
"""
EPILOG = """\
examples:
  keras-tx doctor
  keras-tx doctor --deep     also start TensorFlow, JAX and PyTorch and list their GPUs (some seconds)
  keras-tx doctor --json     for a bug report

exit codes: 0 no problem (there may be warnings); 1 a problem.
"""
MARKS = {"ok": "ok", "warning": "warning", "problem": "PROBLEM"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deep", action="store_true", help="also start the frameworks and list their GPUs")
    parser.add_argument("--json", action="store_true", help="print facts and findings as one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    from keras_tx.doctor import diagnose
    from keras_tx.environment import gather

    facts = gather(deep=arguments.deep)
    findings = diagnose(facts)
    if arguments.json:
        content = {"facts": dataclasses.asdict(facts), "findings": [dataclasses.asdict(f) for f in findings]}
        print(json.dumps(content, indent=2))
    else:
        print(_versions(facts), _findings(findings), sep="\n\n")
    return 1 if any(finding.level == "problem" for finding in findings) else 0


def _versions(facts: Facts) -> str:
    from keras_tx.environment import SHOWN
    from keras_tx.runtime.providers import WHEELS

    rows = [("Python", f"{facts.python}, {facts.system}"), ("keras-tx", facts.versions.get("keras-tx", "?"))]
    others = sorted(WHEELS.difference(SHOWN))
    rows += [(name, facts.versions[name]) for name in (*SHOWN, *others) if name in facts.versions]
    absent = [name for name in SHOWN if name not in facts.versions]
    libraries = sorted(
        f"{name} {version}" for name, version in facts.versions.items() if name.startswith("nvidia-")
    )
    rows += [("CUDA from pip", ", ".join(libraries))] if libraries else []
    rows += [("not installed", ", ".join(absent))] if absent else []
    return table(rows)


def _findings(findings: list[Finding]) -> str:
    rows = []
    for finding in findings:
        rows.append((MARKS[finding.level], f"{finding.subject}: {finding.text}"))
        if finding.remedy:
            rows.append(("", f"-> {finding.remedy}"))
    return table(rows)
