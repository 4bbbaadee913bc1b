"""Preprocessing layers, and augmentation layers, which are identities at inference."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import layers

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext, shape_of
from keras_tx_onnx.lowerings.layers.reshaping import RESIZE
from keras_tx_onnx.lowerings.nodes.channels import channels_are_last, spatial, spatial_axes, to_first, to_last
from keras_tx_onnx.lowerings.nodes.interpolation import interpolated
from keras_tx_onnx.reading.registry import lowers

IMAGE = (6, 5, 3)


def _as_float(cx: GraphContext, x: ir.Value) -> ir.Value:
    return x if _is_float(x) else cx.op.Cast(x, to=ir.DataType.FLOAT)


def _is_float(x: ir.Value) -> bool:
    return keras.backend.is_float_dtype(x.meta[KERAS_TENSOR].dtype)


def _only_float(cx: GraphContext, x: ir.Value) -> None:
    if not _is_float(x):
        dtype = x.meta[KERAS_TENSOR].dtype
        raise ExportError(
            f"Layer {cx.scope!r} has an input of dtype {dtype}, which Keras rounds. Only floats are "
            "supported: insert keras.layers.Rescaling(1.0)."
        )


@lowers(layers.Rescaling, example=lambda x: layers.Rescaling(2.0, 1.0)(x), shape=(4,), nodes="Mul Add")
def rescaling(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    scale = np.asarray(layer.scale, "float32")
    if scale.ndim and keras.config.image_data_format() == "channels_first":
        scale = scale.reshape((*scale.shape, *[1] * (3 - scale.ndim)))
    return cx.op.Add(cx.op.Mul(_as_float(cx, inputs), scale), np.asarray(layer.offset, "float32"))


@lowers(
    layers.Normalization,
    example=lambda x: layers.Normalization(mean=[1.0, 2.0, 0.5], variance=[2.0, 3.0, 0.1])(x),
    shape=(4, 3),
    nodes="Sub Div",
)
def normalization(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    x = _as_float(cx, inputs)
    mean, variance = (
        np.asarray(keras.ops.convert_to_numpy(w), "float32") for w in (layer.mean, layer.variance)
    )
    deviation = np.maximum(np.sqrt(variance), np.float32(keras.config.epsilon()))
    if layer.invert:
        return cx.op.Add(cx.op.Mul(x, deviation), mean)
    return cx.op.Div(cx.op.Sub(x, mean), deviation)


@lowers(
    layers.Discretization,
    example=lambda x: layers.Rescaling(1.0)(layers.Discretization([-0.5, 0.0, 1.0])(x)),
    shape=(4,),
    nodes="Unsqueeze GreaterOrEqual Cast ReduceSum Cast Mul Add",
)
def discretization(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    if layer.output_mode != "int":
        raise ExportError(f"Layer {cx.scope!r} has output_mode={layer.output_mode!r}, expected 'int'.")
    x = cx.op.Unsqueeze(_as_float(cx, inputs), [-1])
    reached = cx.op.GreaterOrEqual(x, np.asarray(layer.bin_boundaries, "float32"))
    return cx.op.ReduceSum(cx.op.Cast(reached, to=ir.DataType.INT64), [-1], keepdims=0)


@lowers(
    layers.Resizing,
    example=lambda x: layers.Resizing(4, 9)(x),
    shape=IMAGE,
    nodes="Transpose Shape Concat Resize Transpose",
    takes_sizes=True,
)
def resizing(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    _only_float(cx, inputs)
    dynamic = isinstance(layer.height, ir.Value) or isinstance(layer.width, ir.Value)
    usual = layer.interpolation == "bilinear" and not layer.antialias
    if dynamic and not (usual and not layer.crop_to_aspect_ratio and not layer.pad_to_aspect_ratio):
        raise ExportError(
            f"Layer {cx.scope!r} resizes to a size that depends on the size of an input, with "
            f"interpolation={layer.interpolation!r}. Only bilinear interpolation without antialias, crop or "
            "pad is supported there. Use keras.ops.image.resize, or a fixed size."
        )
    x, sizes = inputs, _sizes(cx, layer, inputs)
    if layer.crop_to_aspect_ratio:
        known = _known(cx, sizes)
        sizes = _largest_inside(layer, known)
        x = _middle(cx, layer, x, known, sizes)
    elif layer.pad_to_aspect_ratio:
        x, sizes = _padded(cx, layer, x, _known(cx, sizes))
    return _resized(cx, layer, x, sizes, layer.interpolation, layer.antialias)


def _sizes(cx: GraphContext, layer: Any, x: ir.Value) -> tuple[int | None, ...]:
    """Height and width of a batch of images."""
    if len(shape_of(x)) != 4:
        raise ExportError(
            f"Layer {cx.scope!r} has an input of shape {shape_of(x)}, expected a batch of images, of rank 4."
        )
    return spatial(layer, x)


def _known(cx: GraphContext, sizes: tuple[int | None, ...]) -> tuple[int, int]:
    height, width = sizes
    if height is None or width is None:
        raise ExportError(
            f"Layer {cx.scope!r} keeps the aspect ratio of an image of dynamic size. Pass height and width "
            "to keras.Input."
        )
    return height, width


def _largest_inside(layer: Any, sizes: tuple[int, int]) -> tuple[int, int]:
    """The largest part of an image that has the aspect ratio of the result; rounded as Keras does."""
    height, width = sizes
    cut_height = int(np.float32(width * layer.height) / np.float32(layer.width))
    cut_width = int(np.float32(height * layer.width) / np.float32(layer.height))
    return max(min(height, cut_height), 1), max(min(width, cut_width), 1)


def _padded(
    cx: GraphContext, layer: Any, x: ir.Value, sizes: tuple[int, int]
) -> tuple[ir.Value, tuple[int, int]]:
    """An image padded equally on both sides to the aspect ratio of the result."""
    height, width = sizes
    more = (
        int(np.float32(width * layer.height) / np.float32(layer.width)) - height,
        int(np.float32(height * layer.width) / np.float32(layer.height)) - width,
    )
    sides = [max(n, 0) // 2 for n in more]
    pads = [0, 0, 0, 0]
    for axis, side in zip(spatial_axes(layer, 2), sides, strict=True):
        pads[axis] = side
    x = cx.op.Pad(x, [*pads, *pads], float(layer.fill_value))
    return x, (height + 2 * sides[0], width + 2 * sides[1])


def _resized(
    cx: GraphContext,
    layer: Any,
    x: ir.Value,
    sizes: tuple[int | None, ...],
    interpolation: str,
    antialias: bool = False,
) -> ir.Value:
    if interpolation == "nearest":
        return _nearest(cx, layer, x, sizes)
    last = channels_are_last(layer)
    x = to_first(cx, x, 2) if last else x
    if interpolation != "bilinear" or antialias:
        x = interpolated(cx, x, sizes, (layer.height, layer.width), interpolation, antialias)
    else:
        target = cx.op.Concat(cx.op.Shape(x, start=0, end=2), cx.vector((layer.height, layer.width)), axis=0)
        x = cx.op.Resize(x, None, None, target, **RESIZE[interpolation])
    return to_last(cx, x, 2) if last else x


def _nearest(cx: GraphContext, layer: Any, x: ir.Value, sizes: tuple[int | None, ...]) -> ir.Value:
    """The places are computed here: ONNX's own ways round the middle between two pixels otherwise."""
    targets = (layer.height, layer.width)
    for axis, size, count in zip(spatial_axes(layer, 2), sizes, targets, strict=True):
        if size is None:
            raise ExportError(
                f"Layer {cx.scope!r} has interpolation='nearest', but axis {axis} is dynamic. Fix its size."
            )
        scale = np.float32(size) / np.float32(count)
        places = np.floor((np.arange(count, dtype="float32") + np.float32(0.5)) * scale).astype("int64")
        x = cx.op.Gather(x, np.minimum(places, size - 1), axis=axis)
    return x


