"""Pooling over windows, over everything, and to a number of windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
from keras import layers

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext, shape_of
from keras_tx_onnx.lowerings.nodes.arguments import reduced
from keras_tx_onnx.lowerings.nodes.channels import (
    channels_are_last,
    same_pads,
    spatial,
    spatial_axes,
    to_first,
    to_last,
)
from keras_tx_onnx.reading.registry import lowers

IMAGE, CUBE, SERIES = (6, 5, 3), (5, 4, 6, 2), (7, 4)


def _pool(cx: GraphContext, layer: Any, inputs: ir.Value, node: str) -> ir.Value:
    """Padding never counts: it is minus infinity for the maximum, and absent from the average."""
    rank = len(spatial(layer, inputs))
    pool = getattr(cx.op, node)
    options = {
        "kernel_shape": list(layer.pool_size),
        "strides": list(layer.strides),
        **_padding(cx, layer, inputs),
    }
    if not channels_are_last(layer):
        return pool(inputs, **options)
    return to_last(cx, pool(to_first(cx, inputs, rank), **options), rank)


def _padding(cx: GraphContext, layer: Any, inputs: ir.Value) -> dict[str, Any]:
    """By name where that is possible.

    onnxruntime adds the zeros of a Pad to the numbers of the pooling behind it, where they are none.
    """
    windows, strides = list(layer.pool_size), list(layer.strides)
    if layer.padding == "valid":
        return {"auto_pad": "VALID"}
    if all(window >= stride for window, stride in zip(windows, strides, strict=True)):
        return {"auto_pad": "SAME_UPPER"}
    pads = same_pads(cx, spatial(layer, inputs), windows, strides)
    assert pads is not None  # same_pads returns None only where each window is at least its stride
    if not any(pads):
        return {"auto_pad": "VALID"}
    if _comes_from_a_pad(inputs):
        raise ExportError(
            f"Layer {cx.scope!r} has padding='same' after a padding layer, and a window {tuple(windows)} "
            f"smaller than its stride {tuple(strides)}, which onnxruntime computes wrongly. Pad only in the "
            "layer before, and use padding='valid'."
        )
    return {"pads": pads}


def _comes_from_a_pad(x: ir.Value) -> bool:
    node = x.producer()
    while node is not None and node.op_type in ("Transpose", "Identity") and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node is not None and node.op_type == "Pad"


@lowers(
    layers.MaxPooling1D,
    example=lambda x: layers.MaxPooling1D(3, 2, padding="same")(x),
    shape=SERIES,
    nodes="Transpose MaxPool Transpose",
)
@lowers(
    layers.MaxPooling2D,
    example=lambda x: layers.MaxPooling2D(2)(x),
    shape=IMAGE,
    nodes="Transpose MaxPool Transpose",
)
@lowers(
    layers.MaxPooling3D,
    example=lambda x: layers.MaxPooling3D(2)(x),
    shape=CUBE,
    nodes="Transpose MaxPool Transpose",
)
def max_pooling(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return _pool(cx, layer, inputs, "MaxPool")


@lowers(
    layers.AveragePooling1D,
    example=lambda x: layers.AveragePooling1D(3, 2, padding="same")(x),
    shape=SERIES,
    nodes="Transpose AveragePool Transpose",
)
@lowers(
    layers.AveragePooling2D,
    example=lambda x: layers.AveragePooling2D(3, 2, padding="same")(x),
    shape=IMAGE,
    nodes="Transpose AveragePool Transpose",
)
@lowers(
    layers.AveragePooling3D,
    example=lambda x: layers.AveragePooling3D(2)(x),
    shape=CUBE,
    nodes="Transpose AveragePool Transpose",
)
def average_pooling(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return _pool(cx, layer, inputs, "AveragePool")


@lowers(
    layers.GlobalMaxPooling1D,
    example=lambda x: layers.GlobalMaxPooling1D()(x),
    shape=SERIES,
    nodes="ReduceMax",
)
@lowers(
    layers.GlobalMaxPooling2D,
    example=lambda x: layers.GlobalMaxPooling2D()(x),
    shape=IMAGE,
    nodes="ReduceMax",
)
@lowers(
    layers.GlobalMaxPooling3D,
    example=lambda x: layers.GlobalMaxPooling3D(keepdims=True)(x),
    shape=CUBE,
    nodes="ReduceMax",
)
def global_max_pooling(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    axes = spatial_axes(layer, len(spatial(layer, inputs)))
    return reduced(cx, "ReduceMax", inputs, axes, keepdims=layer.keepdims)


@lowers(
    layers.GlobalAveragePooling1D,
    example=lambda x: layers.GlobalAveragePooling1D()(x),
    shape=SERIES,
    nodes="ReduceMean",
)
def global_average_pooling_1d(
    cx: GraphContext, layer: Any, /, inputs: ir.Value, mask: ir.Value | None = None
) -> ir.Value:
    if mask is None:
        return global_average_pooling(cx, layer, inputs)
    axes = spatial_axes(layer, 1)
    unmasked = cx.op.Unsqueeze(mask, [2 if channels_are_last(layer) else 1])
    if mask.meta[KERAS_TENSOR].dtype != "bool":
        unmasked = cx.op.Cast(unmasked, to=ir.DataType.BOOL)
    total = reduced(cx, "ReduceSum", cx.op.Where(unmasked, inputs, 0.0), axes, keepdims=layer.keepdims)
    count = cx.op.Cast(unmasked, to=ir.DataType.FLOAT)
    return cx.op.Div(total, reduced(cx, "ReduceSum", count, axes, keepdims=layer.keepdims))


@lowers(
    layers.GlobalAveragePooling2D,
    example=lambda x: layers.GlobalAveragePooling2D()(x),
    shape=IMAGE,
    nodes="ReduceMean",
)
@lowers(
    layers.GlobalAveragePooling3D,
    example=lambda x: layers.GlobalAveragePooling3D(keepdims=True)(x),
    shape=CUBE,
    nodes="ReduceMean",
)
def global_average_pooling(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    axes = spatial_axes(layer, len(spatial(layer, inputs)))
    return reduced(cx, "ReduceMean", inputs, axes, keepdims=layer.keepdims)


# -- pooling to a number of windows ------------------------------------------------------------------------


@lowers(
    layers.AdaptiveMaxPooling1D,
    example=lambda x: layers.AdaptiveMaxPooling1D(3)(x),
    shape=SERIES,
    nodes="Gather ReduceMax",
)
@lowers(
    layers.AdaptiveMaxPooling2D,
    example=lambda x: layers.AdaptiveMaxPooling2D((4, 2))(x),
    shape=IMAGE,
    nodes="Gather ReduceMax Gather ReduceMax",
)
@lowers(
    layers.AdaptiveMaxPooling3D,
    example=lambda x: layers.AdaptiveMaxPooling3D((3, 2, 4))(x),
    shape=CUBE,
    nodes="Gather ReduceMax Gather ReduceMax Gather ReduceMax",
)
def adaptive_max_pooling(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    x = inputs
    for axis, places, _ in _windows(cx, layer, inputs):
        x = reduced(cx, "ReduceMax", cx.op.Gather(x, places, axis=axis), [axis + 1], keepdims=False)
    return x


@lowers(
    layers.AdaptiveAveragePooling1D,
    example=lambda x: layers.AdaptiveAveragePooling1D(3)(x),
    shape=SERIES,
    nodes="Gather Mul ReduceSum",
)
@lowers(
    layers.AdaptiveAveragePooling2D,
    example=lambda x: layers.AdaptiveAveragePooling2D((4, 2))(x),
    shape=IMAGE,
    nodes="Gather Mul ReduceSum Gather Mul ReduceSum",
)
@lowers(
    layers.AdaptiveAveragePooling3D,
    example=lambda x: layers.AdaptiveAveragePooling3D((3, 2, 4))(x),
    shape=CUBE,
    nodes="Gather Mul ReduceSum Gather Mul ReduceSum Gather Mul ReduceSum",
)
def adaptive_average_pooling(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    x = inputs
    for axis, places, shares in _windows(cx, layer, inputs):
        behind = len(shape_of(inputs)) - axis - 1
        shares = shares.reshape((*shares.shape, *[1] * behind))
        x = cx.op.Mul(cx.op.Gather(x, places, axis=axis), shares)
        x = reduced(cx, "ReduceSum", x, [axis + 1], keepdims=False)
    return x


def _windows(cx: GraphContext, layer: Any, x: ir.Value) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """For each spatial axis the indices in each window, and the weight of each index.

    Windows differ in length by one: the shorter repeat their last index with weight 0.
    """
    sizes = spatial(layer, x)
    for axis, size, count in zip(spatial_axes(layer, len(sizes)), sizes, layer.output_size, strict=True):
        if size is None:
            raise ExportError(
                f"Layer {cx.scope!r} pools axis {axis} to {count}, but the axis is dynamic. Fix its size."
            )
        ends = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
        steps = np.arange(max(end - start for start, end in ends))
        places = np.array([np.minimum(start + steps, end - 1) for start, end in ends])
        shares = np.array([(start + steps < end) / (end - start) for start, end in ends], "float32")
        yield axis, places, shares
