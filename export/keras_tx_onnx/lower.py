"""From a Keras model to an ONNX graph in memory: the walk, with a lowering for each operation."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import onnx_ir as ir
from keras import tree

import keras_tx_onnx.lowerings  # noqa: F401  fills the registry
from keras_tx.errors import ExportError
from keras_tx_onnx import dims, fallback, graph, masks, registry
from keras_tx_onnx.context import KERAS_TENSOR, Context, onnx_dtype
from keras_tx_onnx.control_flow import TRACED, Bodies, Body
from keras_tx_onnx.errors import NotLowered
from keras_tx_onnx.opening import Opened, Sizes, open_layer

__all__ = ["lower"]


def lower(
    context: Context, function: Any, inputs: list[ir.Value], opened: Opened | None = None
) -> list[ir.Value]:
    """Adds the nodes of a functional graph, and gives the values of its outputs.

    `opened` says that the function is a layer's call at sample sizes, and what these stand for.
    """
    context.open_function = _open_function
    outer, context.lower_body = context.lower_body, functools.partial(_lower_body, opened)
    sizes = None if opened is None else Sizes(context, opened.axes)
    if opened is None:
        for value, tensor in zip(inputs, function.inputs, strict=True):
            _describe(value, tensor.shape, tensor.dtype)
        dims.begin(inputs, [tensor.name.split(":")[0] for tensor in function.inputs])

    def lower_call(call: graph.Call) -> Any:
        with context.inside(graph.name_of(call.operation)):
            context.rank = len(call.outputs[0].shape)
            results = _lower_call(context, call, sizes)
            if context.cache is not None:
                results = context.cache.after_layer(context, results)
        values = tree.flatten(results)
        if sizes is None:
            _describe_promised(context, call, values)
        else:
            _describe_opened(call, values, sizes)
        masks.pass_on(context, call.operation, call.args, call.kwargs, results, lower)
        return results

    values = graph.walk(function, inputs, lower_call, None if opened is None else opened.twin)
    context.lower_body = outer
    if not context.scope:  # the whole model is lowered, and nothing is taken back any more
        for message in context.warnings:
            warnings.warn(message, stacklevel=4)  # whoever calls export_onnx
    return values


def _lower_body(opened: Opened | None, context: Context, body: Body, values: list[ir.Value]) -> list[Any]:
    """Lowers a traced body at the sizes of the layer that was opened."""
    assert opened is not None and body.other is not None, "bodies are traced only where a layer is opened"
    made: Iterator[ir.Value] = iter(())
    if body.function is not None:
        part = dataclasses.replace(opened, function=body.function, twin=body.other.function)
        made = iter(lower(context, body.function, values, part))
    sizes = Sizes(context, opened.axes)
    pairs = zip(body.results, body.other.results, strict=True)
    return [next(made) if isinstance(a, keras.KerasTensor) else sizes.resolve(a, b) for a, b in pairs]


def _describe_promised(context: Context, call: graph.Call, values: list[ir.Value]) -> None:
    """Notes what Keras's graph says of results; behind a layer that promised a wrong shape, what is right."""
    shapes = [tensor.shape for tensor in call.outputs]
    known = any(dims.SIZES not in value.meta and None in n for value, n in zip(values, shapes, strict=False))
    found = dims.expected(call.operation, call.args, call.kwargs) if known or context.misled else None
    if found is not None and context.misled and len(found) == len(values):
        shapes = [tuple(n if isinstance(n, int) else None for n in sizes) for sizes in found]
    for value, shape, tensor in zip(values, shapes, call.outputs, strict=False):
        context.misled |= not _describe(value, shape, tensor.dtype)
    for value, sizes in zip(values, found or [], strict=False):
        dims.note(value, sizes)


def _describe_opened(call: graph.Call, values: list[ir.Value], sizes: Sizes) -> None:
    """Notes the sizes of results at both sample sizes: equal ones are numbers."""
    others = call.outputs if call.twin is None else call.twin.outputs
    for value, tensor, other in zip(values, call.outputs, others, strict=True):
        pairs = list(zip(tensor.shape, other.shape, strict=True))
        _describe(value, tuple(a if a == b else None for a, b in pairs), tensor.dtype)
        dims.note(value, tuple(sizes.same(pair) for pair in pairs))


