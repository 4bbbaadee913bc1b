"""Exports operations and compares outputs with Keras: values, shapes and kinds of dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests.drawing import redraw
from tests.export.exporting import exported, outputs_of, run
from tests.tolerances import FP32, assert_close

KINDS = {"f": "float32", "i": "int64", "u": "int64", "b": "bool"}
FEEDS = {"float32": "float32", "int32": "int64", "int64": "int64", "uint8": "int64", "bool": "bool"}


def equals_keras(
    call: Callable[..., Any],
    folder: Path,
    *inputs: np.ndarray,
    again: Sequence[np.ndarray] = (),
    dynamic: Sequence[int] = (),
    opset: int = 23,
    tolerance: float = FP32,
) -> Path:
    """Exports once, and runs on `inputs` and `again`; axis 0 and the `dynamic` axes have no fixed size."""
    tensors = [
        keras.Input(
            tuple(None if axis in dynamic else n for axis, n in enumerate(x.shape[1:], 1)),
            dtype=x.dtype.name,
            name=f"x{index}",
        )
        for index, x in enumerate(inputs)
    ]
    both = [inputs, again] if len(again) else [inputs]
    try:
        model = redraw(keras.Model(tensors if len(tensors) > 1 else tensors[0], call(*tensors)))
        answers = [outputs_of(model, *arrays) for arrays in both]
    except Exception as error:
        if keras.backend.backend() == "tensorflow":
            raise
        pytest.skip(f"Keras itself cannot on this backend: {type(error).__name__}")
    out = exported(model, folder / "out", opset=opset)
    for arrays, expected in zip(both, answers, strict=True):
        results = run(out, *(x.astype(FEEDS[x.dtype.name]) for x in arrays))
        for got, reference in zip(results, expected, strict=True):
            assert got.dtype.name == KINDS[reference.dtype.kind], f"{got.dtype} for Keras's {reference.dtype}"
            same_values(got, reference, tolerance)
    return out


def same_values(got: np.ndarray, reference: np.ndarray, tolerance: float = FP32) -> None:
    """Integers are equal; floats are close, with NaN and infinities at the same positions."""
    assert got.shape == reference.shape, f"shape {got.shape}, expected {reference.shape}"
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, reference)
        return
    finite = np.isfinite(reference)
    np.testing.assert_array_equal(np.where(finite, 0, got), np.where(finite, 0, reference))
    assert_close(np.where(finite, got, 0), np.where(finite, reference, 0), tolerance)
