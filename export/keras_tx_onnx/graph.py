"""Walks the graph of a Keras model. The only file that touches Keras's private graph interfaces."""

from __future__ import annotations

import dataclasses
import dis
import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import keras
import onnx_ir as ir
from keras import tree
from keras.src.activations import activations as operations_activations
from keras.src.backend import AutocastScope, get_stateless_scope, set_keras_mask
from keras.src.layers import layer as layer_module
from keras.src.ops import core as operations_core
from keras.src.ops import image as operations_image
from keras.src.ops import linalg as operations_linalg
from keras.src.ops import math as operations_math
from keras.src.ops import nn as operations_nn
from keras.src.ops import numpy as operations_numpy
from keras.src.ops.node import Node

from keras_tx.errors import ExportError
from keras_tx_onnx.errors import NotLowered
from keras_tx_onnx.sized import as_usual, is_usual

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


@dataclasses.dataclass(frozen=True)
class Call:
    """An operation of a graph as it is called there.

    Arguments have values in the place of Keras tensors; `outputs` are the Keras tensors that the
    operation made. Where a graph has a twin, `twin` is the same call there, with its Keras tensors.
    """

    operation: Any
    args: tuple
    kwargs: dict
    outputs: list
    twin: Call | None = None


def function_of(model: Any) -> Any:
    """The functional graph of a model; keras.Sequential holds one."""
    return getattr(model, "_functional", model)


def has_own_call(model: Any) -> bool:
    """Whether a model computes something else than its graph shows."""
    return not type(model).call.__module__.startswith("keras.src.")


def parts(layer: Any) -> list[Any]:
    """A layer and all layers inside it."""
    return list(layer._flatten_layers())


def trainable_variables(model: Any) -> list[Any]:
    """What training would change, frozen or not, each variable once."""
    found = {id(v): v for part in parts(model) for v in part._trainable_variables}
    return list(found.values())


def last_operations(function: Any) -> list[Any]:
    """What makes the outputs of a function."""
    return [tensor._keras_history.operation for tensor in function.outputs]


def is_function(operation: Any) -> bool:
    """Whether a node of a graph is a model with a graph of its own."""
    return hasattr(function_of(operation), "_nodes_by_depth")


def call_parameters(model: Any) -> list[inspect.Parameter]:
    """The parameters of a model's `call`, without `training`, which is False in an export."""
    return [p for p in inspect.signature(model.call).parameters.values() if p.name != "training"]


def is_read(model: Any, argument: str) -> bool:
    """Whether the code of a model's `call` reads an argument; True where that cannot be seen."""
    code = getattr(inspect.unwrap(type(model).call), "__code__", None)
    if code is None or argument in code.co_cellvars:
        return True
    loads = (x for x in dis.get_instructions(code) if x.opname.startswith("LOAD_FAST"))
    return any(argument in (x.argval if isinstance(x.argval, tuple) else (x.argval,)) for x in loads)


