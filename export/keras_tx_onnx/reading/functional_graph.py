"""The graph of a Keras model, and the walk over it. Only this file reads Keras's private graph interfaces."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import keras
import onnx_ir as ir
from keras import tree
from keras.src.activations import activations as operations_activations
from keras.src.applications import convnext, inception_resnet_v2
from keras.src.backend import get_stateless_scope, set_keras_mask
from keras.src.layers.rnn import conv_lstm
from keras.src.ops import core as operations_core
from keras.src.ops import image as operations_image
from keras.src.ops import linalg as operations_linalg
from keras.src.ops import math as operations_math
from keras.src.ops import nn as operations_nn
from keras.src.ops import numpy as operations_numpy

from keras_tx.errors import ExportError
from keras_tx.models.transformer_model import TransformerModel
from keras_tx_onnx.reading import keras_patches
from keras_tx_onnx.reading.symbolic_backend import Call, Trace, Tracer, tensors_in
from keras_tx_onnx.reading.symbolic_sizes import Observer

_OPERATIONS = (
    operations_core,
    operations_numpy,
    operations_nn,
    operations_math,
    operations_image,
    operations_linalg,
    operations_activations,
)

set_mask = set_keras_mask
# Layers of keras.applications without a public name.
LayerScale, StochasticDepth = convnext.LayerScale, convnext.StochasticDepth
CustomScaleLayer = inception_resnet_v2.CustomScaleLayer
ConvLSTMCell = conv_lstm.ConvLSTMCell  # without a public name, too


def function_of(model: Any) -> Any:
    """The functional graph of a model; keras.Sequential holds one."""
    return getattr(model, "_functional", model)


def has_own_call(model: Any) -> bool:
    """Whether the class of a model has its own `call`, which may differ from the graph."""
    call = type(model).call
    return not call.__module__.startswith("keras.src.") and call is not TransformerModel.call


def parts(layer: Any) -> list[Any]:
    """A layer and all layers inside it."""
    return list(layer._flatten_layers())


def trainable_variables(model: Any) -> list[Any]:
    """The trainable variables, frozen or not, each once."""
    variables = {id(v): v for part in parts(model) for v in part._trainable_variables}
    return list(variables.values())


def last_operations(function: Any) -> list[Any]:
    """The operations that compute the outputs of a function."""
    return [tensor._keras_history.operation for tensor in function.outputs]


def final_operation(tensor: Any) -> Any:
    """The operation that computes a tensor of a graph, inside nested models too."""
    history = tensor._keras_history
    if not is_function(history.operation) or has_own_call(history.operation):
        return history.operation
    return final_operation(function_of(history.operation).outputs[history.tensor_index])


def first_input(operation: Any) -> Any:
    """The first tensor with which an operation of a graph was called last."""
    return operation._inbound_nodes[-1].input_tensors[0]


def is_function(operation: Any) -> bool:
    """Whether a node of a graph is a model with its own graph."""
    return hasattr(function_of(operation), "_nodes_by_depth")


def call_parameters(model: Any) -> list[inspect.Parameter]:
    """The parameters of a model's `call`, without `training`, which is False in an export."""
    return [p for p in inspect.signature(model.call).parameters.values() if p.name != "training"]


def is_read(model: Any, argument: str) -> bool:
    """Whether the code of a model's `call` reads an argument; True if the code is not available."""
    code = getattr(inspect.unwrap(type(model).call), "__code__", None)
    if code is None or argument in code.co_cellvars:
        return True
    loads = (x for x in dis.get_instructions(code) if x.opname.startswith("LOAD_FAST"))
    return any(argument in (x.argval if isinstance(x.argval, tuple) else (x.argval,)) for x in loads)


def shapes_of_first_call(model: Any) -> tuple[dict[str, Any], set[str]]:
    """The shapes that Keras recorded when it built a model, and the arguments that it records, by name.

    It records those that `build` names, `x_shape` for `x`. A `build` with one parameter, such as Keras's own,
    receives the shape of the first tensor among its arguments.
    """
    shapes = {name: x for name, x in (model._build_shapes_dict or {}).items() if x is not None}
    names = list(inspect.signature(model.build).parameters)
    if len(names) == 1 or not model.built:
        first = [p.name for p in call_parameters(model)][:1]
        return dict(zip(first, shapes.values(), strict=False)), set(first)
    return {name.removesuffix("_shape"): x for name, x in shapes.items()}, {
        name.removesuffix("_shape") for name in names
    }