def _describe(value: ir.Value, shape: tuple, dtype: str) -> bool:
    """Notes what Keras knows of a value. What is known already stays known; gives whether it agrees."""
    before = value.meta.get(KERAS_TENSOR)
    agrees = True
    if before is not None:
        pairs = list(zip(before.shape, shape, strict=False))
        agrees = len(before.shape) == len(shape) and all(a == b for a, b in pairs if None not in (a, b))
        shape = tuple(b if a is None else a for a, b in pairs) if agrees else before.shape
        if onnx_dtype(before.dtype) != onnx_dtype(dtype):
            dtype = before.dtype
    value.meta[KERAS_TENSOR] = keras.KerasTensor(shape, dtype)
    if value.shape is None:
        value.shape = ir.Shape(shape)
    if value.type is None:
        value.type = ir.TensorType(onnx_dtype(dtype))
    return agrees


def _lower_call(context: Context, call: graph.Call, sizes: Sizes | None) -> Any:
    operation, args = call.operation, call.args
    kwargs = {name: value for name, value in call.kwargs.items() if value is not None}
    _check_call(context, operation, kwargs)
    kwargs.pop("training", None)
    if isinstance(operation, Bodies) and call.twin is not None:
        operation.pair(call.twin.operation)
    if sizes is not None and call.twin is not None:
        operation, args, kwargs = _with_sizes(context, call, args, kwargs, sizes)
    if graph.is_function(operation) and not graph.has_own_call(operation):
        return _lower_model(context, operation, args, kwargs)
    if isinstance(operation, keras.layers.Layer):
        kwargs = {**kwargs, **masks.given(operation, args, kwargs)}
    lowering = registry.find(operation)
    if lowering is None and type(operation).__name__ in TRACED and graph.is_keras_operation(operation):
        return _open(context, _Applied(operation), args, kwargs)
    if lowering is None and graph.is_keras_operation(operation):
        return fallback.convert(context, operation, args, kwargs)
    if lowering is None or lowering.function is None or _shows_too_little(operation, args):
        return _opened(context, operation, args, kwargs)
    if isinstance(operation, keras.layers.Layer):
        context.tiers[context.scope] = "registered"
    try:
        inspect.signature(lowering.function).bind(context, operation, *args, **kwargs)
    except TypeError as error:
        raise ExportError(f"The lowering of {context.scope!r} cannot take this call: {error}.") from None
    result = lowering.function(context, operation, *args, **kwargs)
    # A lowering may know only some of the ways in which its layer is built and called.
    return _opened(context, operation, args, kwargs) if result is NotImplemented else result


def _opened(context: Context, operation: Any, args: tuple, kwargs: dict) -> Any:
    context.tiers[context.scope] = "opened"
    try:
        with context.attempt(graph.distinct_values((args, kwargs))):
            return _open(context, operation, args, kwargs)
    except NotLowered as error:
        return fallback.convert(context, operation, args, kwargs, error)


def _lower_model(context: Context, model: Any, args: tuple, kwargs: dict) -> list[ir.Value]:
    """A model inside a model: its own graph is lowered."""
    function = graph.function_of(model)
    mask = kwargs.pop("mask", None)
    inputs = [x for x in tree.flatten((args, kwargs)) if isinstance(x, ir.Value)]
    if mask is not None:
        masks.attach(inputs, tree.flatten(mask))
    if isinstance(model, keras.Sequential) and len(inputs) == 1:
        function = _for_these(function, model, inputs[0])
    if len(inputs) > 1 and _structure(args[0]) != _structure(function.input):
        raise ExportError(
            f"The model {context.scope!r} is called with its inputs in another structure than it was built "
            "with. Call it with the same keys, or the same list."
        )
    return lower(context, function, inputs)


