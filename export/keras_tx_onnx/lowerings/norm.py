"""Normalization layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from keras import layers

from keras_tx.errors import ExportError
from keras_tx_onnx.context import Context, shape_of
from keras_tx_onnx.lowerings.core import reduce_mean
from keras_tx_onnx.registry import lowers


@lowers(
    layers.LayerNormalization,
    example=lambda x: layers.LayerNormalization()(x),
    shape=(5, 8),
    nodes="LayerNormalization",
)
def layer_normalization(cx: Context, layer: Any, /, inputs: ir.Value) -> ir.Value:
    axis = last_axis(cx, layer, inputs)
    if getattr(layer, "rms_scaling", False):
        raise ExportError(
            f"Layer {cx.scope!r} has rms_scaling=True, which has no lowering. Use RMSNormalization."
        )
    scale = np.ones(shape_of(inputs)[axis], "float32") if layer.gamma is None else cx.weight(layer.gamma)
    shift = None if layer.beta is None else cx.weight(layer.beta)
    return cx.op.LayerNormalization(inputs, scale, shift, axis=axis, epsilon=layer.epsilon)


@lowers(
    layers.RMSNormalization,
    example=lambda x: layers.RMSNormalization()(x),
    shape=(5, 8),
    nodes="RMSNormalization",
)
def rms_normalization(cx: Context, layer: Any, /, inputs: ir.Value) -> ir.Value:
    axis = last_axis(cx, layer, inputs)
    scale = cx.weight(layer.scale)
    if cx.opset >= 23:
        return cx.op.RMSNormalization(inputs, scale, axis=axis, epsilon=layer.epsilon)
    square = reduce_mean(cx, cx.op.Mul(inputs, inputs), axis, keepdims=True)
    return cx.op.Mul(cx.op.Div(inputs, cx.op.Sqrt(cx.op.Add(square, layer.epsilon))), scale)


def last_axis(cx: Context, layer: Any, inputs: ir.Value) -> int:
    """-1, or an error where a layer normalizes anything but the last axis."""
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    if [axis % len(shape_of(inputs)) for axis in axes] != [len(shape_of(inputs)) - 1]:
        raise ExportError(
            f"Layer {cx.scope!r} normalizes axis={layer.axis}; only the last axis has a lowering."
        )
    return -1
