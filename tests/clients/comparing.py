"""What the acceptance scripts in Python share. Their environments have no keras_tx: NumPy only."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# What a client says about the pictures: the output (batch, ...), and labels with scores, best first.
Answer = tuple[np.ndarray, list[list[dict[str, Any]]] | None]


def main(client: str, answer: Callable[[Path, dict[str, Any], list[Path]], Answer]) -> None:
    """Asks the client about every folder and prints one line; exits with 1 where an answer is wrong."""
    out = Path(sys.argv[1])
    reference = json.loads((out / "reference.json").read_text(encoding="utf-8"))
    found, wrong = [], []
    for name, case in reference["cases"].items():
        try:
            values, scores = answer(out / name, case, [out / picture for picture in case["pictures"]])
            gap = difference(values, np.asarray(case["values"]))
            if case["scores"] is not None and scores is not None:
                gap = max(gap, difference_of_scores(scores, case["scores"]))
        except Exception as error:  # whatever it raises is its refusal; the other folders are still tried
            wrong.append(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:500]}")
            continue
        found.append(f"{name} {gap:.1e}")
        if not gap <= reference["tolerance"]:
            wrong.append(f"{name}: differs by {gap:.1e} of the scale")
    limit = f"(tolerance {reference['tolerance']:.0e})"
    print(f"{client}: {'FAILED' if wrong else 'ok'}: {', '.join(found)} {limit}", *wrong, sep="\n    ")
    sys.exit(bool(wrong))


def difference(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the scale of what is expected, as in tests/tolerances.py."""
    if got.shape != expected.shape:
        raise ValueError(f"the shape is {got.shape}, expected {expected.shape}")
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def difference_of_scores(got: list[list[dict[str, Any]]], expected: list[list[dict[str, Any]]]) -> float:
    """The largest difference of a score; labels and their order must be the same."""
    for ours, theirs in zip(expected, got, strict=True):
        if [each["label"] for each in ours] != [each["label"] for each in theirs]:
            raise ValueError(f"the labels are {theirs}, expected {ours}")
    numbers = [np.array([[each["score"] for each in one] for one in many]) for many in (got, expected)]
    return float(np.abs(numbers[0] - numbers[1]).max())
