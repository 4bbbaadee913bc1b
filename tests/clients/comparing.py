"""Functions that the acceptance scripts in Python share, with NumPy only."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

PAGE = Path(__file__).parents[2] / "docs/clients.md"
AT_PADDING = -10000.0  # what a graph gives there for the beginning and end of an answer


class Comparison:
    """What a client answered about one folder, compared with our runtime."""

    def __init__(self) -> None:
        self.gap = 0.0

    def close(self, name: str, got: Any, expected: Any) -> None:
        """Notes the largest difference, relative to the scale of what is expected (tests/tolerances.py)."""
        got, expected = np.asarray(got, "float64"), np.asarray(expected, "float64")
        if got.shape != expected.shape:
            raise ValueError(f"{name} has the shape {got.shape}, expected {expected.shape}")
        real = expected != AT_PADDING
        self.same(f"{name} at padding", bool((got[~real] == AT_PADDING).all()), True)
        gap = np.abs(got[real] - expected[real]).max() / np.abs(expected[real]).max()
        self.gap = max(self.gap, float("inf") if np.isnan(gap) else float(gap))

    def same(self, name: str, got: Any, expected: Any) -> None:
        if got != expected:
            raise ValueError(f"{name} is {got!r}, expected {expected!r}")

    def similar(self, name: str, got: Any, expected: Any) -> None:
        """Numbers close and all else the same, at any depth; of texts what is ASCII: half a character is
        written in more than one way."""
        if isinstance(expected, str):
            self.same(name, *(text.encode("ascii", "ignore").decode() for text in (got, expected)))
        elif isinstance(expected, dict):
            self.same(f"{name}: keys", sorted(got), sorted(expected))
            for key, value in expected.items():
                self.similar(f"{name}: {key}", got[key], value)
        elif isinstance(expected, list) and expected and isinstance(expected[0], dict):
            self.same(f"{name}: length", len(got), len(expected))
            for one, other in zip(got, expected, strict=True):
                self.similar(name, one, other)
        else:
            self.close(name, got, expected)

    def scores(self, name: str, got: Sequence[Any], expected: Sequence[Any]) -> None:
        """Of entries with a label and a score, in the same order."""
        self.same(f"{name}: labels", [x["label"] for x in got], [x["label"] for x in expected])
        self.close(f"{name}: scores", [x["score"] for x in got], [x["score"] for x in expected])


# Asks the client about a folder and compares.
Ask = Callable[[Path, dict[str, Any], Comparison], None]


def main(
    client: str,
    version: str,
    asks: Mapping[str, Ask],
    only: Callable[[dict[str, Any]], bool] = lambda case: True,
    own_kernels: bool = False,
) -> None:
    """Asks about every folder of these kinds, and runs the lines that docs/clients.md has for the client.

    Prints one line, and what is wrong; exits with 1 where something is. A client with kernels of its own, not
    onnxruntime's, rounds in other places: its answers about files of lower precision may be that much apart.
    """
    out = Path(sys.argv[1]).absolute()
    reference = json.loads((out / "reference.json").read_text(encoding="utf-8"))
    tries: dict[str, Callable[[Comparison], None]] = {}
    limits: dict[str, float] = {}
    for name, case in reference["cases"].items():
        if case["kind"] in asks and only(case):
            ask = functools.partial(asks[case["kind"]], out / case["folder"], case)
            refusal = case.get("refused_by", {}).get(client)
            tries[name] = functools.partial(refused, ask, refusal) if refusal else ask
            limits[name] = case["rounded"] if own_kernels else reference["tolerance"]
    files = len(tries)
    blocks = re.findall(r"```py\n(.*?)```", section(client), re.DOTALL)
    answers = reference["documented"][client]
    for number, (block, expected) in enumerate(zip(blocks, answers, strict=True), 1):
        inputs = {name: np.asarray(x, "float32") for name, x in reference["documented"]["given"].items()}
        tries[f"{PAGE.name}, block {number}"] = functools.partial(
            run, out / "documented", block, inputs, expected
        )
    gaps, wrong = {}, []
    for name, attempt in tries.items():
        comparison = Comparison()
        try:
            attempt(comparison)
        except Exception as error:  # whatever it raises is its refusal; the other folders are still tried
            wrong.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:700]}")
            continue
        gaps[name] = comparison.gap
        if not comparison.gap <= limits.get(name, reference["tolerance"]):
            wrong.append(f"{name}: differs by {comparison.gap:.1e} of the scale")
    print(
        f"{client} {version}: {'FAILED' if wrong else 'ok'}: {files} files and the lines of {PAGE.name}; the "
        f"largest differences {'; '.join(_largest(gaps, limits, reference['tolerance']))}",
        *wrong,
        sep="\n    ",
    )
    sys.exit(bool(wrong))


def refused(attempt: Callable[[Comparison], None], expected: str, comparison: Comparison) -> None:
    """Raises an error unless the client refuses a folder with the error that the page names."""
    try:
        attempt(comparison)
    except Exception as error:  # each library has its own
        if expected not in " ".join(str(error).split()):
            raise
        comparison.gap = 0.0
        return
    raise ValueError(f"{PAGE.name} says that it does not run this folder, but it does")


def _largest(gaps: Mapping[str, float], limits: Mapping[str, float], tolerance: float) -> list[str]:
    """Of the files with the same tolerance, the one that differs most."""
    grouped: dict[float, list[str]] = {}
    for name in gaps:
        grouped.setdefault(limits.get(name, tolerance), []).append(name)
    lines = []
    for limit, names in sorted(grouped.items()):
        worst = max(names, key=gaps.__getitem__)
        lines.append(f"{gaps[worst]:.1e} ({worst}), tolerance {limit:.0e}")
    return lines


def section(client: str) -> str:
    """What the page says about a client."""
    text = PAGE.read_text(encoding="utf-8")
    return text.partition(f"\n## {client}\n")[2].partition("\n## ")[0]


def run(place: Path, block: str, inputs: dict[str, Any], expected: Any, comparison: Comparison) -> None:
    """Runs the lines of a block where its folders are, and compares what the last of them gives."""
    *lines, last = ast.parse(block).body
    assert isinstance(last, ast.Expr)
    before = Path.cwd()
    os.chdir(place)
    try:
        exec(compile(ast.Module(lines, []), PAGE.name, "exec"), inputs)
        comparison.similar(
            "it", eval(compile(ast.Expression(last.value), PAGE.name, "eval"), inputs), expected
        )
    finally:
        os.chdir(before)


def fed(batch: Mapping[str, Any], names: Sequence[str]) -> dict[str, np.ndarray]:
    """What our runtime fed, as arrays."""
    return {name: np.asarray(batch[name], "int64") for name in names if name in batch}
