"""Folders with files of every precision. Each file is a case with its own tolerance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras_tx import contract
from tests.tolerances import FP32, HALF

LADDER = "ladder"  # what the names of these folders begin with

# Kernels other than ours round a number on the border of two steps to either side; a wrong scale, axis or
# zero point is off by the whole output.
STEPS = 5e-2
TOLERANCES = {
    "fp32": FP32,
    "fp16": HALF["mixed_float16"],
    "int8": STEPS,
    "int8-blocks": STEPS,
    "int8-dynamic": STEPS,
    "int4": STEPS,
}


def of(name: str, task: str | None = None) -> list[str]:
    """The precisions of a folder; only a decoder needs its task."""
    return list(contract.precisions_of(task)) if name.startswith(LADDER) else ["fp32"]


def cases(
    name: str, answer: Callable[[str], dict[str, Any]], task: str | None = None
) -> dict[str, dict[str, Any]]:
    """What `answer` gives for each precision, and which file that is; by "folder" or "folder@precision"."""
    return {
        name if precision == "fp32" else f"{name}@{precision}": {
            "folder": name,
            "precision": precision,
            "file": contract.PRECISIONS[precision],
            "rounded": TOLERANCES[precision],
            **answer(precision),
        }
        for precision in of(name, task)
    }
