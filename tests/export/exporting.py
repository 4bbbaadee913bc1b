"""Exports a model for a test and runs it with onnxruntime, without keras_tx.runtime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx
import onnxruntime

from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, draw, redraw


def nodes_of(folder: Path) -> Counter[str]:
    graph = onnx.load(folder / "onnx" / "model.onnx", load_external_data=False).graph
    return Counter(node.op_type for node in graph.node)


def run(folder: Path, *inputs: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))


def exported(model: Any, folder: Path, **options: Any) -> Path:
    """Exports without verification, because the test compares the outputs."""
    export_onnx(model, folder, verify=False, **options)
    return folder


def example_model(lowering: Any) -> Any:
    inputs = keras.Input(lowering.shape, name="x")
    return redraw(keras.Model(inputs, lowering.example(inputs)))


def outputs_of(model: Any, *inputs: np.ndarray) -> list[np.ndarray]:
    packed = inputs[0] if len(inputs) == 1 else keras.tree.pack_sequence_as(model.input, list(inputs))
    return keras.tree.flatten(as_numpy(model(packed, training=False)))


def example_input(lowering: Any, batch: int = 3) -> np.ndarray:
    return draw(batch, *(5 if n is None else n for n in lowering.shape), seed=7)
