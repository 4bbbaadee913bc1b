"""Which integers the inputs of a graph accept: the sizes of the embedding tables that they index."""

from __future__ import annotations

from typing import Any

import keras

from keras_tx.runtime.example_inputs import Use
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.symbolic_backend import Call


class _Integers:
    """Represents a tensor of integers, or of other numbers if it is computed from no input."""

    def __init__(self, inputs: frozenset[int] = frozenset()):
        self.inputs = inputs  # the indices of the inputs that it is computed from


def nested_model(call: Call) -> Any:
    """The functional graph of a model that is called inside a model; None for any other operation."""
    if functional_graph.is_function(call.operation) and not functional_graph.has_own_call(call.operation):
        return functional_graph.function_of(call.operation)
    return None


def nested_inputs(call: Call, kind: type) -> list[Any]:
    """The arguments of the call of a nested model that are its inputs; a mask belongs to another argument."""
    passed = call.args[0] if call.args else call.kwargs.get("inputs")
    return [x for x in keras.tree.flatten(passed) if isinstance(x, kind)]


def input_uses(function: Any) -> list[Use]:
    """How a graph uses the integers of each of its inputs."""
    tables: list[list[Any]] = [[] for _ in function.inputs]

    def visit(call: Call) -> list[_Integers]:
        nested = nested_model(call)
        if nested is not None:
            return functional_graph.walk(nested, nested_inputs(call, _Integers), visit)
        arguments = keras.tree.flatten((call.args, call.kwargs))
        inputs = frozenset().union(*(x.inputs for x in arguments if isinstance(x, _Integers)))
        if isinstance(call.operation, keras.layers.Layer):
            parts = functional_graph.parts(call.operation)
            for index in inputs:
                tables[index] += [part for part in parts if isinstance(part, keras.layers.Embedding)]
        return [
            _Integers(inputs if keras.backend.is_int_dtype(tensor.dtype) else frozenset())
            for tensor in call.outputs
        ]

    functional_graph.walk(function, [_Integers(frozenset([index])) for index in range(len(tables))], visit)
    return [_use(embeddings) for embeddings in tables]


def _use(embeddings: list[Any]) -> Use:
    if not embeddings:
        return Use()
    padding = 0 if any(embedding.mask_zero for embedding in embeddings) else None
    return Use(min(embedding.input_dim for embedding in embeddings), padding)
