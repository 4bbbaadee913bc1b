"""Activations that are layers."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from keras import layers

from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext, shape_of
from keras_tx_onnx.lowerings.nodes import activations
from keras_tx_onnx.lowerings.nodes.reductions import reduced
from keras_tx_onnx.reading.registry import lowers


@lowers(layers.Activation, example=lambda x: layers.Activation("tanh")(x), shape=(4,), nodes="Tanh")
def activation(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return activations.activate(cx, layer.activation, inputs)


@lowers(layers.ReLU, example=lambda x: layers.ReLU(6.0)(x), shape=(4,), nodes="Clip")
def relu(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return activations.relu(cx, inputs, layer.negative_slope, layer.max_value, layer.threshold)


@lowers(layers.LeakyReLU, example=lambda x: layers.LeakyReLU()(x), shape=(4,), nodes="LeakyRelu")
def leaky_relu(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return activations.leaky_relu(cx, inputs, layer.negative_slope)


@lowers(layers.PReLU, example=lambda x: layers.PReLU(shared_axes=[1])(x), shape=(4, 3), nodes="PRelu")
def prelu(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return cx.op.PRelu(inputs, cx.weight(layer.alpha))


@lowers(layers.ELU, example=lambda x: layers.ELU(0.7)(x), shape=(4,), nodes="Elu")
def elu(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return activations.elu(cx, inputs, layer.alpha)


@lowers(layers.Softmax, example=lambda x: layers.Softmax()(x), shape=(4,), nodes="Softmax")
def softmax(cx: GraphContext, layer: Any, /, inputs: ir.Value, mask: ir.Value | None = None) -> ir.Value:
    """What is masked gets nothing, in a row that is masked altogether, too."""
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    if mask is not None and mask.meta[KERAS_TENSOR].dtype != "bool":
        mask = cx.op.Greater(cx.floating(mask), 0.5)
    x = inputs if mask is None else cx.op.Where(mask, inputs, -1e9)
    if len(axes) == 1:
        x = cx.op.Softmax(x, axis=axes[0])
    else:
        axes = [axis % len(shape_of(inputs)) for axis in axes]
        x = cx.op.Exp(cx.op.Sub(x, reduced(cx, "ReduceMax", x, axes, keepdims=True)))
        x = cx.op.Div(x, reduced(cx, "ReduceSum", x, axes, keepdims=True))
    return x if mask is None else cx.op.Where(mask, x, 0.0)
