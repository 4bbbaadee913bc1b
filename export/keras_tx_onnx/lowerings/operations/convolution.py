"""Convolutions and pooling among the operations of keras.ops, by the lowerings of the layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.layers import convolution, pooling
from keras_tx_onnx.lowerings.nodes.arguments import as_float, rank_of, refuse, sizes_of
from keras_tx_onnx.lowerings.nodes.channels import to_first, to_last
from keras_tx_onnx.reading.registry import lowers


def _settings(operation: Any, rank: int, **more: Any) -> Any:
    """A layer as far as a lowering looks at it."""
    return SimpleNamespace(
        rank=rank,
        padding=operation.padding,
        data_format=operation.data_format or keras.config.image_data_format(),
        activation=None,
        bias=None,
        groups=1,
        **more,
    )


def _numbers(*shape: int) -> np.ndarray:
    return np.linspace(-1, 1, math.prod(shape), dtype="float32").reshape(shape)


def _each(value: Any, rank: int) -> tuple[int, ...]:
    return (int(value),) * rank if isinstance(value, (int, np.integer)) else tuple(map(int, value))


def _of_convolution(operation: Any, kernel: Any, name: str = "kernel") -> Any:
    rank = rank_of(kernel) - 2
    return _settings(
        operation,
        rank,
        kernel_size=tuple(sizes_of(kernel)[:rank]),
        strides=_each(operation.strides, rank),
        dilation_rate=_each(operation.dilation_rate, rank),
        **{name: _kernel(kernel)},
    )


def _kernel(kernel: Any) -> Any:
    """A variable or a value unchanged, anything else as an array."""
    if isinstance(kernel, (ir.Value, keras.Variable)):
        return kernel
    return ops.convert_to_numpy(kernel).astype("float32")


@lowers(
    "Conv",
    example=lambda x: ops.conv(x, _numbers(3, 2, 3, 3), strides=2, padding="same"),
    shape=(6, 5, 3),
    nodes="Transpose Conv Transpose",
)
def conv(cx: GraphContext, operation: Any, /, inputs: Any, kernel: Any) -> ir.Value:
    return convolution.convolution(cx, _of_convolution(operation, kernel), inputs)


@lowers(
    "DepthwiseConv",
    example=lambda x: ops.depthwise_conv(x, _numbers(3, 2, 3, 2)),
    shape=(6, 5, 3),
    nodes="Transpose Conv Transpose",
)
def depthwise_conv(cx: GraphContext, operation: Any, /, inputs: Any, kernel: Any) -> ir.Value:
    return convolution.depthwise_convolution(cx, _of_convolution(operation, kernel), inputs)


@lowers(
    "SeparableConv",
    example=lambda x: ops.separable_conv(x, _numbers(3, 2, 3, 1), _numbers(1, 1, 3, 2)),
    shape=(6, 5, 3),
    nodes="Transpose Conv Conv Transpose",
)
def separable_conv(
    cx: GraphContext, operation: Any, /, inputs: Any, depthwise_kernel: Any, pointwise_kernel: Any
) -> ir.Value:
    settings = _of_convolution(operation, depthwise_kernel, "depthwise_kernel")
    settings.pointwise_kernel = _kernel(pointwise_kernel)
    return convolution.separable_convolution(cx, settings, inputs)


class _Transposed(keras.layers.Layer):
    """For the example: alone in a model the operation does not run, Keras 3.15 mixes up its settings."""

    def call(self, x: Any) -> Any:
        return ops.conv_transpose(x, _numbers(3, 2, 3, 3), strides=2)


@lowers(
    "ConvTranspose",
    example=lambda x: _Transposed()(x),
    shape=(6, 5, 3),
    nodes="Transpose ConvTranspose Transpose",
)
def conv_transpose(cx: GraphContext, operation: Any, /, inputs: Any, kernel: Any) -> ir.Value:
    settings = _of_convolution(operation, kernel)
    settings.output_padding = operation.output_padding
    return convolution.transposed_convolution(cx, settings, inputs)


def _of_pooling(operation: Any, inputs: Any) -> Any:
    rank = rank_of(inputs) - 2
    size = _each(operation.pool_size, rank)
    strides = size if operation.strides is None else _each(operation.strides, rank)
    return _settings(operation, rank, pool_size=size, strides=strides)


@lowers(
    "MaxPool",
    example=lambda x: ops.max_pool(x, 3, 2, padding="same"),
    shape=(6, 5, 3),
    nodes="Transpose MaxPool Transpose",
)
def max_pool(cx: GraphContext, operation: Any, /, inputs: Any) -> ir.Value:
    return pooling.max_pooling(cx, _of_pooling(operation, inputs), inputs)


@lowers(
    "AveragePool",
    example=lambda x: ops.average_pool(x, (3, 2), 1),
    shape=(6, 5, 3),
    nodes="Transpose AveragePool Transpose",
)
def average_pool(cx: GraphContext, operation: Any, /, inputs: Any) -> ir.Value:
    return pooling.average_pooling(cx, _of_pooling(operation, inputs), inputs)


# -- blocks of pixels as channels -------------------------------------------------------------------------


def _channels_first(cx: GraphContext, operation: Any, x: Any, node: str, **attributes: Any) -> ir.Value:
    value = as_float(cx, x)
    if operation.data_format != "channels_last":
        return getattr(cx.op, node)(value, blocksize=operation.block_size, **attributes)
    value = getattr(cx.op, node)(to_first(cx, value, 2), blocksize=operation.block_size, **attributes)
    return to_last(cx, value, 2)


@lowers(
    "DepthToSpace",
    example=lambda x: ops.depth_to_space(x, 2),
    shape=(3, 2, 8),
    nodes="Transpose DepthToSpace Transpose",
)
def depth_to_space(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return _channels_first(cx, operation, x, "DepthToSpace", mode="DCR")


@lowers(
    "SpaceToDepth",
    example=lambda x: ops.space_to_depth(x, 2),
    shape=(4, 6, 3),
    nodes="Transpose SpaceToDepth Transpose",
)
def space_to_depth(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return _channels_first(cx, operation, x, "SpaceToDepth")


def as_images(cx: GraphContext, x: ir.Value, rank: int) -> ir.Value:
    """One image as a batch of one."""
    return cx.op.Unsqueeze(x, [0]) if rank == 3 else x


def as_before(cx: GraphContext, x: ir.Value, rank: int) -> ir.Value:
    return cx.op.Squeeze(x, [0]) if rank == 3 else x


@lowers(
    "ExtractPatches",
    example=lambda x: ops.image.extract_patches(x, (2, 3)),
    shape=(6, 6, 3),
    nodes="Reshape Transpose Reshape",
)
def extract_patches(cx: GraphContext, operation: Any, /, images: Any) -> ir.Value:
    """Adjacent patches are reshaped; others are convolved with a kernel of ones and zeros, as in Keras."""
    rank, sizes = rank_of(images), sizes_of(images)
    if len(operation.size) != 2:
        raise refuse(cx, operation, "size", operation.size, "Pass two sizes.")
    size, strides = tuple(operation.size), _each(operation.strides, 2)
    dilation = _each(operation.dilation_rate, 2)
    last = operation.data_format == "channels_last"
    channels = sizes[-1 if last else -3]
    value = as_images(cx, as_float(cx, images), rank)
    height, width = sizes[-3:-1] if last else sizes[-2:]
    if last and strides == size and dilation == (1, 1) and _divides(size, (height, width)):
        down, across = height // size[0], width // size[1]
        value = cx.op.Reshape(value, [-1, down, size[0], across, size[1], channels])
        value = cx.op.Transpose(value, perm=[0, 1, 3, 2, 4, 5])
        value = cx.op.Reshape(value, [-1, down, across, size[0] * size[1] * channels])
        return as_before(cx, value, rank)
    count = size[0] * size[1] * channels
    kernel = np.eye(count, dtype="float32").reshape(*size, channels, count)
    known = keras.KerasTensor((None, *sizes[-3:]), "float32")
    value.meta.setdefault("keras_tensor", known)
    settings = _settings(
        operation, 2, kernel_size=size, strides=strides, dilation_rate=dilation, kernel=kernel
    )
    return as_before(cx, convolution.convolution(cx, settings, value), rank)


def _divides(parts: Sequence[int], sizes: Sequence[int | None]) -> bool:
    return all(size is not None and size % part == 0 for part, size in zip(parts, sizes, strict=True))
