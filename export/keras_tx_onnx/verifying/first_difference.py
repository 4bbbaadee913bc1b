"""The first layer whose output differs from Keras."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_tx.runtime.session import Session
from keras_tx_onnx import tolerances
from keras_tx_onnx.graph.model_file import write_graph
from keras_tx_onnx.interfaces.base import Interface
from keras_tx_onnx.interfaces.model_graph import graph_of
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.input_uses import nested_inputs, nested_model
from keras_tx_onnx.reading.symbolic_backend import Call
from keras_tx_onnx.verifying.cases import Case, run_keras
from keras_tx_onnx.verifying.comparison import run_case


def first_difference(interface: Interface, cases: Iterable[Case], tiers: Mapping[str, str]) -> str | None:
    """Describes the first layer whose output differs in the first case with such a layer.

    Layers of nested models count. Returns None if no layer differs by more than the tolerance.

    Args:
        interface: the interface of the model.
        cases: the cases to compare.
        tiers: how each layer was lowered, by its path.
    """
    tolerance = interface.tolerance
    probe, layers = _probe(interface.model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "probe.onnx")
        outputs = [f"output_{index}" for index in range(len(probe.outputs))]
        context, graph = graph_of(interface, probe, outputs, graph_passes=())
        write_graph(graph, path)
        names = [str(value.name) for value in context.graph.outputs]  # those of a cache come last
        with Session(path, provider="cpu") as session:
            for case in cases:
                computed = run_case(case._replace(run=Session.run), session)
                expected = run_keras(probe, case.inputs)
                for (layer, operation), name, value in zip(layers, names, expected, strict=False):
                    difference = tolerances.difference(value, computed[name])
                    if difference > tolerance:
                        kind = type(operation).__name__
                        tier = tiers.get(layer, "an operation of keras.ops")
                        return (
                            f"The first layer that differs is {layer!r} ({kind}, {tier}), by "
                            f"{difference:.1e} of its output's scale in the case {case.name!r}."
                        )
    return None


def _probe(model: Any) -> tuple[Any, Sequence[tuple[str, Any]]]:
    """The model with nested models unpacked and every intermediate value as an output.

    Also the paths and operations of the layers that compute them, in order.
    """
    function = functional_graph.function_of(model)
    inputs = [keras.Input(batch_shape=x.shape, dtype=x.dtype, name=x.name) for x in function.inputs]
    layers: list[tuple[str, Any]] = []
    tensors: list[Any] = []

    def unpack(function: Any, values: list[Any], scope: str) -> list[Any]:
        def visit(call: Call) -> list[Any]:
            path = f"{scope}{call.operation.name}"
            nested = nested_model(call)
            if nested is not None:
                inner = f"{path}/" if functional_graph.name_of(call.operation) else scope
                return unpack(nested, nested_inputs(call, keras.KerasTensor), inner)
            results = keras.tree.flatten(call.operation(*call.args, **call.kwargs))
            layers.extend((path, call.operation) for _ in results)
            tensors.extend(results)
            return results

        return functional_graph.walk(function, values, visit)

    with functional_graph.building(model):
        unpack(function, inputs, "")
        packed = keras.tree.pack_sequence_as(function.input, inputs)
        probe = keras.Model(packed, tensors, name="probe")
    return probe, layers