def shapes_of_first_call(model: Any) -> tuple[dict[str, Any], set[str]]:
    """The shapes that Keras recorded when it built a model, and the arguments that it records, by name.

    It records those that `build` names, `x_shape` for `x`. A `build` with one parameter, such as Keras's own,
    receives the shape of the first tensor, whichever argument that is.
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
    """The name, without the number by which Keras counts all operations that a process ever made."""
    stem, _, number = operation.name.rpartition("_")
    kind = getattr(operation, "traced", type(operation).__name__)
    counted = number.isdigit() and stem.replace("_", "") == kind.lower()
    return stem if counted and not isinstance(operation, keras.layers.Layer) else operation.name


def output_names(function: Any) -> list[str]:
    """The names of the layers and operations that make the outputs of a function."""
    return [name_of(operation) for operation in last_operations(function)]


def operation_classes() -> dict[str, list[type]]:
    """The classes behind keras.ops and keras.activations, by the module of Keras that holds them."""
    found = {}
    for module in _OPERATIONS:
        classes = [x for x in vars(module).values() if isinstance(x, type)]
        own = [x for x in classes if issubclass(x, keras.Operation) and x.__module__ == module.__name__]
        found[module.__name__.rsplit(".", 1)[-1]] = sorted(own, key=lambda kind: kind.__name__)
    return found


@functools.cache
def operation_names() -> frozenset[str]:
    """The names of these classes; a newer Keras has more."""
    return frozenset(kind.__name__ for kinds in operation_classes().values() for kind in kinds)


def walk(function: Any, inputs: list[Any], lower: Callable[[Call], Any], twin: Any = None) -> list[Any]:
    """Runs `lower` for each call of a graph, in order, and gives the values of its outputs.

    `inputs` are the values of the function's inputs, flat.
    """
    expected = function.inputs
    if len(inputs) != len(expected):
        raise ExportError(
            f"{function.name!r} takes {len(expected)} inputs, but is called with {len(inputs)}."
        )
    values = dict(zip(map(id, expected), inputs, strict=True))
    for node, other in _pairs(function, twin):
        if node.is_input or any(id(x) not in values for x in node.input_tensors):
            continue
        args, kwargs = node.arguments.fill_in(values)
        same = None
        if other is not None:
            same = Call(other.operation, other.arguments.args, other.arguments.kwargs, other.outputs)
        results = tree.flatten(lower(Call(node.operation, args, kwargs, node.outputs, same)))
        if len(results) != len(node.outputs):
            raise ExportError(
                f"The lowering of {node.operation.name!r} gave {len(results)} values for "
                f"{len(node.outputs)} outputs."
            )
        values.update(zip(map(id, node.outputs), results, strict=True))
    return [values[id(x)] for x in function.outputs]


def check_sizes(model: Any, shapes: list[tuple[int, ...]]) -> None:
    """Raises what Keras raises at inputs of these shapes, without computing anything.

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
            raise _Unknown from error  # a layer of the user's that runs, but cannot tell its sizes

    inputs = [keras.KerasTensor(shape, x.dtype) for shape, x in zip(shapes, function.inputs, strict=True)]
    with suppress(_Unknown):
        walk(function, inputs, visit)


class _Unknown(Exception):
    """The sizes behind a layer are not known."""


def _nodes(function: Any) -> list[Any]:
    by_depth = function._nodes_by_depth
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]


def _pairs(function: Any, twin: Any) -> list[tuple[Any, Any]]:
    """The nodes of a function, each with the node of its twin, or None."""
    nodes = _nodes(function)
    if twin is None:
        return [(node, None) for node in nodes]
    others = _nodes(twin)
    if [type(node.operation) for node in nodes] != [type(node.operation) for node in others]:
        raise NotLowered(
            f"The call of {function.name!r} takes another way when its inputs have another size. An ONNX "
            "graph takes one way for all sizes."
        )
    return list(zip(nodes, others, strict=True))


def operations(function: Any) -> Iterator[tuple[Any, list[Any]]]:
    """Each operation of a graph with the Keras tensors that it makes, in order."""
    for node in _nodes(function):
        if not node.is_input:
            yield node.operation, node.outputs


def distinct_values(structure: Any) -> list[ir.Value]:
    """The values in a structure, each once, in order."""
    found = {id(x): x for x in tree.flatten(structure) if isinstance(x, ir.Value)}
    return list(found.values())


def function_of_call(layer: Any, call: Callable, args: Any, kwargs: Any, tensors: list[Any]) -> Any:
    """What a method of a layer does, as a function of the given Keras tensors; the layer stays as it was."""
    with untouched(layer), _whole_symbolic_calls(), drawing_nothing():
        return keras.Function(tensors, _without_none(call(*args, **kwargs)), name=layer.name)


def sequential_at(model: Any, inputs: keras.KerasTensor) -> Any:
    """A Sequential model's layers, the same ones, as a functional model of an input of another shape."""
    made = []

    def call() -> Any:
        x = inputs
        for layer in model.layers:
            x = layer(x)
        made.append(keras.Model(inputs, x, name=model.name))
        return x

    function_of_call(model, call, (), {}, [inputs])
    return made[0]


def _without_none(results: Any) -> list[Any]:
    """A layer may give None beside its result, such as a cache that it was not asked for."""
    return [y for y in tree.flatten(results) if y is not None]


_trust = [True]


