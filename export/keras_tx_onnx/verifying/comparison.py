"""Compares the written graph in onnxruntime with the Keras model, and finds the layer that differs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tx import contract
from keras_tx.errors import ExportError, RunError
from keras_tx.runtime.session import Session
from keras_tx_onnx import tolerances
from keras_tx_onnx.errors import Stateful
from keras_tx_onnx.interfaces.base import Interface
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.keras_patches import in_float32
from keras_tx_onnx.reading.symbolic_backend import Call
from keras_tx_onnx.verifying.cases import Case, cases_of, graph_inputs
from keras_tx_onnx.verifying.evidence import Variation


def cases_for(model: Any, outside: Interface) -> list[Case]:
    """The examples of the comparison, with Keras's outputs."""
    return cases_of(outside, expected_of(model, outside), model.count_params())


def expected_of(model: Any, outside: Interface) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
    """Returns a function from a list of the model's inputs to the outputs that the graph must return."""

    def expected(inputs: list[np.ndarray]) -> list[np.ndarray]:
        if outside.axes:
            functional_graph.check_sizes(model, [x.shape for x in inputs])
        return outside.expected(run_keras(model, inputs), inputs)

    return expected


def verify(
    path: Path, cases: Sequence[Case], outputs: list[str], precision: str = "fp32"
) -> tuple[contract.Parity, list[str]]:
    """Runs the graph on every case; raises an ExportError if a difference from Keras exceeds the tolerance.

    Returns the comparison, and the outputs that hardly vary, for which it proves nothing.
    """
    tolerance = tolerances.TOLERANCES[precision]
    worst = 0.0
    variations = {name: Variation() for name in outputs}
    with Session(path, provider="cpu") as session:
        for case in cases:
            got = _run(case, lambda given, run=case.run: run(session, given))
            for output, expected in zip(outputs, case.expected, strict=True):
                found = tolerances.difference(expected, got[output])
                if found > tolerance:
                    raise ExportError(
                        f"Output {output!r} differs from Keras by {found:.1e} of its scale in the case "
                        f"{case.name!r} ({precision} tolerance {tolerance:.0e})."
                    )
                worst = max(worst, found)
                variations[output].add(expected, got[output])
    parity = contract.Parity(worst, tolerance, tuple(case.name for case in cases))
    return parity, [name for name, variation in variations.items() if not variation.proves(tolerance)]


def _run(case: Case, run: Callable[[Any], Mapping[str, np.ndarray]]) -> Mapping[str, np.ndarray]:
    try:
        return run(case.given)
    except RunError as error:
        raise ExportError(
            f"onnxruntime cannot run the graph in the case {case.name!r}, which Keras runs: {error}"
        ) from error


def run_keras(model: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs at inference, flat: in float32, as the file computes, whatever the model's policy.

    Comparing with half precision would hide mistakes. On the CPU, because a GPU rounds the factors of a
    product to TF32. The model's variables stay unchanged; raises Stateful if the outputs depend on one that
    the call changes.
    """
    outputs, changed = _called(model, inputs, [])
    for factor in (2.0, -3.0) if changed else ():
        others = [(variable, _perturbed(variable, factor)) for variable in changed]
        again, _ = _called(model, inputs, others)
        if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(outputs, again, strict=True)):
            names = ", ".join(repr(variable.path) for variable in changed)
            raise Stateful(
                f"Model {model.name!r} changes {names} when it is called, and its outputs depend on it. A "
                "graph keeps no state between calls: make it an input and an output of the model."
            )
    return outputs


def _called(
    model: Any, inputs: list[np.ndarray], values: list[tuple[Any, Any]]
) -> tuple[list[np.ndarray], list[Any]]:
    """The outputs of a model with these values of its variables, and the variables that it assigns to."""
    packed = keras.tree.pack_sequence_as(functional_graph.function_of(model).input, inputs)
    with keras.device("cpu"), in_float32(), functional_graph.unchanged(values) as is_changed:
        outputs = [keras.ops.convert_to_numpy(y) for y in keras.tree.flatten(model(packed, training=False))]
        return outputs, [variable for variable in model.variables if is_changed(variable)]


def _perturbed(variable: Any, factor: float) -> Any:
    value = keras.ops.convert_to_numpy(variable)
    return np.logical_not(value) if value.dtype == bool else (value * factor + 1).astype(value.dtype)


def first_difference(
    model: Any,
    case: Case,
    write: Callable[[Any, Path], list[str]],
    tiers: Mapping[str, str],
    tolerance: float = tolerances.FLOAT32,
) -> str | None:
    """The first layer whose output differs, inside nested models too, and by how much.

    `write(probe, path)` lowers a model as the export did; `tiers` says by which tier each layer went.
    """
    probe, made = _probe(model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "probe.onnx")
        names = write(probe, path)
        with Session(path, provider="cpu") as session:
            got = _run(case, session.run)
    expected = run_keras(probe, case.inputs)
    in_order = zip(made, names[: len(made)], expected, strict=True)  # behind them come those of a cache
    for (layer, operation), name, value in in_order:
        found = tolerances.difference(value, got[name])
        if found > tolerance:
            kind = type(operation).__name__
            tier = tiers.get(layer, "an operation of keras.ops")
            return (
                f"The first layer that differs is {layer!r} ({kind}, {tier}), by {found:.1e} of its output's "
                f"scale in the case {case.name!r}."
            )
    return None


def _probe(model: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """The model with nested models unpacked and every intermediate value as an output.

    Also the layers, or operations, that made these, in order and as paths.
    """
    function = functional_graph.function_of(model)
    inputs = [keras.Input(batch_shape=x.shape, dtype=x.dtype, name=x.name) for x in function.inputs]
    made: list[tuple[str, Any]] = []
    tensors: list[Any] = []

    def unpacked(function: Any, values: list[Any], inside: str) -> list[Any]:
        def visit(call: Call) -> list[Any]:
            path = f"{inside}{call.operation.name}"
            if functional_graph.is_function(call.operation) and not functional_graph.has_own_call(
                call.operation
            ):
                given = graph_inputs(call, keras.KerasTensor)
                return unpacked(functional_graph.function_of(call.operation), given, f"{path}/")
            results = keras.tree.flatten(call.operation(*call.args, **call.kwargs))
            made.extend((path, call.operation) for _ in results)
            tensors.extend(results)
            return results

        return functional_graph.walk(function, values, visit)

    with functional_graph.building(model):
        unpacked(function, inputs, "")
        packed = keras.tree.pack_sequence_as(function.input, inputs)
        probe = keras.Model(packed, tensors, name="probe")
    return probe, made