def _for_these(function: Any, model: Any, value: ir.Value) -> Any:
    """A Sequential model that data built holds the sizes of that data; Keras takes others all the same."""
    known, built = value.meta[KERAS_TENSOR], function.inputs[0]
    pairs = list(zip(known.shape, built.shape, strict=False))
    if len(known.shape) != len(built.shape) or all(n is None or n == m for m, n in pairs):
        return function
    shape = known.shape
    return graph.function_of(graph.sequential_at(model, keras.Input(batch_shape=shape, dtype=built.dtype)))


def _structure(x: Any) -> Any:
    return tree.lists_to_tuples(tree.map_structure(lambda leaf: 0, x))


def _open(context: Context, layer: Any, args: tuple, kwargs: dict) -> list[ir.Value]:
    values = graph.distinct_values((args, kwargs))
    carried = {id(value): mask for value in values if (mask := masks.mask_of(value)) is not None}
    opened = open_layer(context, layer, args, kwargs, carried)
    inputs = {id(value): value for value in [*values, *carried.values()]}
    weights: list[Any] = [
        None if variable is None else _weight(context, variable) for variable in opened.weights
    ]
    return lower(context, opened.function, [*inputs.values(), *weights], opened)


class _Applied(keras.layers.Layer):
    """A function as a layer."""

    def __init__(self, function: Any):
        super().__init__(name=getattr(function, "__name__", "function").strip("<>"))
        self.function = function

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def _open_function(context: Context, function: Any, x: ir.Value) -> ir.Value:
    layer = _Applied(function)
    with context.inside(layer.name):
        (result,) = _open(context, layer, (x,), {})
    return result


def _weight(context: Context, variable: Any) -> ir.Value:
    value = context.weight(variable)
    _describe(value, tuple(variable.shape), variable.dtype)
    return value


def _with_sizes(
    context: Context, call: graph.Call, args: tuple, kwargs: dict, sizes: Sizes
) -> tuple[Any, tuple, dict]:
    """The call with values of the graph in the place of numbers that came from the size of an input."""
    twin = call.twin
    assert twin is not None
    operation = call.operation
    new_args = sizes.resolve(args, twin.args)
    new_kwargs = {name: sizes.resolve(value, twin.kwargs[name]) for name, value in kwargs.items()}
    changed = graph.distinct_values((new_args, new_kwargs)) != graph.distinct_values((args, kwargs))
    if isinstance(operation, keras.layers.Layer):
        if operation is not twin.operation and operation.get_config() != {
            **twin.operation.get_config(),
            "name": operation.name,
        }:
            raise NotLowered(
                f"The layer {context.scope!r} is made anew in each call, of another config at another size."
            )
    elif operation is not twin.operation:
        public = {name: x for name, x in vars(operation).items() if name[0] != "_" and name != "name"}
        after = {name: sizes.resolve(x, getattr(twin.operation, name)) for name, x in public.items()}
        if graph.distinct_values(after):
            changed = True
            copied = object.__new__(type(operation))  # copy.copy would go through Keras's serialization
            vars(copied).update({**vars(operation), **after})
            operation = copied
    lowering = registry.find(operation)
    if changed and (lowering is None or not lowering.takes_sizes):
        raise NotLowered(
            f"The operation {context.scope!r} ({type(operation).__name__}) takes a number that depends on "
            "the size of an input, which its lowering cannot."
        )
    return operation, new_args, new_kwargs


def _check_call(context: Context, operation: Any, kwargs: dict) -> None:
    """Refuses what a lowering would not notice."""
    if kwargs.get("training") and not _trains_by_default(operation):
        raise ExportError(
            f"The layer {context.scope!r} is called with training=True, and an exported graph only infers. "
            "Call it without."
        )


def _shows_too_little(operation: Any, args: tuple) -> bool:
    """A lowering of a whole block reads kernels as numbers, and quantized ones speak for themselves."""
    if not isinstance(operation, keras.layers.Layer):
        return False
    return masks.hides(operation, args) or any(part.quantization_mode for part in graph.parts(operation)[1:])


def _trains_by_default(operation: Any) -> bool:
    """Layers for images have training=True as default, and Keras's graph holds it as if it were said."""
    parameter = inspect.signature(operation.call).parameters.get("training")
    return parameter is not None and parameter.default is True