def was_called(model: Any) -> bool:
    return model._called


def is_keras_operation(operation: Any) -> bool:
    """Whether this is one of keras.ops or keras.activations, and not a layer."""
    module = type(operation).__module__
    known = module.startswith(("keras.src.ops.", "keras.src.activations."))
    return known and not isinstance(operation, keras.layers.Layer)


def name_of(operation: Any) -> str:
    """The name, without Keras's counter of all operations in the process; "" for a keras.Function."""
    if isinstance(operation, keras.Function) and not isinstance(operation, keras.layers.Layer):
        return ""
    stem, _, number = operation.name.rpartition("_")
    kind = getattr(operation, "traced", type(operation).__name__)
    counted = number.isdigit() and stem.replace("_", "") == kind.lower()
    return stem if counted and not isinstance(operation, keras.layers.Layer) else operation.name


def head_input(output: Any) -> Any:
    """The tensor from which the head of a model computes its output; None if it needs other tensors as well.

    The head is the last layer or operation with a matrix. What follows it, such as a scale, has one tensor.
    """
    tensor = output
    while True:
        operation, index, _ = tensor._keras_history
        node = operation._inbound_nodes[index]
        sources = {id(x): x for x in node.input_tensors}
        if len(sources) != 1 or node.is_input:
            return None
        (tensor,) = sources.values()
        arguments = tree.flatten((node.arguments.args, node.arguments.kwargs))
        weights = [x for x in arguments if not isinstance(x, keras.KerasTensor)]
        weights += getattr(operation, "variables", [])
        if any(len(getattr(weight, "shape", ())) > 1 for weight in weights):
            return tensor


def position_count(model: Any) -> int | None:
    """The number of positions of the learned embeddings in a model; None if it has none."""
    tables = [getattr(part, "position_embeddings", None) for part in parts(model)]
    counts = [table.shape[0] for table in tables if table is not None]
    return min(counts) if counts else None


def output_names(function: Any) -> list[str]:
    """The names of the layers and operations that compute the outputs of a function."""
    return [name_of(operation) for operation in last_operations(function)]


def operation_classes() -> dict[str, list[type]]:
    """The classes behind keras.ops and keras.activations, by the module of Keras that holds them."""
    classes_by_module = {}
    for module in _OPERATIONS:
        classes = [x for x in vars(module).values() if isinstance(x, type)]
        own = [x for x in classes if issubclass(x, keras.Operation) and x.__module__ == module.__name__]
        classes_by_module[module.__name__.rsplit(".", 1)[-1]] = sorted(own, key=lambda kind: kind.__name__)
    return classes_by_module


@functools.cache
def operation_names() -> frozenset[str]:
    """The names of these classes."""
    return frozenset(kind.__name__ for kinds in operation_classes().values() for kind in kinds)


class Walk:
    """The calls of a graph or a trace, in order, with values in place of Keras tensors.

    Each call that the iteration yields is answered by `set_results` with the values of its outputs.

    Args:
        inputs: the values of the function's inputs, flat.
    """

    def __init__(self, function: Any, inputs: list[Any]):
        expected = function.inputs
        if len(inputs) != len(expected):
            raise ExportError(
                f"{function.name!r} was called with {len(inputs)} inputs, expected {len(expected)}."
            )
        self._function = function
        self._values = dict(zip(map(id, expected), inputs, strict=True))
        self._missing: dict[int, Any] = {}  # declared outputs that a layer does not return, with the layer
        self._call: Any = None

    def __iter__(self) -> Iterator[Call]:
        values, function = self._values, self._function
        for self._call in function.used() if isinstance(function, Trace) else _calls(function):
            arguments = (self._call.args, self._call.kwargs)
            if all(id(x) in values for x in tensors_in(arguments)):
                args, kwargs = tree.map_structure(lambda x: values.get(id(x), x), arguments)
                yield Call(self._call.operation, args, kwargs, self._call.outputs)

    def set_results(self, structure: Any) -> None:
        operation, outputs, results = self._call.operation, self._call.outputs, tree.flatten(structure)
        if len(results) != len(outputs):
            raise ExportError(
                f"{operation.name!r} ({type(operation).__name__}) returns {len(results)} tensors, but its "
                f"output shapes declare {len(outputs)}. Correct its compute_output_shape or its lowering."
            )
        for tensor, value in zip(outputs, results, strict=True):
            if value is not None:
                self._values[id(tensor)] = value
            elif id(tensor) not in self._values:  # operations that read it are left out
                self._missing[id(tensor)] = operation

    def outputs(self) -> list[Any]:
        """The values of the function's outputs."""
        if any(id(x) not in self._values for x in self._function.outputs):
            names = ", ".join(repr(operation.name) for operation in self._missing.values())
            raise ExportError(
                f"An output of {self._function.name!r} depends on a result of {names or 'its operations'} "
                "that is None, although compute_output_shape declares a tensor. Leave it out of the outputs."
            )
        return [self._values[id(x)] for x in self._function.outputs]


