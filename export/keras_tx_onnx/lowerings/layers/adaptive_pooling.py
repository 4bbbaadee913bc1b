"""Pooling to a given size. In Keras from 3.13 on, so this module is imported only where the layers exist."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
from keras import layers

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import GraphContext, shape_of
from keras_tx_onnx.lowerings.nodes.arguments import reduced
from keras_tx_onnx.lowerings.nodes.channels import spatial, spatial_axes
from keras_tx_onnx.reading.registry import lowers

IMAGE, CUBE, SERIES = (6, 5, 3), (5, 4, 6, 2), (7, 4)


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
    """For each spatial axis the places that each window sees, and the share of each place.

    Windows differ in length by one: the shorter see their last place twice, the second time with no share.
    """
    sizes = spatial(layer, x)
    for axis, size, count in zip(spatial_axes(layer, len(sizes)), sizes, layer.output_size, strict=True):
        if size is None:
            raise ExportError(f"Layer {cx.scope!r} pools axis {axis} to {count}, and its size must be known.")
        ends = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
        steps = np.arange(max(end - start for start, end in ends))
        places = np.array([np.minimum(start + steps, end - 1) for start, end in ends])
        shares = np.array([(start + steps < end) / (end - start) for start, end in ends], "float32")
        yield axis, places, shares