@contextmanager
def trusting(promises: bool) -> Iterator[None]:
    """Within, whether layers are taken to give the shapes that they promise; some promise wrong ones."""
    _trust.append(promises)
    try:
        yield
    finally:
        _trust.pop()


@contextmanager
def _whole_symbolic_calls() -> Iterator[None]:
    """Within, every size of the result of a layer is known, and a layer may give None beside its result.

    Some layers promise a shape with None in it even where they are called on tensors of known size.
    """

    def node(operation: Any, call_args: Any, call_kwargs: Any, outputs: Any) -> Node:
        return Node(operation, call_args, call_kwargs, _without_none(outputs))

    def symbolic_call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        # What computes the shape may not know arguments that only subclasses have.
        kwargs = {name: x for name, x in kwargs.items() if x is not None}
        if isinstance(layer, keras.Sequential) and layer.built and len(args) == 1:
            with suppress(Exception):  # such as a model whose first layer takes a list
                return _spec_of_sequential(layer, args[0])
        if type(layer).compute_output_shape is keras.layers.Layer.compute_output_shape:
            with suppress(Exception):  # whatever its code raises; the backend may run it, which takes longer
                return _spec_of_call(layer, args, kwargs)
        with as_usual():
            try:
                outputs = layer.compute_output_spec(*args, **kwargs)
            except TypeError:
                outputs = keras.Operation.compute_output_spec(layer, *args, **kwargs)
        if not _trust[-1] and not type(layer).__module__.startswith("keras.src."):
            with as_usual():
                return keras.Operation.compute_output_spec(layer, *args, **kwargs)
        if any(None in y.shape for y in tree.flatten(outputs) if isinstance(y, keras.KerasTensor)):
            with as_usual():
                return _computed_spec(layer, outputs, args, kwargs)
        return outputs

    kept = keras.layers.Layer.symbolic_call
    keras.layers.Layer.symbolic_call = symbolic_call
    layer_module.Node = node
    try:
        yield
    finally:
        keras.layers.Layer.symbolic_call = kept
        layer_module.Node = Node


def _spec_of_call(layer: Any, args: tuple, kwargs: dict) -> Any:
    """What a layer gives, by its call on Keras tensors of its own."""
    if type(layer).compute_output_spec is not keras.layers.Layer.compute_output_spec:
        raise NotImplementedError

    def fresh(x: Any) -> Any:
        return keras.Input(batch_shape=x.shape, dtype=x.dtype) if isinstance(x, keras.KerasTensor) else x

    def spec(x: Any) -> Any:
        return keras.KerasTensor(x.shape, x.dtype) if isinstance(x, keras.KerasTensor) else x

    args, kwargs = tree.map_structure(fresh, (args, kwargs))
    return tree.map_structure(spec, layer.call(*args, **kwargs))


def _spec_of_sequential(layer: Any, x: Any) -> Any:
    """What a Sequential gives for a tensor; its own graph may be that of the data that built it."""
    (y,) = sequential_at(layer, keras.Input(batch_shape=x.shape, dtype=x.dtype)).outputs
    return keras.KerasTensor(y.shape, y.dtype)


def _computed_spec(layer: Any, outputs: Any, args: tuple, kwargs: dict) -> Any:
    """What a layer gives, by running its call rather than by what it promises."""
    if isinstance(layer, keras.layers.EinsumDense) and isinstance(outputs, keras.KerasTensor):
        given, _, result = layer.equation.replace(" ", "").partition("->")
        x = args[0] if args else kwargs["inputs"]
        if "..." not in given:  # the same as below, but it takes no time
            sizes = dict(zip(given.split(",")[0], x.shape, strict=True))
            shape = [sizes.get(axis, n) for axis, n in zip(result, outputs.shape, strict=True)]
            return keras.KerasTensor(shape, outputs.dtype)
    return keras.Operation.compute_output_spec(layer, *args, **kwargs)


@contextmanager
def drawing_nothing() -> Iterator[None]:
    """Within, code that draws random numbers fails: in a file they would be the same at every call.

    Where Keras only asks for a shape, it draws as usual and forgets it.
    """
    usual = keras.random.SeedGenerator.next

    def refuse(generator: Any, *args: Any, **kwargs: Any) -> Any:
        if is_usual():
            return usual(generator, *args, **kwargs)
        raise NotLowered("It draws random numbers at inference. Give it the numbers as an input.")

    keras.random.SeedGenerator.next = refuse
    try:
        yield
    finally:
        keras.random.SeedGenerator.next = usual


