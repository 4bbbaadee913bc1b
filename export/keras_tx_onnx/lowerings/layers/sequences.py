"""Embeddings and masking."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import layers

from keras_tx.layers.low_rank import LowRankEmbedding
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext, shape_of
from keras_tx_onnx.lowerings.layers.quantized import quantized_logits, quantized_rows
from keras_tx_onnx.lowerings.nodes.arguments import reduced
from keras_tx_onnx.lowerings.nodes.tied_projection import scores
from keras_tx_onnx.reading.keras_masks import MASK
from keras_tx_onnx.reading.quantized_layers import mode_of
from keras_tx_onnx.reading.registry import lowers


@lowers(
    LowRankEmbedding,
    example=lambda x: LowRankEmbedding(7, 4, adapter={"rank": 2, "alpha": 2.0})(
        layers.Discretization([0.0, 1.0])(x)
    ),
    shape=(5,),
    nodes="Unsqueeze GreaterOrEqual Cast ReduceSum Gather",
)
@lowers(
    layers.Embedding,
    example=lambda x: layers.Embedding(7, 4)(layers.Discretization([0.0, 1.0])(x)),
    shape=(5,),
    nodes="Unsqueeze GreaterOrEqual Cast ReduceSum Gather",
)
def embedding(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    ids = _whole(cx, inputs)
    if mode_of(layer) is not None:
        return quantized_rows(cx, layer, ids)
    return cx.op.Gather(cx.weight(layer.embeddings), ids, axis=0)


def _whole(cx: GraphContext, x: ir.Value) -> ir.Value:
    dtype = x.meta[KERAS_TENSOR].dtype
    return cx.op.Cast(x, to=ir.DataType.INT64) if dtype == "bool" or "float" in dtype else x


@lowers(
    layers.ReversibleEmbedding,
    example=lambda x: layers.ReversibleEmbedding(7, 4)(x, reverse=True),
    shape=(None, 4),
    nodes="Shape Concat Reshape Gemm Reshape",
)
def reversible_embedding(
    cx: GraphContext, layer: Any, /, inputs: ir.Value, reverse: bool = False
) -> ir.Value:
    if not reverse:
        tokens = embedding(cx, layer, inputs)
        if layer.mask_zero and mode_of(layer) is None:  # quantized, Keras's layer has no mask
            zero = np.float32(0) if "float" in inputs.meta[KERAS_TENSOR].dtype else np.int64(0)
            mask = cx.op.Not(cx.op.Equal(inputs, zero))
            mask.meta[KERAS_TENSOR] = keras.KerasTensor(shape_of(inputs), "bool")
            tokens.meta[MASK] = mask
        return tokens
    if mode_of(layer) is not None:
        logits = quantized_logits(cx, layer, cx.floating(inputs))
    elif layer.tie_weights:
        logits = scores(cx, cx.weight(layer.embeddings), cx.floating(inputs))
    else:
        logits = cx.op.MatMul(cx.floating(inputs), cx.weight(layer.reverse_embeddings))
    if layer.logit_soft_cap is not None:
        cap = float(layer.logit_soft_cap)
        logits = cx.op.Mul(cx.op.Tanh(cx.op.Div(logits, cap)), cap)
    return logits


@lowers(
    layers.Masking,
    example=lambda x: layers.Masking()(x),
    shape=(None, 4),
    nodes="Equal Not Cast ReduceMax Cast Unsqueeze Where",
)
def masking(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    kind = "float32" if "float" in inputs.meta[KERAS_TENSOR].dtype else "int64"
    value = keras.ops.convert_to_numpy(layer.mask_value).astype(kind)
    unlike = cx.op.Cast(cx.op.Not(cx.op.Equal(inputs, value)), to=ir.DataType.FLOAT)
    mask = cx.op.Cast(reduced(cx, "ReduceMax", unlike, [-1], keepdims=False), to=ir.DataType.BOOL)
    mask.meta[KERAS_TENSOR] = keras.KerasTensor(shape_of(inputs)[:-1], "bool")
    masked = cx.op.Where(cx.op.Unsqueeze(mask, [-1]), inputs, np.zeros((), kind))
    masked.meta[MASK] = mask
    return masked
