"""Compares the written graph in onnxruntime with the Keras model, and finds the layer that differs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tx import contract
from keras_tx.errors import ExportError, KerasTxError
from keras_tx.models import TransformerModel
from keras_tx.runtime.session import Session
from keras_tx_onnx import graph, tolerances

BATCHES = (1, 3)
SEED = 0
HALF = ("float16", "bfloat16")

Inputs = dict[str, np.ndarray]
Case = tuple[str, Inputs, list[np.ndarray]]  # its name, what onnxruntime gets, what Keras gets


def verify(path: Path, model: Any, cases: list[Case], outputs: list[str]) -> contract.Parity:
    """Runs both sides on every case; raises where they differ by more than the tolerance."""
    worst = 0.0
    with Session(path, provider="cpu") as session:
        for name, given, keras_inputs in cases:
            try:
                got = session.run(given)
            except KerasTxError:
                raise
            except Exception as error:  # onnxruntime's exceptions have no base class of their own
                said = str(error).strip().splitlines()[0]
                raise ExportError(f"onnxruntime cannot run the graph in the case {name!r}: {said}") from error
            reference = run_keras(model, keras_inputs)
            for output, expected in zip(outputs, reference, strict=True):
                found = tolerances.difference(expected, got[output])
                if found > tolerances.FLOAT32:
                    raise ExportError(
                        f"Output {output!r} differs from Keras by {found:.1e} of its scale in the case "
                        f"{name!r} (tolerance {tolerances.FLOAT32:.0e})."
                    )
                worst = max(worst, found)
    return contract.Parity(worst, tolerances.FLOAT32, tuple(name for name, _, _ in cases))


def run_keras(model: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs at inference, flat; on the CPU, because a GPU rounds the factors of a product to TF32."""
    packed = keras.tree.pack_sequence_as(graph.function_of(model).input, inputs)
    with keras.device("cpu"):
        return [keras.ops.convert_to_numpy(y) for y in keras.tree.flatten(model(packed, training=False))]


def in_float32(model: Any) -> Any:
    """The model, or where its policy computes in less than float32, a copy that does not.

    The file computes in float32; comparing it with half precision would hide mistakes.
    """
    if not _reduced(model):
        return model
    if isinstance(model, TransformerModel):
        return model.with_policy("float32")

    def clone(operation: Any) -> Any:
        config = operation.get_config()
        if isinstance(operation, keras.layers.Layer):
            config["dtype"] = "float32"
        return type(operation).from_config(config)

    if isinstance(model, keras.Sequential):
        copy = keras.models.clone_model(model, clone_function=clone)
    else:
        copy = keras.models.clone_model(model, clone_function=clone, recursive=True)
    copy.set_weights(model.get_weights())
    left = _reduced(copy)
    if left:
        raise ExportError(
            f"Layer {left[0].name!r} computes in {left[0].compute_dtype}, and its config leaves no way to "
            "make a float32 copy of it to compare with. Build the model under a float32 policy, or pass "
            "verify=False."
        )
    return copy


def _reduced(model: Any) -> list[Any]:
    """The layers that compute in half precision."""
    return [
        layer
        for layer in model._flatten_layers(include_self=False)
        if layer.compute_dtype in HALF and not isinstance(layer, keras.layers.InputLayer | keras.Model)
    ]


def first_difference(model: Any, case: Case, write: Callable[[Any, Path], list[str]]) -> str | None:
    """The first layer whose output differs, and by how much.

    `write(probe, path)` lowers a model as the export did.
    """
    _, given, keras_inputs = case
    made = [
        (op.name, tensor) for op, tensors in graph.operations(graph.function_of(model)) for tensor in tensors
    ]
    probe = keras.Model(model.inputs, [tensor for _, tensor in made], name="probe")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "probe.onnx")
        names = write(probe, path)
        with Session(path, provider="cpu") as session:
            got = session.run(given)
    for (layer, _), name, expected in zip(made, names, run_keras(probe, keras_inputs), strict=True):
        found = tolerances.difference(expected, got[name])
        if found > tolerances.FLOAT32:
            return f"The first layer that differs is {layer!r}, by {found:.1e} of its output's scale."
    return None
