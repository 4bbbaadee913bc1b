"""Layers that Keras itself quantized to int8: the weights stay int8, and so do the products."""

from __future__ import annotations

import math
from typing import Any

import keras
import onnx_ir as ir

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.nodes.reductions import reduced


def product(cx: GraphContext, layer: Any, x: ir.Value, kernel: ir.Value, scale: ir.Value) -> ir.Value:
    """x times an int8 kernel (inner, outer) with a scale for each column, (outer,).

    The layer's quantizer rounds each row of x to its own range. That row is moved up by 128: onnxruntime is
    fast on unsigned by signed, and very slow on signed by signed.
    """
    quantizer = check(cx, layer).inputs_quantizer
    if quantizer is None:
        return cx.op.Div(cx.op.MatMul(x, cx.op.Cast(kernel, to=ir.DataType.FLOAT)), scale)
    if type(quantizer) is not keras.quantizers.AbsMaxQuantizer:
        raise ExportError(
            f"Layer {cx.scope!r} quantizes what it takes with {type(quantizer).__name__}; AbsMaxQuantizer "
            "has a lowering."
        )
    low, high = quantizer.value_range
    largest = reduced(cx, "ReduceMax", cx.op.Abs(x), [-1], keepdims=True)
    steps = cx.op.Div(float(high), cx.op.Add(largest, float(quantizer.epsilon)))
    rounded = cx.op.Clip(cx.op.Round(cx.op.Mul(x, steps)), float(low), float(high))
    unsigned = cx.op.Cast(cx.op.Add(rounded, 128.0), to=ir.DataType.UINT8)
    whole = cx.op.MatMulInteger(unsigned, kernel, cx.constant(128, "uint8"))
    return cx.op.Div(cx.op.Cast(whole, to=ir.DataType.FLOAT), cx.op.Mul(steps, scale))


def gathered(cx: GraphContext, layer: Any, ids: ir.Value) -> ir.Value:
    """Rows of an int8 table with a scale for each row."""
    check(cx, layer)
    rows = cx.op.Cast(cx.op.Gather(cx.weight(layer.embeddings), ids, axis=0), to=ir.DataType.FLOAT)
    scales = cx.op.Gather(cx.weight(layer.embeddings_scale), ids, axis=0)
    return cx.op.Div(rows, cx.op.Unsqueeze(scales, [-1]))


def logits(cx: GraphContext, layer: Any, x: ir.Value) -> ir.Value:
    """The product of ReversibleEmbedding; a tied table is turned in the graph, and stored once."""
    if not layer.tie_weights:
        kernel = cx.weight(layer.reverse_embeddings)
        return product(cx, layer, x, kernel, flat_scale(cx, layer.reverse_embeddings_scale))
    kernel = cx.op.Transpose(cx.weight(layer.embeddings), perm=[1, 0])
    return product(cx, layer, x, kernel, flat_scale(cx, layer.embeddings_scale))


def flat_scale(cx: GraphContext, variable: Any) -> ir.Value:
    """The scale of a kernel, one number for each of its columns."""
    return cx.weight(variable, shape=(math.prod(variable.shape),))


def is_quantized(layer: Any) -> bool:
    return getattr(layer, "quantization_mode", None) is not None


def check(cx: GraphContext, layer: Any) -> Any:
    """The layer, if its way of quantizing has a lowering."""
    if layer.quantization_mode != "int8":
        raise ExportError(
            f"Layer {cx.scope!r} is quantized ({layer.quantization_mode}) in Keras; int8 has a lowering. "
            "Export the model as it was before."
        )
    if getattr(layer, "lora_enabled", False):
        raise ExportError(
            f"Layer {cx.scope!r} is quantized and has LoRA weights beside, which has no lowering. Merge them "
            "before quantizing."
        )
    return layer