@contextmanager
def weights_as_tensors(layer: Any) -> Iterator[dict[int, tuple[keras.KerasTensor, Any]]]:
    """Within, the layer's own variables are Keras tensors; gives (tensor, variable) by the tensor's id.

    What its code does to a variable alone, such as taking the first rows of a table, becomes part of the
    graph.
    """
    attributes = vars(layer)
    kept = {name: x for name, x in attributes.items() if isinstance(x, keras.Variable)}
    made = {}
    for name, variable in kept.items():
        floating = keras.backend.is_float_dtype(variable.dtype)
        dtype = layer.compute_dtype if floating else variable.dtype
        tensor = keras.Input(batch_shape=variable.shape, dtype=dtype)
        attributes[name] = tensor
        made[id(tensor)] = (tensor, variable)
    try:
        yield made
    finally:
        attributes.update(kept)


@contextmanager
def unchanged(values: list[tuple[Any, Any]]) -> Iterator[Callable[[Any], bool]]:
    """Within, variables have these values or those of a scope around it, and assignments do not reach them.

    What it returns says of a variable whether there was an assignment.
    """
    outer, scope = get_stateless_scope(), keras.StatelessScope(values)
    if outer is not None:
        scope.state_mapping = {**outer.state_mapping, **scope.state_mapping}
    before = dict(scope.state_mapping)
    with scope:
        yield lambda variable: scope.get_current_value(variable) is not before.get(id(variable))


@contextmanager
def in_float32(model: Any) -> Iterator[None]:
    """Within, layers that compute in half precision compute in float32, with their variables as they are."""
    half = [part for part in parts(model) if part.compute_dtype in ("float16", "bfloat16")]
    kept = [part._dtype_policy for part in half]
    for part in half:
        mode = part.quantization_mode
        part._dtype_policy = keras.dtype_policies.get(f"{mode}_from_float32" if mode else "float32")
    try:
        with AutocastScope("float32"):
            yield
    finally:
        for part, policy in zip(half, kept, strict=True):
            part._dtype_policy = policy


def shared_tensors(one: list[Any], other: list[Any], parameters: list[Any]) -> list[Any]:
    """The tensors from which both of two graphs begin, apart from `parameters`, in the order of the first."""
    theirs = {id(x) for x in _reached(other)}
    own = {id(x) for x in parameters}
    return [x for x in _reached(one, theirs) if id(x) in theirs and id(x) not in own]


def _reached(tensors: list[Any], until: Collection[int] = ()) -> list[Any]:
    """The Keras tensors that tensors are computed from, themselves included; not what lies behind `until`."""
    reached: dict[int, Any] = {}
    pending = list(reversed(tensors))
    while pending:
        tensor = pending.pop()
        if id(tensor) in reached:
            continue
        reached[id(tensor)] = tensor
        history = getattr(tensor, "_keras_history", None)
        if history is not None and history.operation is not None and id(tensor) not in until:
            node = history.operation._inbound_nodes[history.node_index]
            pending += reversed(node.input_tensors)
    return list(reached.values())


def function_between(inputs: list[Any], outputs: list[Any]) -> Any:
    """The part of a graph that lies between tensors."""
    return keras.Function(inputs, outputs, name="body")


def uses(function: Any, tensor: Any) -> bool:
    """Whether an input of a function is used in it."""
    return any(x is tensor for node in _nodes(function) for x in node.input_tensors) or any(
        x is tensor for x in function.outputs
    )


@contextmanager
def untouched(layer: Any) -> Iterator[None]:
    """Takes back the nodes that symbolic calls leave behind in a layer and its parts."""
    inside = parts(layer)
    before = [(len(part._inbound_nodes), len(part._outbound_nodes)) for part in inside]
    try:
        yield
    finally:
        for part, (inbound, outbound) in zip(inside, before, strict=True):
            del part._inbound_nodes[inbound:]
            del part._outbound_nodes[outbound:]
