"""keras-tx doctor: installed versions, devices and conflicts."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from keras_tx import kernels
from keras_tx.commands.terminal import table
from keras_tx.errors import ConfigError

if TYPE_CHECKING:
    from keras_tx.doctor import Facts, Finding
    from keras_tx.runtime.node_placement import Placement

SUMMARY = "show versions, providers and GPUs, and report conflicts with their remedies"
DESCRIPTION = """\
Shows installed versions (read from package metadata, without importing anything), the providers of
onnxruntime and the GPUs that nvidia-smi lists. Reports conflicts, each with its remedy: two onnxruntime
wheels or none, CUDA libraries of different major versions, a driver that is too old, CUDA that does not
start, and unsupported versions. Works on a serving machine without Keras.

With FOLDER and --target: how many nodes of an exported graph onnxruntime runs on the target, and which it
runs on the CPU, by its version. They follow from a table of onnxruntime's kernels; the target is not needed.
"""
EPILOG = """\
examples:
  keras-tx doctor
  keras-tx doctor --deep     also start TensorFlow, JAX and PyTorch and list their GPUs (some seconds)
  keras-tx doctor --json     for a bug report
  keras-tx doctor flowers --target webgpu

exit codes: 0 no problem (there may be warnings); 1 a problem, or nodes of FOLDER that the newest onnxruntime
runs on the CPU, in a graph of any precision.
"""
MARKS = {"ok": "ok", "warning": "warning", "problem": "PROBLEM"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", nargs="?", help="an exported folder, with --target")
    parser.add_argument(
        "--target", choices=tuple(kernels.TARGETS), help="predict where the nodes of FOLDER run"
    )
    parser.add_argument("--deep", action="store_true", help="also start the frameworks and list their GPUs")
    parser.add_argument("--json", action="store_true", help="print facts and findings as one JSON object")


def execute(arguments: argparse.Namespace) -> int:
    from keras_tx.doctor import diagnose
    from keras_tx.environment import gather

    if (arguments.folder is None) != (arguments.target is None):
        raise ConfigError("FOLDER and --target belong together. Pass both, or neither.")
    if arguments.folder is not None and arguments.deep:
        raise ConfigError("--deep starts frameworks, which FOLDER does not need. Omit --deep, or FOLDER.")
    if arguments.folder is not None:
        return _placement(Path(arguments.folder), arguments.target, arguments.json)
    facts = gather(deep=arguments.deep)
    findings = diagnose(facts)
    if arguments.json:
        content = {"facts": dataclasses.asdict(facts), "findings": [dataclasses.asdict(f) for f in findings]}
        print(json.dumps(content, indent=2))
    else:
        print(_versions(facts), _findings(findings), sep="\n\n")
    return 1 if any(finding.level == "problem" for finding in findings) else 0


def _placement(root: Path, target: str, as_json: bool) -> int:
    """Prints where the nodes of each graph run, by the version of onnxruntime."""
    from keras_tx.runtime.node_placement import of_folder

    placements = of_folder(root, target)
    if as_json:
        content = {
            name: {version: vars(x) for version, x in rows.items()} for name, rows in placements.items()
        }
        print(json.dumps(content, indent=2))
    for name, rows in placements.items() if not as_json else ():
        print(f"{root / name} on {target}")
        ranges: list[tuple[Placement, list[str]]] = []
        for version, placement in rows.items():
            if ranges and ranges[-1][0] == placement:
                ranges[-1][1].append(version)
            else:
                ranges.append((placement, [version]))
        print(table([_placement_row(target, versions, x) for x, versions in ranges]), end="\n\n")
    tested = kernels.TARGETS[target].tested
    if not as_json:
        how = f"tested with {tested}" if tested else "compared with documentation, not run"
        print(f"According to onnxruntime's kernels for {target} ({how}).")
    return 1 if any(next(reversed(rows.values())).fallback for rows in placements.values()) else 0


def _placement_row(target: str, versions: list[str], placement: Placement) -> list[str]:
    name = versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
    listed = ", ".join(f"{count} {operator}" for operator, count in placement.fallback.most_common())
    elsewhere = "on CUDA or the CPU" if target == "tensorrt" else "on the CPU"
    on_cpu = f"{elsewhere}: {listed}" if listed else f"none {elsewhere}"
    sizes = f"{placement.sizes} of sizes" if placement.sizes else ""
    return [f"onnxruntime {name}", f"{placement.target} nodes on {target}", sizes, on_cpu]


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
