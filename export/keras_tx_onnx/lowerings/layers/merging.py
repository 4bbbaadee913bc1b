"""Layers that join several inputs."""

from __future__ import annotations

from typing import Any

import keras
import onnx_ir as ir
from keras import layers

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import GraphContext, shape_of
from keras_tx_onnx.lowerings.nodes.arguments import reduced
from keras_tx_onnx.reading.functional_graph import CustomScaleLayer, LayerScale, StochasticDepth
from keras_tx_onnx.reading.registry import lowers


@lowers(layers.Add, example=lambda x: layers.Add()([x, x, x]), shape=(4,), nodes="Add Add")
def add(cx: GraphContext, layer: Any, /, inputs: list[ir.Value]) -> ir.Value:
    return _fold(cx, cx.op.Add, inputs)


@lowers(layers.Subtract, example=lambda x: layers.Subtract()([x, x]), shape=(4,), nodes="Sub")
def subtract(cx: GraphContext, layer: Any, /, inputs: list[ir.Value]) -> ir.Value:
    return _fold(cx, cx.op.Sub, inputs)


@lowers(layers.Multiply, example=lambda x: layers.Multiply()([x, x]), shape=(4,), nodes="Mul")
def multiply(cx: GraphContext, layer: Any, /, inputs: list[ir.Value]) -> ir.Value:
    return _fold(cx, cx.op.Mul, inputs)


@lowers(layers.Average, example=lambda x: layers.Average()([x, x]), shape=(4,), nodes="Add Div")
def average(cx: GraphContext, layer: Any, /, inputs: list[ir.Value]) -> ir.Value:
    return cx.op.Div(_fold(cx, cx.op.Add, inputs), float(len(inputs)))


@lowers(layers.Maximum, example=lambda x: layers.Maximum()([x, x]), shape=(4,), nodes="Max")
def maximum(cx: GraphContext, layer: Any, /, inputs: list[ir.Value]) -> ir.Value:
    return _fold(cx, cx.op.Max, inputs)


@lowers(layers.Minimum, example=lambda x: layers.Minimum()([x, x]), shape=(4,), nodes="Min")
def minimum(cx: GraphContext, layer: Any, /, inputs: list[ir.Value]) -> ir.Value:
    return _fold(cx, cx.op.Min, inputs)


def _fold(cx: GraphContext, node: Any, inputs: list[ir.Value]) -> ir.Value:
    """Keras adds axes after the batch to an input of lower rank: (b, c) becomes (b, 1, 1, c)."""
    rank = max(len(shape_of(x)) for x in inputs)
    wide = []
    for x in inputs:
        missing = rank - len(shape_of(x))
        wide.append(cx.op.Unsqueeze(x, list(range(1, missing + 1))) if missing else x)
    result = wide[0]
    for x in wide[1:]:
        result = node(result, x)
    return result


@lowers(
    layers.Concatenate, example=lambda x: layers.Concatenate(axis=1)([x, x]), shape=(4, 3), nodes="Concat"
)
def concatenate(cx: GraphContext, layer: Any, /, inputs: list[ir.Value]) -> ir.Value:
    return cx.op.Concat(*inputs, axis=layer.axis)


@lowers(
    layers.Dot,
    example=lambda x: layers.Dot(axes=(1, 2))([x, layers.Permute((2, 1))(x)]),
    shape=(4, 3),
    nodes="Transpose Einsum",
)
def dot(cx: GraphContext, layer: Any, /, inputs: list[ir.Value]) -> ir.Value:
    x, y = inputs
    ranks = len(shape_of(x)), len(shape_of(y))
    axes = [layer.axes, layer.axes] if isinstance(layer.axes, int) else list(layer.axes)
    first, second = (axis % rank for axis, rank in zip(axes, ranks, strict=True))
    if 0 in (first, second):
        raise ExportError(f"Layer {cx.scope!r} has axes={layer.axes}. The batch axis is not supported.")
    if layer.normalize:
        x, y = _unit(cx, x, first), _unit(cx, y, second)
    letters = iter("bcdefghijklmn")
    batch, summed = next(letters), "z"
    left = [batch, *(next(letters) for _ in range(ranks[0] - 1))]
    right = [batch, *(next(letters) for _ in range(ranks[1] - 1))]
    left[first] = right[second] = summed
    result = [batch, *(n for n in [*left[1:], *right[1:]] if n != summed)]
    product = cx.op.Einsum(x, y, equation=f"{''.join(left)},{''.join(right)}->{''.join(result)}")
    return cx.op.Unsqueeze(product, [1]) if len(result) == 1 else product


def _unit(cx: GraphContext, x: ir.Value, axis: int) -> ir.Value:
    square = reduced(cx, "ReduceSum", cx.op.Mul(x, x), [axis], keepdims=True)
    return cx.op.Div(x, cx.op.Max(cx.op.Sqrt(square), keras.config.epsilon()))


# -- layers of keras.applications, which have no public name --------------------------------------------


@lowers(LayerScale, example=lambda x: LayerScale(0.5, 4)(x), shape=(4,), nodes="Mul")
def layer_scale(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return cx.op.Mul(inputs, cx.weight(layer.gamma))


@lowers(StochasticDepth, example=lambda x: StochasticDepth(0.5)(x), shape=(4,), nodes="")
def stochastic_depth(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return inputs


@lowers(CustomScaleLayer, example=lambda x: CustomScaleLayer(0.5)([x, x]), shape=(4,), nodes="Mul Add")
def scaled_residual(cx: GraphContext, layer: Any, /, inputs: list[ir.Value]) -> ir.Value:
    return cx.op.Add(inputs[0], cx.op.Mul(inputs[1], float(layer.scale)))
