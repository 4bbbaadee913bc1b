"""Layers on sequences: embeddings, masking, and a layer for each time step."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import layers

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext, shape_of
from keras_tx_onnx.lowerings.layers.dense import dense
from keras_tx_onnx.lowerings.nodes import int8_products
from keras_tx_onnx.lowerings.nodes.reductions import reduced
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.keras_masks import MASK
from keras_tx_onnx.reading.registry import lowers


@lowers(
    layers.Embedding,
    example=lambda x: layers.Embedding(7, 4)(layers.Discretization([0.0, 1.0])(x)),
    shape=(5,),
    nodes="Unsqueeze GreaterOrEqual Cast ReduceSum Gather",
)
def embedding(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    ids = _whole(cx, inputs)
    if int8_products.is_quantized(layer):
        return int8_products.gathered(cx, layer, ids)
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
        if layer.mask_zero:
            zero = np.float32(0) if "float" in inputs.meta[KERAS_TENSOR].dtype else np.int64(0)
            mask = cx.op.Not(cx.op.Equal(inputs, zero))
            mask.meta[KERAS_TENSOR] = keras.KerasTensor(shape_of(inputs), "bool")
            tokens.meta[MASK] = mask
        return tokens
    if int8_products.is_quantized(layer):
        logits = int8_products.logits(cx, layer, cx.floating(inputs))
    elif layer.tie_weights:
        logits = scores(cx, cx.weight(layer.embeddings), cx.floating(inputs))
    else:
        logits = cx.op.MatMul(cx.floating(inputs), cx.weight(layer.reverse_embeddings))
    if layer.logit_soft_cap is not None:
        cap = float(layer.logit_soft_cap)
        logits = cx.op.Mul(cx.op.Tanh(cx.op.Div(logits, cap)), cap)
    return logits


def scores(cx: GraphContext, table: ir.Value, x: ir.Value) -> ir.Value:
    """x times each row of a table (rows, width): Gemm turns it, so that it is stored as it is looked up."""
    assert table.shape is not None
    rows, width = table.shape.numpy()
    rank = len(shape_of(x))
    if rank == 2:
        return cx.op.Gemm(x, table, transB=1)
    sizes = cx.op.Concat(cx.op.Shape(x, start=0, end=rank - 1), [rows], axis=0)
    return cx.op.Reshape(cx.op.Gemm(cx.op.Reshape(x, [-1, width]), table, transB=1), sizes)


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


@lowers(
    layers.TimeDistributed,
    example=lambda x: layers.TimeDistributed(layers.Conv1D(2, 3))(x),
    shape=(None, 5, 4),
    nodes="Shape Reshape Transpose Conv Transpose Concat Reshape",
)
def time_distributed(cx: GraphContext, layer: Any, /, inputs: ir.Value, mask: ir.Value | None = None) -> Any:
    """The layer inside works on (batch * time, ...)."""
    inner = layer.layer
    if type(inner) is layers.Dense:
        return dense(cx, inner, inputs)
    x = _merged(cx, inputs)
    options = {}
    if mask is not None and functional_graph.is_function(inner):
        x.meta[MASK] = _merged(cx, mask)
    elif mask is not None and inner._call_has_mask_arg:
        if len(shape_of(mask)) < 3:
            raise ExportError(
                f"Layer {cx.scope!r} gives {inner.name!r} a mask of one number for each time step, which it "
                "cannot use. Take the mask away before it, or use the layer without TimeDistributed."
            )
        options["mask"] = _merged(cx, mask)
    y = lower_inner(cx, inner, x, **options)
    sizes = cx.op.Shape(inputs, start=0, end=2)
    rest = shape_of(y)[1:]
    rest = cx.op.Shape(y, start=1) if None in rest else list(rest)
    return cx.op.Reshape(y, cx.op.Concat(sizes, rest, axis=0))


def _merged(cx: GraphContext, x: ir.Value) -> ir.Value:
    shape = shape_of(x)
    if None in shape[2:]:
        merged = cx.op.Reshape(x, cx.op.Concat([-1], cx.op.Shape(x, start=2), axis=0))
    else:
        merged = cx.op.Reshape(x, [-1, *shape[2:]])
    merged.meta[KERAS_TENSOR] = keras.KerasTensor((None, *shape[2:]), x.meta[KERAS_TENSOR].dtype)
    return merged


def lower_inner(cx: GraphContext, layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Lowers the call of a layer that another one holds."""
    assert cx.lower_call_of is not None
    return cx.lower_call_of(cx, lambda *args, **kwargs: layer(*args, **kwargs), *args, **kwargs)
