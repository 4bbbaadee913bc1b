"""Walks the graph of a Keras model. The only file that touches Keras's private graph interfaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
from keras import tree

from keras_tx.errors import ExportError

Call = Callable[[Any, tuple, dict, list], Any]


def function_of(model: Any) -> Any:
    """The functional graph of a model."""
    function = getattr(model, "_functional", model)  # keras.Sequential holds one
    if not model.built or not hasattr(function, "_nodes_by_depth"):
        state = "was never built: call it on data once" if not model.built else "is not functional"
        raise ExportError(
            f"Model {model.name!r} ({type(model).__name__}) {state}. Functional models can be exported, such "
            "as those of keras_tx.vit() or keras.Model(inputs, outputs)."
        )
    if not type(model).call.__module__.startswith("keras.src."):
        raise ExportError(
            f"Model {model.name!r} ({type(model).__name__}) has a `call` of its own, which its graph does "
            "not show. "
            "Export the functional model inside it."
        )
    return function


def parts(layer: Any) -> list[Any]:
    """A layer and all layers inside it."""
    return list(layer._flatten_layers())


def is_function(operation: Any) -> bool:
    """Whether a node of a graph is a model with a graph of its own."""
    return hasattr(getattr(operation, "_functional", operation), "_nodes_by_depth")


def is_keras_operation(operation: Any) -> bool:
    """Whether this is one of keras.ops, and not a layer."""
    return not isinstance(operation, keras.layers.Layer) and type(operation).__module__.startswith(
        "keras.src.ops."
    )


def walk(function: Any, inputs: list[Any], call: Call) -> list[Any]:
    """Runs `call(operation, args, kwargs, outputs)` for each operation in order; gives the outputs' values.

    `inputs` are the values of the function's inputs, flat. Arguments arrive with values in the place of
    Keras tensors; `outputs` are the Keras tensors that the operation made.
    """
    expected = function.inputs
    if len(inputs) != len(expected):
        raise ExportError(
            f"{function.name!r} takes {len(expected)} inputs, but is called with {len(inputs)}."
        )
    values = dict(zip(map(id, expected), inputs, strict=True))
    for depth in sorted(function._nodes_by_depth, reverse=True):
        for node in function._nodes_by_depth[depth]:
            if node.is_input or any(id(x) not in values for x in node.input_tensors):
                continue
            args, kwargs = node.arguments.fill_in(values)
            results = tree.flatten(call(node.operation, args, kwargs, node.outputs))
            if len(results) != len(node.outputs):
                raise ExportError(
                    f"The lowering of {node.operation.name!r} gave {len(results)} values for "
                    f"{len(node.outputs)} outputs."
                )
            values.update(zip(map(id, node.outputs), results, strict=True))
    return [values[id(x)] for x in function.outputs]


def operations(function: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Each operation of a graph with the Keras tensors that it makes, in order."""
    for depth in sorted(function._nodes_by_depth, reverse=True):
        for node in function._nodes_by_depth[depth]:
            if not node.is_input:
                yield node.operation, node.outputs


def open_layer(layer: Any, args: Any, kwargs: Any) -> Any:
    """What a layer's `call` does, as a function of the Keras tensors among its arguments.

    The layer is left as it was.
    """
    with _untouched(layer):
        outputs = layer.call(*args, **kwargs)
        tensors = [x for x in tree.flatten((args, kwargs)) if isinstance(x, keras.KerasTensor)]
        return keras.Function(tensors, outputs, name=layer.name)


@contextmanager
def _untouched(layer: Any) -> Iterator[None]:
    """Takes back the nodes that symbolic calls leave behind in a layer and its parts."""
    inside = parts(layer)
    before = [(len(part._inbound_nodes), len(part._outbound_nodes)) for part in inside]
    try:
        yield
    finally:
        for part, (inbound, outbound) in zip(inside, before, strict=True):
            del part._inbound_nodes[inbound:]
            del part._outbound_nodes[outbound:]