@lowers(layers.CenterCrop, example=lambda x: layers.CenterCrop(3, 4)(x), shape=IMAGE, nodes="Slice")
def center_crop(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    x = _as_float(cx, inputs)
    sizes, target = _known(cx, _sizes(cx, layer, inputs)), (layer.height, layer.width)
    if all(size >= side for size, side in zip(sizes, target, strict=True)):
        return _middle(cx, layer, x, sizes, target)
    inside = _largest_inside(layer, sizes)
    return _resized(cx, layer, _middle(cx, layer, x, sizes, inside), inside, "bilinear")


def _middle(
    cx: GraphContext, layer: Any, x: ir.Value, sizes: tuple[int, int], target: tuple[int, int]
) -> ir.Value:
    starts = [(size - side) // 2 for size, side in zip(sizes, target, strict=True)]
    ends = [start + side for start, side in zip(starts, target, strict=True)]
    return cx.op.Slice(x, starts, ends, spatial_axes(layer, 2))


@lowers(layers.AugMix, example=lambda x: layers.AugMix()(x), shape=IMAGE, nodes="")
@lowers(layers.CutMix, example=lambda x: layers.CutMix()(x), shape=IMAGE, nodes="")
@lowers(layers.MaxNumBoundingBoxes, example=lambda x: layers.MaxNumBoundingBoxes(3)(x), shape=IMAGE, nodes="")
@lowers(layers.MixUp, example=lambda x: layers.MixUp()(x), shape=IMAGE, nodes="")
@lowers(layers.RandAugment, example=lambda x: layers.RandAugment()(x), shape=IMAGE, nodes="")
@lowers(layers.RandomBrightness, example=lambda x: layers.RandomBrightness(0.1)(x), shape=IMAGE, nodes="")
@lowers(
    layers.RandomColorDegeneration,
    example=lambda x: layers.RandomColorDegeneration(0.1)(x),
    shape=IMAGE,
    nodes="",
)
@lowers(layers.RandomColorJitter, example=lambda x: layers.RandomColorJitter()(x), shape=IMAGE, nodes="")
@lowers(layers.RandomContrast, example=lambda x: layers.RandomContrast(0.1)(x), shape=IMAGE, nodes="")
@lowers(
    layers.RandomElasticTransform, example=lambda x: layers.RandomElasticTransform()(x), shape=IMAGE, nodes=""
)
@lowers(layers.RandomErasing, example=lambda x: layers.RandomErasing()(x), shape=IMAGE, nodes="")
@lowers(layers.RandomFlip, example=lambda x: layers.RandomFlip()(x), shape=IMAGE, nodes="")
@lowers(layers.RandomGaussianBlur, example=lambda x: layers.RandomGaussianBlur()(x), shape=IMAGE, nodes="")
@lowers(layers.RandomGrayscale, example=lambda x: layers.RandomGrayscale()(x), shape=IMAGE, nodes="")
@lowers(layers.RandomHue, example=lambda x: layers.RandomHue(0.1)(x), shape=IMAGE, nodes="")
@lowers(layers.RandomInvert, example=lambda x: layers.RandomInvert()(x), shape=IMAGE, nodes="")
@lowers(layers.RandomPerspective, example=lambda x: layers.RandomPerspective()(x), shape=IMAGE, nodes="")
@lowers(layers.RandomPosterization, example=lambda x: layers.RandomPosterization(3)(x), shape=IMAGE, nodes="")
@lowers(layers.RandomRotation, example=lambda x: layers.RandomRotation(0.1)(x), shape=IMAGE, nodes="")
@lowers(layers.RandomSaturation, example=lambda x: layers.RandomSaturation(0.1)(x), shape=IMAGE, nodes="")
@lowers(layers.RandomSharpness, example=lambda x: layers.RandomSharpness(0.1)(x), shape=IMAGE, nodes="")
@lowers(layers.RandomShear, example=lambda x: layers.RandomShear(0.1, 0.1)(x), shape=IMAGE, nodes="")
@lowers(
    layers.RandomTranslation, example=lambda x: layers.RandomTranslation(0.1, 0.1)(x), shape=IMAGE, nodes=""
)
@lowers(layers.RandomZoom, example=lambda x: layers.RandomZoom(0.1)(x), shape=IMAGE, nodes="")
@lowers(layers.Solarization, example=lambda x: layers.Solarization()(x), shape=IMAGE, nodes="")
def augmentation(cx: GraphContext, layer: Any, /, data: ir.Value) -> ir.Value:
    _only_float(cx, data)
    return data


@lowers(layers.RandomCrop, example=lambda x: layers.RandomCrop(6, 5)(x), shape=IMAGE, nodes="")
def random_crop(cx: GraphContext, layer: Any, /, data: ir.Value) -> ir.Value:
    sizes = _sizes(cx, layer, data)
    if sizes != (layer.height, layer.width):
        raise ExportError(
            f"Layer {cx.scope!r} returns images of size {sizes} unchanged at inference, but declares the "
            f"size {(layer.height, layer.width)}. Use keras.layers.CenterCrop or Resizing."
        )
    return augmentation(cx, layer, data)
