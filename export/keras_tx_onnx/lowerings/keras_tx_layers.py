"""The layers of keras_tx."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx import layers
from keras_tx.errors import ExportError
from keras_tx.layers.mask_token import MaskToken
from keras_tx.layers.rotary import inverse_frequencies
from keras_tx_onnx.context import Context, shape_of
from keras_tx_onnx.dims import axis_length
from keras_tx_onnx.lowerings.attention import Heads, attend, counting, length, rotary_angles, rotate
from keras_tx_onnx.lowerings.core import project
from keras_tx_onnx.lowerings.sequences import scores
from keras_tx_onnx.registry import lowers, opens


@lowers(
    layers.PatchEmbedding,
    example=lambda x: layers.PatchEmbedding(6, 4)(x),
    shape=(8, 12, 3),
    nodes="Transpose Conv Reshape Transpose",
)
def patch_embedding(cx: Context, layer: Any, /, inputs: ir.Value) -> ir.Value:
    rank = len(shape_of(inputs)) - 2
    patch = layer.patch(rank)
    channels_first = [0, rank + 1, *range(1, rank + 1)]
    kernel = cx.weight(layer.kernel, permute=(rank + 1, rank, *range(rank)))
    bias = None if layer.bias is None else cx.weight(layer.bias)
    x = cx.op.Transpose(inputs, perm=channels_first)
    x = cx.op.Conv(x, kernel, bias, kernel_shape=list(patch), strides=list(patch))
    x = cx.op.Reshape(x, [0, layer.width, -1])
    return cx.op.Transpose(x, perm=[0, 2, 1])  # (b, d, n) -> (b, n, d)


@lowers(
    layers.ClassToken,
    example=lambda x: layers.ClassToken(2, after=1)(x),
    shape=(4, 6),
    nodes="Shape Concat Expand Slice Slice Concat",
)
def class_token(cx: Context, layer: Any, /, inputs: ir.Value) -> ir.Value:
    shape = cx.op.Concat(cx.op.Shape(inputs, start=0, end=1), [layer.count, shape_of(inputs)[-1]], axis=0)
    tokens = cx.op.Expand(cx.weight(layer.tokens), shape)
    if layer.after == 0:
        return cx.op.Concat(tokens, inputs, axis=1)
    before = cx.op.Slice(inputs, [0], [layer.after], [1])
    behind = cx.op.Slice(inputs, [layer.after], [2**62], [1])
    return cx.op.Concat(before, tokens, behind, axis=1)


@lowers(MaskToken, example=lambda x: MaskToken()(x), shape=(4, 6), nodes="Identity")
def mask_token(cx: Context, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return inputs


@lowers(
    layers.PositionalEmbedding,
    example=lambda x: layers.PositionalEmbedding((2, 3))(x),
    shape=(6, 8),
    nodes="Add",
)
def positional_embedding(cx: Context, layer: Any, /, inputs: ir.Value) -> ir.Value:
    if layer.kind == "none":
        return inputs
    if cx.cache is not None:
        raise ExportError(
            f"The layer {cx.scope!r} counts positions from the first token given, and with a cache that is "
            "not the first of the text. Look positions up by position_ids, or export with cache=False."
        )
    if layer.kind == "learned":
        table = cx.weight(layer.table)
    else:
        table = cx.constant(ops.convert_to_numpy(layer.positions("float32")))
    if shape_of(inputs)[1] != layer.length:
        table = cx.op.Slice(table, [0], cx.op.Shape(inputs, start=1, end=2), [0])
    return cx.op.Add(inputs, table)


@lowers(
    layers.MultiHeadAttention,
    example=lambda x: layers.MultiHeadAttention(4, kv_heads=2)(x),
    shape=(5, 16),
    nodes="MatMul Add Split Attention MatMul Add",
)
def multi_head_attention(
    cx: Context,
    layer: Any,
    /,
    query: ir.Value,
    context: ir.Value | None = None,
    padding_mask: ir.Value | None = None,
    bias: ir.Value | None = None,
    positions: ir.Value | None = None,
    past: tuple[ir.Value, ir.Value] | None = None,
    return_weights: bool = False,
) -> Any:
    heads = Heads(layer.num_heads, layer.kv_heads, layer.size)
    if cx.cache is not None:
        if past is not None or not layer.causal or not (context is None and bias is None):
            raise ExportError(
                f"The layer {cx.scope!r} cannot decode with a cache: it is not causal, or attends to another "
                "sequence, or takes a bias or a past of its own. Export with cache=False."
            )
        past = cx.cache.ports(cx, heads.keys, heads.size)
        padding_mask = cx.cache.mask_for(padding_mask)
        positions = cx.cache.positions if positions is None else positions
    if context is None:
        q, k, v = _packed_projection(cx, layer, query, heads)
    else:
        q, k, v = (
            project(cx, dense, x)
            for dense, x in ((layer.query, query), (layer.key, context), (layer.value, context))
        )
    if layer.rotary_base is not None:
        places = positions
        if places is None:
            places = counting(cx, length(cx, query, 1))
            places = places if past is None else cx.op.Add(places, length(cx, past[0], 2))
        frequencies = inverse_frequencies(heads.size, layer.rotary_base, layer.rotary_scaling)
        angles = rotary_angles(cx, query, places, frequencies)
        q = rotate(cx, q, angles, heads.queries, heads.size)
        k = rotate(cx, k, angles, heads.keys, heads.size)
    attended, present, weights = attend(
        cx,
        heads,
        q,
        k,
        v,
        causal=layer.causal,
        padding_mask=padding_mask,
        bias=bias,
        past=past,
        weights=return_weights,
        tokens=axis_length(cx, query, 1),
    )
    if cx.cache is not None:
        cx.cache.keep(present)
        present = None
    output = project(cx, layer.output_projection, attended)
    extra = [x for x in (present, weights if return_weights else None) if x is not None]
    return (output, *extra) if extra else output


def _packed_projection(cx: Context, layer: Any, x: ir.Value, heads: Heads) -> tuple[ir.Value, ...]:
    """Query, key and value as one product, which is faster than three."""
    parts = (layer.query, layer.key, layer.value)
    x = cx.op.MatMul(x, cx.packed(f"{layer.path}/qkv/kernel", [part.kernel for part in parts], axis=1))
    if layer.qkv_bias:
        x = cx.op.Add(x, cx.packed(f"{layer.path}/qkv/bias", [part.bias for part in parts], axis=0))
    sizes = [heads.queries * heads.size, heads.keys * heads.size, heads.keys * heads.size]
    return cx.op.Split(x, sizes, outputs=3, axis=-1)


@lowers(
    layers.RelativePositionBias,
    example=lambda x: layers.RelativePositionBias(2, buckets=8, max_distance=16)(x),
    shape=(5, 6),
    nodes=(
        "Shape Squeeze Range Unsqueeze Unsqueeze Sub Abs Unsqueeze GreaterOrEqual Cast ReduceSum "
        "Greater Cast Mul Add Gather Transpose Unsqueeze"
    ),
)
def relative_position_bias(
    cx: Context, layer: Any, /, query: ir.Value, context: ir.Value | None = None
) -> ir.Value:
    queries = counting(cx, length(cx, query, 1))
    keys = counting(cx, length(cx, query if context is None else context, 1))
    distance = cx.op.Sub(cx.op.Unsqueeze(keys, [0]), cx.op.Unsqueeze(queries, [1]))
    back = cx.op.Abs(distance) if layer.bidirectional else cx.op.Max(cx.op.Neg(distance), np.int64(0))
    reached = cx.op.GreaterOrEqual(cx.op.Unsqueeze(back, [2]), layer.thresholds())
    bucket = cx.op.ReduceSum(cx.op.Cast(reached, to=ir.DataType.INT64), [2], keepdims=0)
    if layer.bidirectional:
        later = cx.op.Cast(cx.op.Greater(distance, np.int64(0)), to=ir.DataType.INT64)
        bucket = cx.op.Add(bucket, cx.op.Mul(later, np.int64(layer.buckets // 2)))
    bias = cx.op.Gather(cx.weight(layer.table), bucket, axis=0)  # (queries, keys, heads)
    return cx.op.Unsqueeze(cx.op.Transpose(bias, perm=[2, 0, 1]), [0])


@lowers(
    layers.TokenEmbedding,
    example=lambda x: layers.TokenEmbedding(7, 4)(x, reverse=True),
    shape=(None, 4),
    nodes="Shape Concat Reshape Gemm Reshape",
)
def token_embedding(cx: Context, layer: Any, /, inputs: ir.Value, reverse: bool = False) -> ir.Value:
    if reverse:
        return scores(cx, cx.weight(layer.table), inputs)
    return cx.op.Gather(cx.weight(layer.table), inputs, axis=0)


@lowers(layers.Bias, example=lambda x: layers.Bias()(x), shape=(5, 4), nodes="Add")
def bias(cx: Context, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return cx.op.Add(inputs, cx.weight(layer.bias))


opens(
    layers.FeedForward,
    example=lambda x: layers.FeedForward(8)(x),
    shape=(5, 4),
    nodes="MatMul Add Gelu MatMul Add",
)
opens(
    layers.TransformerBlock,
    example=lambda x: layers.TransformerBlock(2, 8)(x),
    shape=(5, 4),
    nodes=(
        "LayerNormalization MatMul Add Split Attention MatMul Add Add "
        "LayerNormalization MatMul Add Gelu MatMul Add Add"
    ),
)
