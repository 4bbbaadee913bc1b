"""Convolutions. Keras keeps channels last and ONNX first: a pass removes adjacent transpositions."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from keras import layers

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.activations import activate
from keras_tx_onnx.lowerings.nodes.channels import channels_are_last, same_pads, spatial, to_first, to_last
from keras_tx_onnx.reading.registry import lowers

IMAGE, CUBE, SERIES = (6, 5, 3), (5, 4, 6, 2), (7, 4)


@lowers(
    layers.Conv1D,
    example=lambda x: layers.Conv1D(4, 3, padding="causal", dilation_rate=2)(x),
    shape=SERIES,
    nodes="Transpose Conv Transpose",
)
@lowers(
    layers.Conv2D,
    example=lambda x: layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(x),
    shape=IMAGE,
    nodes="Transpose Conv Transpose Relu",
)
@lowers(
    layers.Conv3D,
    example=lambda x: layers.Conv3D(4, 2, groups=2)(x),
    shape=CUBE,
    nodes="Transpose Conv Transpose",
)
def convolution(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    def convolve(x: ir.Value) -> ir.Value:
        kernel = cx.weight(layer.kernel, permute=(layer.rank + 1, layer.rank, *range(layer.rank)))
        return _conv(cx, layer, x, kernel, layer.bias, layer.groups, spatial(layer, inputs))

    return _channels_first(cx, layer, inputs, convolve)


@lowers(
    layers.DepthwiseConv1D,
    example=lambda x: layers.DepthwiseConv1D(3)(x),
    shape=SERIES,
    nodes="Transpose Conv Transpose",
)
@lowers(
    layers.DepthwiseConv2D,
    example=lambda x: layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2)(x),
    shape=IMAGE,
    nodes="Transpose Conv Transpose",
)
def depthwise_convolution(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    def convolve(x: ir.Value) -> ir.Value:
        return _depthwise(cx, layer, x, layer.kernel, layer.bias, spatial(layer, inputs))

    return _channels_first(cx, layer, inputs, convolve)


@lowers(
    layers.SeparableConv1D,
    example=lambda x: layers.SeparableConv1D(5, 3)(x),
    shape=SERIES,
    nodes="Transpose Conv Conv Transpose",
)
@lowers(
    layers.SeparableConv2D,
    example=lambda x: layers.SeparableConv2D(5, 3, padding="same", depth_multiplier=2)(x),
    shape=IMAGE,
    nodes="Transpose Conv Conv Transpose",
)
def separable_convolution(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    def convolve(x: ir.Value) -> ir.Value:
        x = _depthwise(cx, layer, x, layer.depthwise_kernel, None, spatial(layer, inputs))
        kernel = cx.weight(layer.pointwise_kernel, permute=(layer.rank + 1, layer.rank, *range(layer.rank)))
        return cx.op.Conv(x, kernel, None if layer.bias is None else cx.weight(layer.bias))

    return _channels_first(cx, layer, inputs, convolve)


def _channels_first(cx: GraphContext, layer: Any, inputs: ir.Value, convolve: Any) -> ir.Value:
    if channels_are_last(layer):
        x = to_last(cx, convolve(to_first(cx, inputs, layer.rank)), layer.rank)
    else:
        x = convolve(inputs)
    return activate(cx, layer.activation, x)


def _depthwise(
    cx: GraphContext, layer: Any, x: ir.Value, kernel: Any, bias: Any, sizes: tuple[int | None, ...]
) -> ir.Value:
    *space, channels, multiplier = kernel.shape  # (space ..., c, m) -> (c * m, 1, space ...)
    axes = range(layer.rank)
    weight = cx.weight(
        kernel,
        permute=(layer.rank, layer.rank + 1, *axes),
        shape=(channels * multiplier, 1, *space),
    )
    return _conv(cx, layer, x, weight, bias, channels, sizes)


def _conv(
    cx: GraphContext,
    layer: Any,
    x: ir.Value,
    kernel: ir.Value,
    bias: Any,
    groups: int,
    sizes: tuple[int | None, ...],
) -> ir.Value:
    size, strides, dilation = (_each(layer, n) for n in ("kernel_size", "strides", "dilation_rate"))
    windows = [(k - 1) * d + 1 for k, d in zip(size, dilation, strict=True)]
    padding: dict[str, Any] = {}
    if layer.padding == "same":
        pads = same_pads(cx, sizes, windows, strides)
        padding = {"auto_pad": "SAME_UPPER"} if pads is None else {"pads": pads}
    elif layer.padding == "causal":
        padding = {"pads": [windows[0] - 1, 0]}
    return cx.op.Conv(
        x,
        kernel,
        None if bias is None else cx.weight(bias),
        kernel_shape=size,
        strides=strides,
        dilations=dilation,
        group=groups,
        **padding,
    )


def _each(layer: Any, name: str) -> list[int]:
    """An option of a layer for each spatial axis."""
    value = getattr(layer, name)
    return [value] * layer.rank if isinstance(value, int) else list(value)


@lowers(
    layers.Conv1DTranspose,
    example=lambda x: layers.Conv1DTranspose(4, 3, strides=2)(x),
    shape=SERIES,
    nodes="Transpose ConvTranspose Transpose",
)
@lowers(
    layers.Conv2DTranspose,
    example=lambda x: layers.Conv2DTranspose(4, 3, strides=2, padding="same")(x),
    shape=IMAGE,
    nodes="Transpose ConvTranspose Transpose",
)
@lowers(
    layers.Conv3DTranspose,
    example=lambda x: layers.Conv3DTranspose(4, 2, strides=3, padding="same")(x),
    shape=CUBE,
    nodes="Transpose ConvTranspose Transpose",
)
def transposed_convolution(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    def convolve(x: ir.Value) -> ir.Value:
        size, strides, dilation = (_each(layer, n) for n in ("kernel_size", "strides", "dilation_rate"))
        extra = [None] * layer.rank if layer.output_padding is None else _each(layer, "output_padding")
        begins, ends, added = [], [], []
        for k, s, d, more in zip(size, strides, dilation, extra, strict=True):
            cut = _surplus(layer.padding, (k - 1) * d + 1, s, more)
            if -cut >= max(s, d):
                raise ExportError(
                    f"Layer {cx.scope!r} has output_padding={layer.output_padding}, which needs a padding of "
                    f"{-cut}. ONNX supports less than the stride {s}."
                )
            begins.append(max(cut, 0) // 2)
            ends.append(max(cut, 0) - max(cut, 0) // 2)
            added.append(max(-cut, 0))
        return cx.op.ConvTranspose(
            x,
            cx.weight(layer.kernel, permute=(layer.rank + 1, layer.rank, *range(layer.rank))),
            None if layer.bias is None else cx.weight(layer.bias),
            kernel_shape=size,
            strides=strides,
            dilations=dilation,
            pads=[*begins, *ends],
            output_padding=added,
        )

    return _channels_first(cx, layer, inputs, convolve)


def _surplus(padding: str, window: int, stride: int, output_padding: int | None) -> int:
    """The difference of the full size for n steps, (n - 1) * stride + window, and the size in Keras."""
    if padding == "valid":
        return -(max(stride - window, 0) if output_padding is None else output_padding)
    return window - (stride if output_padding is None else window % 2 + output_padding)
