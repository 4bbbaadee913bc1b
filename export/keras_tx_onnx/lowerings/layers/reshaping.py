"""Layers that move, repeat, pad and cut."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from keras import layers

from keras_tx_onnx.graph.builder import GraphContext, shape_of
from keras_tx_onnx.lowerings.nodes.channels import channels_are_last, spatial, spatial_axes, to_first, to_last
from keras_tx_onnx.lowerings.nodes.interpolation import interpolated
from keras_tx_onnx.reading.registry import lowers

IMAGE, CUBE, SERIES = (6, 5, 3), (5, 4, 6, 2), (7, 4)


@lowers(layers.Flatten, example=lambda x: layers.Flatten()(x), shape=(4, 3), nodes="Reshape")
def flatten(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    rank = len(shape_of(inputs))
    if layer.data_format == "channels_first" and rank > 2:
        inputs = to_last(cx, inputs, rank - 2)
    return cx.op.Reshape(inputs, [0, -1] if rank > 1 else [-1, 1])


@lowers(layers.Reshape, example=lambda x: layers.Reshape((6, -1))(x), shape=(4, 3), nodes="Reshape")
def reshape(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return cx.op.Reshape(inputs, [0, *layer.target_shape])


@lowers(layers.Permute, example=lambda x: layers.Permute((2, 1))(x), shape=(4, 3), nodes="Transpose")
def permute(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return cx.op.Transpose(inputs, perm=[0, *layer.dims])


@lowers(
    layers.RepeatVector, example=lambda x: layers.RepeatVector(3)(x), shape=(4,), nodes="Unsqueeze Expand"
)
def repeat_vector(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return cx.op.Expand(cx.op.Unsqueeze(inputs, [1]), [1, layer.n, 1])


@lowers(layers.ZeroPadding1D, example=lambda x: layers.ZeroPadding1D(2)(x), shape=SERIES, nodes="Pad")
@lowers(
    layers.ZeroPadding2D,
    example=lambda x: layers.ZeroPadding2D(((1, 0), (2, 3)))(x),
    shape=IMAGE,
    nodes="Pad",
)
@lowers(layers.ZeroPadding3D, example=lambda x: layers.ZeroPadding3D(1)(x), shape=CUBE, nodes="Pad")
def zero_padding(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    amounts = _pairs(layer.padding)
    rank = len(shape_of(inputs))
    begins, ends = [0] * rank, [0] * rank
    for axis, (begin, end) in zip(spatial_axes(layer, rank - 2), amounts, strict=True):
        begins[axis], ends[axis] = begin, end
    return cx.op.Pad(inputs, [*begins, *ends])


@lowers(layers.Cropping1D, example=lambda x: layers.Cropping1D((1, 2))(x), shape=SERIES, nodes="Slice")
@lowers(
    layers.Cropping2D,
    example=lambda x: layers.Cropping2D(((1, 0), (2, 1)))(x),
    shape=IMAGE,
    nodes="Slice",
)
@lowers(layers.Cropping3D, example=lambda x: layers.Cropping3D(1)(x), shape=CUBE, nodes="Slice")
def cropping(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    amounts = _pairs(layer.cropping)
    rank = len(shape_of(inputs)) - 2
    axes = [1] if rank == 1 else spatial_axes(layer, rank)  # Cropping1D has no data_format
    starts = [begin for begin, _ in amounts]
    ends = [-end if end else 2**62 for _, end in amounts]
    return cx.op.Slice(inputs, starts, ends, axes)


def _pairs(amounts: Any) -> list[tuple[int, int]]:
    """The 1-D layers hold one pair, the others one for each axis."""
    return [tuple(amounts)] if isinstance(amounts[0], int) else [tuple(pair) for pair in amounts]


@lowers(
    layers.UpSampling1D,
    example=lambda x: layers.UpSampling1D(3)(x),
    shape=SERIES,
    nodes="Transpose Resize Transpose",
)
@lowers(
    layers.UpSampling2D,
    example=lambda x: layers.UpSampling2D((2, 3), interpolation="bilinear")(x),
    shape=IMAGE,
    nodes="Transpose Resize Transpose",
)
@lowers(
    layers.UpSampling3D,
    example=lambda x: layers.UpSampling3D((2, 1, 3))(x),
    shape=CUBE,
    nodes="Transpose Resize Transpose",
)
def up_sampling(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    rank = len(shape_of(inputs)) - 2
    factors = [layer.size] if isinstance(layer.size, int) else list(layer.size)
    interpolation = getattr(layer, "interpolation", "nearest")
    last = rank == 1 or channels_are_last(layer)  # UpSampling1D has no data_format
    x = to_first(cx, inputs, rank) if last else inputs
    if interpolation in RESIZE:
        x = cx.op.Resize(x, None, [1.0, 1.0, *map(float, factors)], **RESIZE[interpolation])
    else:
        sizes = spatial(layer, inputs)
        targets = [None if n is None else n * factor for n, factor in zip(sizes, factors, strict=True)]
        x = interpolated(cx, x, sizes, targets, interpolation, antialias=False)
    return to_last(cx, x, rank) if last else x


# Attributes of Resize, by interpolation; others are products with the weights of pixels.
RESIZE = {
    # each pixel becomes a block of equal ones
    "nearest": {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    },
    "bilinear": {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
}
