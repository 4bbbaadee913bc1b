"""Operations of keras.ops.image: other sizes, borders, and grey."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.nodes.arguments import (
    as_given,
    is_float,
    length_of,
    rank_of,
    refuse,
    result_type,
    scalar,
    sizes_of,
)
from keras_tx_onnx.lowerings.nodes.channels import to_first, to_last
from keras_tx_onnx.lowerings.nodes.interpolation import interpolated
from keras_tx_onnx.lowerings.operations.convolution import as_before, as_images
from keras_tx_onnx.reading.registry import lowers


def _places(operation: Any, rank: int) -> tuple[int, int]:
    """The axes of height and width."""
    return (rank - 3, rank - 2) if operation.data_format == "channels_last" else (rank - 2, rank - 1)


@lowers(
    "Resize",
    example=lambda x: ops.image.resize(x, (4, 9)),
    shape=(6, 5, 3),
    nodes="Transpose Shape Concat Resize Transpose",
    takes_sizes=True,
)
def resize(cx: GraphContext, operation: Any, /, images: Any) -> ir.Value:
    for setting in ("crop_to_aspect_ratio", "pad_to_aspect_ratio"):
        if getattr(operation, setting):
            raise refuse(cx, operation, setting, True)
    if operation.interpolation == "nearest":
        return _nearest(cx, operation, images)
    if not is_float(images):
        raise refuse(cx, operation, "dtype", result_type(images), "Cast the images to floats first.")
    rank, last = rank_of(images), operation.data_format == "channels_last"
    value = as_images(cx, as_given(cx, images), rank)
    value = to_first(cx, value, 2) if last else value
    if operation.interpolation != "bilinear" or operation.antialias:
        places = [sizes_of(images)[axis] for axis in _places(operation, rank)]
        options = (operation.interpolation, operation.antialias)
        value = interpolated(cx, value, places, operation.size, *options)
    else:
        sizes = cx.op.Concat(cx.op.Shape(value, start=0, end=2), cx.vector(operation.size), axis=0)
        options = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
        value = cx.op.Resize(value, None, None, sizes, **options)
    return as_before(cx, to_last(cx, value, 2) if last else value, rank)


def _nearest(cx: GraphContext, operation: Any, images: Any) -> ir.Value:
    """Computes the source pixels explicitly: nodes of ONNX round halves differently."""
    value, rank = as_given(cx, images), rank_of(images)
    for axis, count in zip(_places(operation, rank), operation.size, strict=True):
        size = length_of(cx, images, axis)
        value = cx.op.Gather(value, _nearest_places(cx, size, count), axis=axis)
    return value


def _nearest_places(cx: GraphContext, size: Any, count: Any) -> Any:
    half = np.float32(0.5)
    if not isinstance(size, ir.Value) and not isinstance(count, ir.Value):
        scale = np.float32(size) / np.float32(count)
        places = np.floor((np.arange(count, dtype="float32") + half) * scale).astype("int64")
        return np.minimum(places, size - 1)

    def floating(n: Any) -> Any:
        return cx.op.Cast(n, to=ir.DataType.FLOAT) if isinstance(n, ir.Value) else np.float32(n)

    scale = cx.op.Div(floating(size), floating(count))
    steps = cx.op.Cast(cx.op.Range(np.int64(0), scalar(count), np.int64(1)), to=ir.DataType.FLOAT)
    places = cx.op.Cast(cx.op.Floor(cx.op.Mul(cx.op.Add(steps, half), scale)), to=ir.DataType.INT64)
    return cx.op.Min(places, cx.op.Sub(scalar(size), np.int64(1)))


@lowers(
    "RGBToGrayscale",
    example=lambda x: ops.image.rgb_to_grayscale(x),
    shape=(4, 5, 3),
    nodes="MatMul",
)
def rgb_to_grayscale(cx: GraphContext, operation: Any, /, images: Any) -> ir.Value:
    value, last = as_given(cx, images), operation.data_format == "channels_last"
    channels = sizes_of(images)[-1 if last else -3]
    if channels == 1:
        return value
    if channels != 3 or not is_float(images):
        raise refuse(cx, operation, "images of channels and dtype", (channels, result_type(images)))
    weights = np.array([0.2989, 0.5870, 0.1140], "float32")
    if last:
        return cx.op.MatMul(value, weights.reshape(3, 1))
    weighted = cx.op.Mul(value, weights.reshape(3, 1, 1))
    return cx.op.ReduceSum(weighted, [-3], keepdims=1)


@lowers(
    "PadImages",
    example=lambda x: ops.image.pad_images(x, 1, 2, target_height=9, target_width=8),
    shape=(6, 5, 3),
    nodes="Pad",
)
def pad_images(cx: GraphContext, operation: Any, /, images: Any) -> ir.Value:
    """With zeros."""
    rank = rank_of(images)
    pads = [0] * (2 * rank)
    for axis, names in _sides(operation, rank, "padding"):
        before, after, target = (getattr(operation, name) for name in names)
        size = sizes_of(images)[axis]
        if None in (before, after):
            if None in (size, target) or (before is None and after is None):
                raise refuse(
                    cx, operation, f"{names[0]} and {names[1]}", (before, after), f"The size is {size}."
                )
            before = target - size - after if before is None else before
            after = target - size - before
        pads[axis], pads[axis + rank] = before, after
    return cx.op.Pad(as_given(cx, images), pads, mode="constant")


@lowers(
    "CropImages",
    example=lambda x: ops.image.crop_images(x, 1, 2, target_height=3, target_width=2),
    shape=(6, 5, 3),
    nodes="Slice",
)
def crop_images(cx: GraphContext, operation: Any, /, images: Any) -> ir.Value:
    rank = rank_of(images)
    starts, ends, axes = [], [], []
    for axis, names in _sides(operation, rank, "cropping"):
        before, after, target = (getattr(operation, name) for name in names)
        size = sizes_of(images)[axis]
        if before is None:
            if None in (size, target, after):
                raise refuse(cx, operation, names[0], before, f"The size is {size}.")
            before = size - target - after
        if target is None:
            if size is None or after is None:
                raise refuse(cx, operation, names[1], after, f"The size is {size}.")
            target = size - before - after
        starts.append(before)
        ends.append(before + target)
        axes.append(axis)
    return cx.op.Slice(as_given(cx, images), starts, ends, axes)


def _sides(operation: Any, rank: int, kind: str) -> list[tuple[int, tuple[str, str, str]]]:
    height, width = _places(operation, rank)
    return [
        (height, (f"top_{kind}", f"bottom_{kind}", "target_height")),
        (width, (f"left_{kind}", f"right_{kind}", "target_width")),
    ]
