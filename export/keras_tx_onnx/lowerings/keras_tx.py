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
from keras_tx_onnx.graph.builder import GraphContext, shape_of
from keras_tx_onnx.lowerings.layers.dense import project
from keras_tx_onnx.lowerings.layers.sequences import scores
from keras_tx_onnx.lowerings.nodes.attention import (
    FINITE,
    Heads,
    all_of,
    attend,
    counting,
    in_order,
    length,
    rotary_angles,
    rotate,
)
from keras_tx_onnx.reading.keras_masks import mask_of
from keras_tx_onnx.reading.registry import lowers, opens
from keras_tx_onnx.reading.symbolic_sizes import axis_length


@lowers(
    layers.PatchEmbedding,
    example=lambda x: layers.PatchEmbedding(6, 4)(x),
    shape=(8, 12, 3),
    nodes="Transpose Conv Reshape Transpose",
)
def patch_embedding(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
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
def class_token(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    shape = cx.op.Concat(cx.op.Shape(inputs, start=0, end=1), [layer.count, shape_of(inputs)[-1]], axis=0)
    tokens = cx.op.Expand(cx.weight(layer.tokens), shape)
    if layer.after == 0:
        return cx.op.Concat(tokens, inputs, axis=1)
    before = cx.op.Slice(inputs, [0], [layer.after], [1])
    behind = cx.op.Slice(inputs, [layer.after], [2**62], [1])
    return cx.op.Concat(before, tokens, behind, axis=1)


@lowers(MaskToken, example=lambda x: MaskToken()(x), shape=(4, 6), nodes="Identity")
def mask_token(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return inputs


@lowers(
    layers.PositionalEmbedding,
    example=lambda x: layers.PositionalEmbedding((2, 3))(x),
    shape=(6, 8),
    nodes="Add",
)
def positional_embedding(
    cx: GraphContext, layer: Any, /, inputs: ir.Value, positions: ir.Value | None = None
) -> ir.Value:
    if layer.kind == "none":
        return inputs
    if cx.cache is not None and positions is None:
        raise ExportError(
            f"The layer {cx.scope!r} numbers positions from the first token of its input, which is wrong "
            "with a cache. Use position_ids, or export with cache=False."
        )
    if layer.kind == "learned":
        table = cx.weight(layer.table)
    else:
        table = cx.constant(ops.convert_to_numpy(layer.positions("float32")))
    if positions is not None:
        table = cx.op.Gather(table, positions, axis=0)
    elif shape_of(inputs)[1] != layer.length:
        table = cx.op.Slice(table, [0], cx.op.Shape(inputs, start=1, end=2), [0])
    return cx.op.Add(inputs, table)


@lowers(
    layers.MultiHeadAttention,
    example=lambda x: layers.MultiHeadAttention(4, kv_heads=2)(x),
    shape=(5, 16),
    nodes="MatMul Add Split Attention MatMul Add",
)
def multi_head_attention(  # Branches: one for each option of the layer and of its call
    cx: GraphContext,
    layer: Any,
    /,
    query: ir.Value,
    value: ir.Value | None = None,
    key: ir.Value | None = None,
    attention_mask: ir.Value | None = None,
    padding_mask: ir.Value | None = None,
    bias: ir.Value | None = None,
    positions: ir.Value | None = None,
    past: tuple[ir.Value, ir.Value] | None = None,
    return_attention_scores: bool = False,
) -> Any:
    heads = Heads(layer.num_heads, layer.kv_heads, layer.size, layer.value_size)
    value = query if value is None else value
    key = value if key is None else key
    is_self = key is value is query
    if cx.cache is not None:
        _check_cacheable(cx, is_self and layer.causal, past, attention_mask, bias)
        past = cx.cache.ports(cx, heads.keys, heads.size, heads.values)
        padding_mask = cx.cache.mask_for(padding_mask)
        positions = cx.cache.positions if positions is None else positions
    elif padding_mask is None:
        padding_mask = _implicit_mask(cx, [key] if key is value else [key, value])
    q, k, v = _projected(cx, layer, heads, query, key, value)
    if layer.rotary_base is not None:
        q, k = _rotated(cx, layer, heads, (q, query), (k, None if is_self else key), past, positions)
    sizes = axis_length(cx, query, 1), axis_length(cx, key, 1)
    mask, bias = _full_mask_and_bias(cx, attention_mask, bias, sizes, past)
    if layer.causal and not is_self:
        mask = all_of(cx, [mask, in_order(cx, q, k)])
    attended, present, weights = attend(
        cx,
        heads,
        q,
        k,
        v,
        causal=layer.causal and is_self,
        padding_mask=padding_mask,
        mask=mask,
        bias=bias,
        past=past,
        weights=return_attention_scores,
        scale=layer.scale,
        tokens=sizes[0],
    )
    if cx.cache is not None:
        cx.cache.keep(present)
        present = None
    output = project(cx, layer.output_projection, attended)
    extra = [x for x in (present, weights if return_attention_scores else None) if x is not None]
    return (output, *extra) if extra else output


def _check_cacheable(cx: GraphContext, causal: bool, *unsupported: Any) -> None:
    if not causal or any(x is not None for x in unsupported):
        raise ExportError(
            f"The layer {cx.scope!r} cannot decode with a cache: it is not causal, or was called with "
            "another sequence, an attention_mask, a bias or a past. Export with cache=False."
        )


def _implicit_mask(cx: GraphContext, inputs: list[ir.Value]) -> ir.Value | None:
    """The conjunction of the Keras masks of the inputs."""
    masks = [mask_of(x) for x in inputs]
    return all_of(cx, [None if x is None else cx.op.Cast(x, to=ir.DataType.BOOL) for x in masks])


def _projected(
    cx: GraphContext, layer: Any, heads: Heads, query: ir.Value, key: ir.Value, value: ir.Value
) -> tuple[ir.Value, ...]:
    """Query, key and value (batch, tokens, heads * size), normalized where the layer has norms."""
    if key is value is query:
        q, k, v = _packed_projection(cx, layer, query, heads)
    else:
        parts = ((layer.query, query), (layer.key, key), (layer.value, value))
        q, k, v = (project(cx, dense, x) for dense, x in parts)
    if layer.qk_norm:
        q = _normalized(cx, layer.query_norm, q, heads.queries, heads.size)
        k = _normalized(cx, layer.key_norm, k, heads.keys, heads.size)
    return q, k, v


def _rotated(
    cx: GraphContext,
    layer: Any,
    heads: Heads,
    queries: tuple[ir.Value, ir.Value],
    keys: tuple[ir.Value, ir.Value | None],
    past: tuple[ir.Value, ir.Value] | None,
    positions: ir.Value | None,
) -> tuple[ir.Value, ir.Value]:
    """Queries and keys with rotary positions; each projection with its input, None for that of the query."""
    (q, query), (k, key) = queries, keys
    frequencies = inverse_frequencies(heads.size, layer.rotary_base, layer.rotary_scaling)
    angles = of_key = rotary_angles(cx, query, _places(cx, query, past, positions), frequencies)
    if key is not None:
        of_key = rotary_angles(cx, key, _places(cx, key, None, None), frequencies)
    return (
        rotate(cx, q, angles, heads.queries, heads.size),
        rotate(cx, k, of_key, heads.keys, heads.size),
    )


def _normalized(cx: GraphContext, norm: Any, x: ir.Value, heads: int, size: int) -> ir.Value:
    """Layer normalization of each head of (batch, tokens, heads * size)."""
    x = cx.op.Reshape(x, [0, 0, heads, size])
    shift = None if norm.beta is None else cx.weight(norm.beta)
    x = cx.op.LayerNormalization(x, cx.weight(norm.gamma), shift, axis=-1, epsilon=float(norm.epsilon))
    return cx.op.Reshape(x, [0, 0, heads * size])


def _places(
    cx: GraphContext, x: ir.Value, past: tuple[ir.Value, ir.Value] | None, positions: ir.Value | None
) -> ir.Value:
    """The positions of tokens: as they were passed, or 0, 1, 2 ... after the past."""
    if positions is not None:
        return positions
    places = counting(cx, length(cx, x, 1))
    return places if past is None else cx.op.Add(places, length(cx, past[0], 2))


def _per_head(cx: GraphContext, x: ir.Value, rank: int) -> ir.Value:
    """(queries, keys), (batch, queries, keys) or four axes -> (b or 1, heads or 1, queries, keys)."""
    return x if rank == 4 else cx.op.Unsqueeze(x, [0, 1] if rank == 2 else [1])


def _full_mask_and_bias(
    cx: GraphContext,
    mask: ir.Value | None,
    bias: ir.Value | None,
    sizes: tuple[ir.Value, ir.Value],
    past: tuple[ir.Value, ir.Value] | None,
) -> tuple[ir.Value | None, ir.Value | None]:
    if mask is not None:
        mask = _per_head(cx, cx.op.Cast(mask, to=ir.DataType.BOOL), len(shape_of(mask)))
        mask = _of_full_size(cx, mask, sizes, past)
    if bias is not None and not bias.meta.get(FINITE):
        bias = _of_full_size(cx, _per_head(cx, bias, len(shape_of(bias))), sizes, past)
    return mask, bias


def _of_full_size(
    cx: GraphContext,
    x: ir.Value,
    sizes: tuple[ir.Value, ir.Value],
    past: tuple[ir.Value, ir.Value] | None,
) -> ir.Value:
    """A mask or bias with a row for each query and a column for each key, as onnxruntime requires."""
    if cx.opset < 23:
        return x
    queries, keys = sizes
    if past is not None:
        keys = cx.op.Add(keys, cx.op.Shape(past[0], start=2, end=3))
    return cx.op.Expand(x, cx.op.Concat([1, 1], queries, keys, axis=0))


def _packed_projection(cx: GraphContext, layer: Any, x: ir.Value, heads: Heads) -> tuple[ir.Value, ...]:
    """Query, key and value as one product, which is faster than three."""
    parts = (layer.query, layer.key, layer.value)
    x = cx.op.MatMul(x, cx.packed(f"{layer.path}/qkv/kernel", [part.kernel for part in parts], axis=1))
    if layer.qkv_bias:
        x = cx.op.Add(x, cx.packed(f"{layer.path}/qkv/bias", [part.bias for part in parts], axis=0))
    sizes = [heads.queries * heads.size, heads.keys * heads.size, heads.keys * heads.values]
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
    cx: GraphContext, layer: Any, /, query: ir.Value, value: ir.Value | None = None
) -> ir.Value:
    queries = counting(cx, length(cx, query, 1))
    keys = counting(cx, length(cx, query if value is None else value, 1))
    distance = cx.op.Sub(cx.op.Unsqueeze(keys, [0]), cx.op.Unsqueeze(queries, [1]))
    back = cx.op.Abs(distance) if layer.bidirectional else cx.op.Max(cx.op.Neg(distance), np.int64(0))
    reached = cx.op.GreaterOrEqual(cx.op.Unsqueeze(back, [2]), layer.thresholds())
    bucket = cx.op.ReduceSum(cx.op.Cast(reached, to=ir.DataType.INT64), [2], keepdims=0)
    if layer.bidirectional:
        later = cx.op.Cast(cx.op.Greater(distance, np.int64(0)), to=ir.DataType.INT64)
        bucket = cx.op.Add(bucket, cx.op.Mul(later, np.int64(layer.buckets // 2)))
    bias = cx.op.Gather(cx.weight(layer.table), bucket, axis=0)  # (queries, keys, heads)
    result = cx.op.Unsqueeze(cx.op.Transpose(bias, perm=[2, 0, 1]), [0])
    result.meta[FINITE] = True
    return result


@lowers(
    layers.TokenEmbedding,
    example=lambda x: layers.TokenEmbedding(7, 4)(x, reverse=True),
    shape=(None, 4),
    nodes="Shape Concat Reshape Gemm Reshape",
)
def token_embedding(cx: GraphContext, layer: Any, /, inputs: ir.Value, reverse: bool = False) -> ir.Value:
    if reverse:
        return scores(cx, cx.weight(layer.table), inputs)
    return cx.op.Gather(cx.weight(layer.table), inputs, axis=0)


@lowers(layers.Bias, example=lambda x: layers.Bias()(x), shape=(5, 4), nodes="Add")
def bias(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
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
