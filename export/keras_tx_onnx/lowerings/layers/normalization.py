"""Normalization layers, at inference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from keras import layers

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import GraphContext, shape_of
from keras_tx_onnx.lowerings.nodes.arguments import reduced
from keras_tx_onnx.reading.registry import lowers


@lowers(
    layers.LayerNormalization,
    example=lambda x: layers.LayerNormalization()(x),
    shape=(5, 8),
    nodes="LayerNormalization",
)
def layer_normalization(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    rank, axes = len(shape_of(inputs)), _axes(layer, inputs)
    if layer.rms_scaling:
        # Deprecated in Keras: the input, not centred, over its standard deviation.
        mean = reduced(cx, "ReduceMean", inputs, axes, keepdims=True)
        spread = _deviation(cx, cx.op.Sub(inputs, mean), axes, layer.epsilon)
        return cx.op.Mul(cx.op.Div(inputs, spread), _along(cx, layer.gamma, axes, rank))
    if _are_last(axes, rank):
        scale = _ones(inputs, axes) if layer.gamma is None else cx.weight(layer.gamma)
        shift = None if layer.beta is None else cx.weight(layer.beta)
        return cx.op.LayerNormalization(
            inputs, scale, shift, axis=axes[0] - rank, epsilon=float(layer.epsilon)
        )
    centred = cx.op.Sub(inputs, reduced(cx, "ReduceMean", inputs, axes, keepdims=True))
    x = cx.op.Div(centred, _deviation(cx, centred, axes, layer.epsilon))
    if layer.gamma is not None:
        x = cx.op.Mul(x, _along(cx, layer.gamma, axes, rank))
    return x if layer.beta is None else cx.op.Add(x, _along(cx, layer.beta, axes, rank))


@lowers(
    layers.RMSNormalization,
    example=lambda x: layers.RMSNormalization()(x),
    shape=(5, 8),
    nodes="RMSNormalization",
)
def rms_normalization(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    rank, axes = len(shape_of(inputs)), _axes(layer, inputs)
    if cx.opset >= 23 and _are_last(axes, rank):
        return cx.op.RMSNormalization(
            inputs, cx.weight(layer.scale), axis=axes[0] - rank, epsilon=float(layer.epsilon)
        )
    # Keras multiplies by the scale as it is: it broadcasts over the last axes, regardless of `axis`.
    scale = cx.weight(layer.scale)
    return cx.op.Mul(cx.op.Div(inputs, _deviation(cx, inputs, axes, layer.epsilon)), scale)


def _axes(layer: Any, x: ir.Value) -> list[int]:
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    return sorted(axis % len(shape_of(x)) for axis in axes)


def _are_last(axes: list[int], rank: int) -> bool:
    return axes == list(range(rank - len(axes), rank))


def _ones(x: ir.Value, axes: list[int]) -> np.ndarray:
    return np.ones([shape_of(x)[axis] for axis in axes], "float32")


def _along(cx: GraphContext, variable: Any, axes: list[int], rank: int) -> ir.Value:
    """A weight over some axes, in a shape that broadcasts to all of them."""
    shape = [1] * rank
    for axis, size in zip(axes, variable.shape, strict=True):
        shape[axis] = size
    return cx.weight(variable, shape=tuple(shape[axes[0] :]))


def _deviation(cx: GraphContext, x: ir.Value, axes: list[int], epsilon: float) -> ir.Value:
    """Square root of the mean square."""
    square = reduced(cx, "ReduceMean", cx.op.Mul(x, x), axes, keepdims=True)
    return cx.op.Sqrt(cx.op.Add(square, float(epsilon)))


@lowers(
    layers.BatchNormalization,
    example=lambda x: layers.BatchNormalization()(x),
    shape=(4, 5, 3),
    nodes="Transpose BatchNormalization Transpose",
)
def batch_normalization(
    cx: GraphContext, layer: Any, /, inputs: ir.Value, mask: ir.Value | None = None
) -> ir.Value:
    """With the moving statistics, which do not depend on the mask."""
    (axis,) = _axes(layer, inputs)
    scale, shift = _scale_and_shift(cx, layer, inputs, axis)
    mean, variance = cx.weight(layer.moving_mean), cx.weight(layer.moving_variance)

    def normalize(x: ir.Value) -> ir.Value:
        return cx.op.BatchNormalization(x, scale, shift, mean, variance, epsilon=float(layer.epsilon))

    return _with_channels_first(cx, layer, inputs, axis, normalize)


def _scale_and_shift(cx: GraphContext, layer: Any, x: ir.Value, axis: int) -> tuple[Any, Any]:
    """The weights of a layer; 1 and 0 for those that it does not have, and a node must."""
    ones = _ones(x, [axis])
    scale = ones if layer.gamma is None else cx.weight(layer.gamma)
    return scale, np.zeros_like(ones) if layer.beta is None else cx.weight(layer.beta)


def _with_channels_first(
    cx: GraphContext, layer: Any, x: ir.Value, axis: int, normalize: Callable[[ir.Value], ir.Value]
) -> ir.Value:
    """ONNX has channels at axis 1, like a convolution: their transpositions often cancel."""
    if axis == 0:
        raise ExportError(
            f"Layer {cx.scope!r} has axis={layer.axis}. Normalizing the batch axis is not supported."
        )
    if axis == 1:
        return normalize(x)
    rank = len(shape_of(x))
    order = [0, axis, *(other for other in range(1, rank) if other != axis)]
    x = normalize(cx.op.Transpose(x, perm=order))
    return cx.op.Transpose(x, perm=[order.index(place) for place in range(rank)])


@lowers(
    layers.GroupNormalization,
    example=lambda x: layers.GroupNormalization(2)(x),
    shape=(4, 5, 6),
    nodes="Transpose GroupNormalization Transpose",
)
def group_normalization(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    if cx.cache is not None:
        raise ExportError(
            f"The layer {cx.scope!r} (GroupNormalization) relates tokens to each other, so it would not see "
            "the past of a cache. Export with cache=False."
        )
    rank, (axis,) = len(shape_of(inputs)), _axes(layer, inputs)
    if cx.opset >= 21:  # before, the node had one scale for a whole group
        scale, shift = _scale_and_shift(cx, layer, inputs, axis)

        def normalize(x: ir.Value) -> ir.Value:
            return cx.op.GroupNormalization(
                x, scale, shift, num_groups=layer.groups, epsilon=float(layer.epsilon)
            )

        return _with_channels_first(cx, layer, inputs, axis, normalize)
    size = shape_of(inputs)[axis]
    shape = cx.op.Shape(inputs)
    if [n is None for n in shape_of(inputs)[1:]].count(True) > 0:
        before, behind = cx.op.Shape(inputs, start=0, end=axis), cx.op.Shape(inputs, start=axis + 1)
        groups = cx.op.Concat(before, [layer.groups, size // layer.groups], behind, axis=0)
    else:
        known = list(shape_of(inputs))
        groups = [0, *known[1:axis], layer.groups, size // layer.groups, *known[axis + 1 :]]
    x = cx.op.Reshape(inputs, groups)
    axes = [other for other in range(1, rank + 1) if other != axis]  # all but the batch and the groups
    centred = cx.op.Sub(x, reduced(cx, "ReduceMean", x, axes, keepdims=True))
    x = cx.op.Reshape(cx.op.Div(centred, _deviation(cx, centred, axes, layer.epsilon)), shape)
    if layer.gamma is not None:
        x = cx.op.Mul(x, _along(cx, layer.gamma, [axis], rank))
    return x if layer.beta is None else cx.op.Add(x, _along(cx, layer.beta, [axis], rank))


@lowers(
    layers.UnitNormalization,
    example=lambda x: layers.UnitNormalization()(x),
    shape=(5, 8),
    nodes="Mul ReduceSum Sqrt Max Div",
)
def unit_normalization(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    square = reduced(cx, "ReduceSum", cx.op.Mul(inputs, inputs), _axes(layer, inputs), keepdims=True)
    return cx.op.Div(inputs, cx.op.Max(cx.op.Sqrt(square), 1e-12))
