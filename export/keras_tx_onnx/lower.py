"""From a Keras model to an ONNX graph in memory: the walk, with a lowering for each operation."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import onnx_ir as ir
from keras import tree

import keras_tx_onnx.lowerings  # noqa: F401  fills the registry
from keras_tx.errors import ExportError
from keras_tx_onnx import graph, registry
from keras_tx_onnx.context import KERAS_TENSOR, Context

__all__ = ["lower"]


def lower(context: Context, function: Any, inputs: list[ir.Value]) -> list[ir.Value]:
    """Adds the nodes of a functional graph, and gives the values of its outputs."""
    for value, tensor in zip(inputs, function.inputs, strict=True):
        _describe(value, tensor)

    def call(operation: Any, args: tuple, kwargs: dict, outputs: list) -> Any:
        results = _lower_operation(context, operation, args, kwargs)
        for value, tensor in zip(tree.flatten(results), outputs, strict=True):
            _describe(value, tensor)
        return results

    return graph.walk(function, inputs, call)


def _describe(value: ir.Value, tensor: keras.KerasTensor) -> None:
    value.meta[KERAS_TENSOR] = tensor
    if value.shape is None:
        value.shape = ir.Shape(tensor.shape)
    if value.type is None:
        value.type = ir.TensorType(onnx_dtype(tensor.dtype))


def onnx_dtype(dtype: str) -> ir.DataType:
    """How the file holds a Keras dtype: every float as float32, every integer as int64."""
    if dtype == "bool":
        return ir.DataType.BOOL
    return ir.DataType.FLOAT if keras.backend.is_float_dtype(dtype) else ir.DataType.INT64


def _lower_operation(context: Context, operation: Any, args: tuple, kwargs: dict) -> Any:
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    with context.inside(operation.name):
        _check_call(context, operation, kwargs)
        kwargs.pop("training", None)
        if graph.is_function(operation):
            function = graph.function_of(operation)
            inputs = _values(args, kwargs)
            if len(inputs) > 1 and tree.lists_to_tuples(tree.map_structure(lambda x: 0, args[0])) != (
                tree.lists_to_tuples(tree.map_structure(lambda x: 0, function.input))
            ):
                raise ExportError(
                    f"The model {context.scope!r} is called with its inputs in another structure than it "
                    "was built with. Call it with the same keys, or the same list."
                )
            return lower(context, function, inputs)
        lowering = registry.find(operation)
        if lowering is None:
            raise ExportError(_unknown(context, operation))
        _refuse_mask(context, operation, args)
        if isinstance(operation, keras.layers.Layer):
            context.tiers[context.scope] = "opened" if lowering.function is None else "registered"
        if lowering.function is None:
            return _open(context, operation, args, kwargs)
        try:
            inspect.signature(lowering.function).bind(context, operation, *args, **kwargs)
        except TypeError as error:
            raise ExportError(f"The lowering of {context.scope!r} cannot take this call: {error}.") from None
        return lowering.function(context, operation, *args, **kwargs)


def _refuse_mask(context: Context, layer: Any, args: tuple) -> None:
    """A mask that a layer makes travels beside the graph, and the walk does not carry it yet."""
    if not isinstance(layer, keras.layers.Layer) or not args:
        return
    if type(layer).compute_mask is keras.layers.Layer.compute_mask:
        return
    inputs = tree.map_structure(lambda x: x.meta[KERAS_TENSOR] if isinstance(x, ir.Value) else x, args[0])
    if layer.compute_mask(inputs, tree.map_structure(lambda x: None, inputs)) is not None:
        raise ExportError(
            f"The layer {context.scope!r} makes a Keras mask, which an export does not carry. Give the "
            "mask to the layers that need it as an argument (padding_mask), and make this one without."
        )


def _check_call(context: Context, operation: Any, kwargs: dict) -> None:
    """Refuses what a lowering would not notice."""
    if kwargs.get("training"):
        raise ExportError(
            f"The layer {context.scope!r} is called with training=True, and an exported graph only infers. "
            "Call it without."
        )
    if not isinstance(operation, keras.layers.Layer) or graph.is_function(operation):
        return
    for part in graph.parts(operation):
        mode = getattr(part, "quantization_mode", None)
        if mode is not None:
            raise ExportError(
                f"The layer {part.path!r} is quantized ({mode}) in Keras, which has no lowering. Export "
                "the model as it was before."
            )


def _open(context: Context, layer: Any, args: tuple, kwargs: dict) -> list[ir.Value]:
    def fresh(x: Any) -> Any:
        if not isinstance(x, ir.Value):
            return x
        known = x.meta[KERAS_TENSOR]
        return keras.KerasTensor(known.shape, known.dtype)

    function = graph.open_layer(layer, *tree.map_structure(fresh, (args, kwargs)))
    return lower(context, function, _values(args, kwargs))


def _values(args: tuple, kwargs: dict) -> list[ir.Value]:
    return [x for x in tree.flatten((args, kwargs)) if isinstance(x, ir.Value)]


def _unknown(context: Context, operation: Any) -> str:
    kind = "operation" if graph.is_keras_operation(operation) else "layer"
    name = type(operation).__name__
    return (
        f"The {kind} {context.scope!r} ({type(operation).__module__}.{name}) has no ONNX lowering. Register "
        f"one with @keras_tx_onnx.lowers({name if kind == 'layer' else repr(name)}, ...), or leave it out."
    )
