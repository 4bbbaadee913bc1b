"""Compares exported functions of one input with Keras, for several layers and opsets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx
from tests.drawing import draw, redraw
from tests.export.exporting import exported, nodes_of, outputs_of, run
from tests.tolerances import FP32, assert_close


def same(
    call: Callable[[Any], Any],
    shape: Sequence[int | None],
    folder: Path,
    *,
    opsets: Sequence[int] = (23,),
    sizes: Sequence[Sequence[int]] = (),
    values: np.ndarray | None = None,
    dtype: str = "float32",
    tolerance: float = FP32,
) -> Counter[str]:
    """Exports a model of one input, compares it with Keras, and returns the number of nodes by type.

    `sizes` are the shapes to try where `shape` is dynamic; `values` is an array in place of a random one.
    """
    x = keras.Input(shape, name="x", dtype=dtype)
    model = redraw(keras.Model(x, call(x)))
    arrays = [draw(3, *size, seed=7) for size in sizes or [shape]] if values is None else [values]
    nodes: Counter[str] = Counter()
    folder.mkdir(exist_ok=True)
    for opset in opsets:
        out = exported(model, folder / f"opset_{opset}", opset=opset)
        nodes = nodes_of(out)
        for array in arrays:
            results = zip(run(out, array), outputs_of(model, array), strict=True)
            for index, (got, expected) in enumerate(results):
                try:
                    assert_close(got, expected, tolerance)
                except AssertionError as error:
                    name = model.output_names[index]
                    raise AssertionError(f"{name}, opset {opset}, {array.shape}: {error}") from None
    return nodes


def refused(call: Callable[[Any], Any], shape: Sequence[int | None], folder: Path, message: str) -> None:
    x = keras.Input(shape, name="x")
    with pytest.raises(ExportError, match=message):
        export_onnx(keras.Model(x, call(x)), folder / "refused", verify=False)
    assert not (folder / "refused").exists()
