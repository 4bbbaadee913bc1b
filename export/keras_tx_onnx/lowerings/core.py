"""Layers of keras.layers that are one or two nodes: dense, dropout, merging, reshaping, pooling."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from keras import layers

from keras_tx.errors import ExportError
from keras_tx_onnx.context import Context, shape_of
from keras_tx_onnx.lowerings.activations import activate
from keras_tx_onnx.registry import lowers


@lowers(
    layers.Dense,
    example=lambda x: layers.Dense(4, activation="gelu")(x),
    shape=(5, 8),
    nodes="MatMul Add Gelu",
)
def dense(cx: Context, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return activate(cx, layer.activation, project(cx, layer, inputs))


def project(cx: Context, layer: Any, x: ir.Value) -> ir.Value:
    """A dense layer without its activation."""
    x = cx.op.MatMul(cx.floating(x), cx.weight(layer.kernel))
    return x if layer.bias is None else cx.op.Add(x, cx.weight(layer.bias))


@lowers(layers.Dropout, example=lambda x: layers.Dropout(0.5)(x), shape=(4,), nodes="")
def dropout(cx: Context, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return inputs


@lowers(layers.Activation, example=lambda x: layers.Activation("tanh")(x), shape=(4,), nodes="Tanh")
def activation(cx: Context, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return activate(cx, layer.activation, inputs)


@lowers(layers.Softmax, example=lambda x: layers.Softmax()(x), shape=(4,), nodes="Softmax")
def softmax(cx: Context, layer: Any, /, inputs: ir.Value) -> ir.Value:
    if not isinstance(layer.axis, int):
        raise ExportError(
            f"Layer {cx.scope!r} has axis={layer.axis!r}; a softmax over one axis has a lowering."
        )
    return cx.op.Softmax(inputs, axis=layer.axis)


@lowers(layers.Add, example=lambda x: layers.Add()([x, x, x]), shape=(4,), nodes="Add Add")
def add(cx: Context, layer: Any, /, inputs: list[ir.Value]) -> ir.Value:
    return _fold(cx, cx.op.Add, inputs)


@lowers(layers.Multiply, example=lambda x: layers.Multiply()([x, x]), shape=(4,), nodes="Mul")
def multiply(cx: Context, layer: Any, /, inputs: list[ir.Value]) -> ir.Value:
    return _fold(cx, cx.op.Mul, inputs)


def _fold(cx: Context, node: Any, inputs: list[ir.Value]) -> ir.Value:
    ranks = {len(shape_of(x)) for x in inputs}
    if len(ranks) > 1:
        raise ExportError(
            f"Layer {cx.scope!r} merges inputs of {sorted(ranks)} axes; equal ranks have a lowering."
        )
    result = inputs[0]
    for x in inputs[1:]:
        result = node(result, x)
    return result


@lowers(
    layers.Concatenate, example=lambda x: layers.Concatenate(axis=1)([x, x]), shape=(4, 3), nodes="Concat"
)
def concatenate(cx: Context, layer: Any, /, inputs: list[ir.Value]) -> ir.Value:
    return cx.op.Concat(*inputs, axis=layer.axis)


@lowers(layers.Rescaling, example=lambda x: layers.Rescaling(2.0, 1.0)(x), shape=(4,), nodes="Mul Add")
def rescaling(cx: Context, layer: Any, /, inputs: ir.Value) -> ir.Value:
    scale, offset = np.float32(layer.scale), np.float32(layer.offset)
    return cx.op.Add(cx.op.Mul(cx.floating(inputs), scale), offset)


@lowers(layers.Flatten, example=lambda x: layers.Flatten()(x), shape=(4, 3), nodes="Reshape")
def flatten(cx: Context, layer: Any, /, inputs: ir.Value) -> ir.Value:
    if layer.data_format == "channels_first":
        raise ExportError(f"Layer {cx.scope!r} has data_format='channels_first', which has no lowering.")
    return cx.op.Reshape(inputs, [0, -1])


@lowers(layers.Reshape, example=lambda x: layers.Reshape((6, 2))(x), shape=(4, 3), nodes="Reshape")
def reshape(cx: Context, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return cx.op.Reshape(inputs, [0, *layer.target_shape])


@lowers(
    layers.GlobalAveragePooling1D,
    example=lambda x: layers.GlobalAveragePooling1D()(x),
    shape=(5, 8),
    nodes="ReduceMean",
)
def global_average_pooling_1d(cx: Context, layer: Any, /, inputs: ir.Value) -> ir.Value:
    axis = 1 if layer.data_format == "channels_last" else 2
    return reduce_mean(cx, inputs, axis, keepdims=layer.keepdims)


def reduce_mean(cx: Context, x: ir.Value, axis: int, keepdims: bool) -> ir.Value:
    if cx.opset >= 18:
        return cx.op.ReduceMean(x, [axis], keepdims=int(keepdims))
    return cx.op.ReduceMean(x, axes=[axis], keepdims=int(keepdims))
