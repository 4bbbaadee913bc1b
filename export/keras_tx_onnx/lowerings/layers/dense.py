"""Dense layers, and the layers that are identities at inference."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
from keras import layers

from keras_tx.layers.low_rank import LowRankDense, LowRankEinsumDense
from keras_tx_onnx.graph.builder import GraphContext, shape_of
from keras_tx_onnx.lowerings.activations import activate
from keras_tx_onnx.lowerings.layers.quantized import (
    check_supported,
    float_kernel,
    quantized_bias,
    quantized_product,
)
from keras_tx_onnx.reading.quantized_layers import kernel_shape, mode_of
from keras_tx_onnx.reading.registry import lowers


@lowers(
    LowRankDense,
    example=lambda x: LowRankDense(4, activation="gelu", adapter={"rank": 2, "alpha": 2.0})(x),
    shape=(5, 8),
    nodes="MatMul Add Gelu",
)
@lowers(
    layers.Dense,
    example=lambda x: layers.Dense(4, activation="gelu")(x),
    shape=(5, 8),
    nodes="MatMul Add Gelu",
)
def dense(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return activate(cx, layer.activation, project(cx, layer, inputs))


def project(cx: GraphContext, layer: Any, x: ir.Value) -> ir.Value:
    """A dense layer without its activation."""
    x = _times(cx, layer, cx.floating(x))
    return x if layer.bias is None else cx.op.Add(x, _bias(cx, layer))


@lowers(
    LowRankEinsumDense,
    example=lambda x: LowRankEinsumDense(
        "abc,cd->abd", (None, 4), bias_axes="d", adapter={"rank": 2, "alpha": 2.0}
    )(x),
    shape=(5, 8),
    nodes="MatMul Add",
)
@lowers(
    layers.EinsumDense,
    example=lambda x: layers.EinsumDense("abc,cd->abd", (None, 4), bias_axes="d")(x),
    shape=(5, 8),
    nodes="MatMul Add",
)
def einsum_dense(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    x = _product(cx, layer, inputs)
    if layer.bias is not None:
        x = cx.op.Add(x, _bias(cx, layer))
    return activate(cx, layer.activation, x)


def _times(cx: GraphContext, layer: Any, x: ir.Value, shape: tuple[int, ...] | None = None) -> ir.Value:
    """x times the kernel of a dense layer as a matrix of this shape, by default its own."""
    if not _is_quantized(layer):
        return cx.op.MatMul(x, cx.weight(layer.kernel, shape=shape))
    check_supported(cx, layer)
    return quantized_product(cx, layer, x, shape or kernel_shape(layer))


def _bias(cx: GraphContext, layer: Any) -> ir.Value:
    return quantized_bias(cx, layer) if _is_quantized(layer) else cx.weight(layer.bias)


def _is_quantized(layer: Any) -> bool:
    return layer.quantization_mode is not None and mode_of(layer) is not None


def _product(cx: GraphContext, layer: Any, x: ir.Value) -> ir.Value:
    """A MatMul where the summed axes are the last of x and the first of the kernel, else an Einsum."""
    equation = layer.equation.replace(" ", "")
    left, _, result = equation.partition("->")
    inputs, _, kernel = left.partition(",")
    inputs, kernel, result = (part.replace("...", "…") for part in (inputs, kernel, result))
    summed = "".join(axis for axis in inputs if axis in kernel and axis not in result)
    columns = kernel.removeprefix(summed)
    free = inputs.removesuffix(summed)
    plain = summed and kernel == summed + columns and inputs == free + summed and result == free + columns
    if not plain or set(free) & set(columns):
        check_supported(cx, layer)
        return cx.op.Einsum(x, float_kernel(cx, layer), equation=equation)
    shape = kernel_shape(layer)
    inner, outer = shape[: len(summed)], shape[len(summed) :]
    same = [0] * (len(shape_of(x)) - len(inner))  # in a Reshape: the size of the same axis before
    width = math.prod(inner)
    if len(inner) > 1:
        x = cx.op.Reshape(x, [*same, width])
    x = _times(cx, layer, x, (width, math.prod(outer)))
    return cx.op.Reshape(x, [*same, *outer]) if len(outer) != 1 else x


@lowers(layers.Identity, example=lambda x: layers.Identity()(x), shape=(4,), nodes="")
@lowers(layers.Dropout, example=lambda x: layers.Dropout(0.5)(x), shape=(4,), nodes="")
@lowers(layers.AlphaDropout, example=lambda x: layers.AlphaDropout(0.5)(x), shape=(4,), nodes="")
@lowers(layers.GaussianDropout, example=lambda x: layers.GaussianDropout(0.5)(x), shape=(4,), nodes="")
@lowers(layers.GaussianNoise, example=lambda x: layers.GaussianNoise(0.5)(x), shape=(4,), nodes="")
@lowers(layers.SpatialDropout1D, example=lambda x: layers.SpatialDropout1D(0.5)(x), shape=(4, 3), nodes="")
@lowers(layers.SpatialDropout2D, example=lambda x: layers.SpatialDropout2D(0.5)(x), shape=(4, 5, 3), nodes="")
@lowers(
    layers.SpatialDropout3D, example=lambda x: layers.SpatialDropout3D(0.5)(x), shape=(4, 5, 2, 3), nodes=""
)
@lowers(
    layers.ActivityRegularization,
    example=lambda x: layers.ActivityRegularization(0.1)(x),
    shape=(4,),
    nodes="",
)
def nothing_at_inference(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return inputs