def walk(function: Any, inputs: list[Any], visit: Callable[[Call], Any]) -> list[Any]:
    """Calls `visit` for each call of a graph, in order, and returns the values of its outputs."""
    calls = Walk(function, inputs)
    for call in calls:
        calls.set_results(visit(call))
    return calls.outputs()


def check_sizes(model: Any, shapes: list[tuple[int, ...]]) -> None:
    """Raises the error of Keras for inputs of these shapes, without computing anything.

    TensorFlow ends the process where a convolution or pooling has an image without pixels.
    """
    if not any(hasattr(part, "kernel_size") or hasattr(part, "pool_size") for part in parts(model)):
        return
    function = function_of(model)

    def visit(call: Call) -> list[Any]:
        try:
            return tree.flatten(call.operation.compute_output_spec(*call.args, **call.kwargs))
        except Exception as error:
            if type(call.operation).__module__.startswith("keras.src."):
                raise
            raise _Unknown from error  # a layer of the user that runs, but cannot infer its sizes

    inputs = [keras.KerasTensor(shape, x.dtype) for shape, x in zip(shapes, function.inputs, strict=True)]
    with suppress(_Unknown):
        walk(function, inputs, visit)


class _Unknown(Exception):
    """The output sizes of a layer are unknown."""


def _nodes(function: Any) -> list[Any]:
    by_depth = function._nodes_by_depth
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]


def _calls(function: Any) -> list[Call]:
    return [
        Call(node.operation, node.arguments.args, node.arguments.kwargs, node.outputs)
        for node in _nodes(function)
        if not node.is_input
    ]


def operations(function: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Each operation of a graph with the Keras tensors that it makes, in order."""
    for node in _nodes(function):
        if not node.is_input:
            yield node.operation, node.outputs


def distinct_values(structure: Any) -> list[ir.Value]:
    """The values in a structure, each once, in order."""
    distinct = {id(x): x for x in tree.flatten(structure) if isinstance(x, ir.Value)}
    return list(distinct.values())


@contextmanager
def unchanged(values: list[tuple[Any, Any]]) -> Iterator[Callable[[Any], bool]]:
    """A context in which variables have these values, or those of an outer scope, and are not assigned.

    Yields a function that returns whether a variable was assigned to.
    """
    outer, scope = get_stateless_scope(), keras.StatelessScope(values)
    if outer is not None:
        scope.state_mapping = {**outer.state_mapping, **scope.state_mapping}
    before = dict(scope.state_mapping)
    with scope:
        yield lambda variable: scope.get_current_value(variable) is not before.get(id(variable))


def sequential_at(model: Any, inputs: keras.KerasTensor) -> Any:
    """A Sequential model's layers, the same ones, as a functional model of an input of another shape."""
    with building(model):
        x = inputs
        for layer in model.layers:
            x = layer(x)
        return keras.Model(inputs, x, name=model.name)


@contextmanager
def untouched(layer: Any) -> Iterator[None]:
    """Removes the nodes that symbolic calls add to a layer and its parts.

    Keras looks a node up by its index: nodes that another thread added after them keep theirs.
    """
    with keras_patches.collecting_nodes() as made:
        try:
            yield
        finally:
            for part in parts(layer):
                for nodes in (part._inbound_nodes, part._outbound_nodes):
                    while nodes and any(nodes[-1] is node for node in made):
                        nodes.pop()


@contextmanager
def building(model: Any) -> Iterator[None]:
    """A context in which the layers of a model make a new Keras graph, with shapes inferred as in a trace."""
    with untouched(model), keras_patches.tracing(Tracer(Observer(), None)):
        yield
