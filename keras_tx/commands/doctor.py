"""keras-tx doctor: what is installed, and what does not fit together."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_tx.doctor import Facts, Finding

SUMMARY = "versions, providers, GPU, and conflicts with their remedies"
DESCRIPTION = """\
Lists what is installed (from the packages' metadata, without importing them), which providers onnxruntime
has, and which GPU nvidia-smi shows; and says what does not fit together, each with its remedy: both
onnxruntime wheels at once or neither, CUDA of different majors, a driver too old for it, an onnxruntime too
old for opset 23, CUDA that does not start, versions that keras-tx was not tried with. Works on a serving
machine without Keras.
"""
EPILOG = """\
examples:
  keras-tx doctor
  keras-tx doctor --deep          also starts TensorFlow, JAX and PyTorch and asks them for GPUs; some seconds
  keras-tx doctor --json          for a bug report

exit codes: 0 nothing is broken, warnings included; 1 a problem was found.
"""
MARKS = {"ok": "ok", "warning": "warning", "problem": "PROBLEM"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deep", action="store_true", help="start the frameworks and ask them for GPUs")
    parser.add_argument("--json", action="store_true", help="facts and findings as one JSON object")


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
    rows += [("CUDA by pip", ", ".join(libraries))] if libraries else []
    rows += [("not installed", ", ".join(absent))] if absent else []
    return "\n".join(f"{name:<18}{value}" for name, value in rows)


def _findings(findings: list[Finding]) -> str:
    lines = []
    for finding in findings:
        lines.append(f"{MARKS[finding.level]:<9}{finding.subject}: {finding.text}")
        if finding.remedy:
            lines.append(f"{'':<9}-> {finding.remedy}")
    return "\n".join(lines)
