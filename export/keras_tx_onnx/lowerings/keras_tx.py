"""The layers of keras_tx. Relative positions and disentangled attention have modules of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx import layers
from keras_tx.errors import ExportError
from keras_tx.heads.multiple_choice import FoldChoices, UnfoldChoices
from keras_tx.heads.token_classification import AT_PADDING
from keras_tx.layers.mask_token import MaskToken
from keras_tx.layers.rotary import inverse_frequencies
from keras_tx.layers.sliding_window import SlidingWindow
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext, shape_of
from keras_tx_onnx.graph.cache_ports import AFTER_PAST, Seq2SeqCache
from keras_tx_onnx.lowerings.layers.dense import project
from keras_tx_onnx.lowerings.layers.normalization import layer_normalization, rms_normalization
from keras_tx_onnx.lowerings.nodes.arguments import reduced
from keras_tx_onnx.lowerings.nodes.attention import (
    FINITE,
    LOWEST,
    Heads,
    all_of,
    attend,
    attend_heads,
    counting,
    fixed_angles,
    for_each_query,
    in_order,
    length,
    merge_heads,
    real_keys,
    rotary_angles,
    rotate,
    split_heads,
)
from keras_tx_onnx.lowerings.nodes.tied_projection import scores
from keras_tx_onnx.lowerings.relative_positions import relative_scores
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


@lowers(FoldChoices, example=lambda x: FoldChoices()(x), shape=(3, 5), nodes="Shape Concat Reshape")
def fold_choices(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    length = cx.op.Shape(inputs, start=2, end=3)
    return cx.op.Reshape(inputs, cx.op.Concat([-1], length, axis=0))


@lowers(
    UnfoldChoices,
    example=lambda x: UnfoldChoices()(FoldChoices()(x), x),
    shape=(3, 1),
    nodes="Shape Concat Reshape Shape Reshape ReduceMax Cast Where",
)
def unfold_choices(cx: GraphContext, layer: Any, /, logits: ir.Value, real: ir.Value) -> ir.Value:
    choices = cx.op.Reshape(logits, cx.op.Shape(real, start=0, end=2))
    is_text = cx.op.Cast(reduced(cx, "ReduceMax", real, [2], keepdims=False), to=ir.DataType.BOOL)
    return cx.op.Where(is_text, choices, np.float32(AT_PADDING))


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
    start = None if cx.cache is None or positions is not None else cx.cache.past_length(cx)
    if layer.kind == "learned":
        table = cx.weight(layer.table)
    else:
        table = cx.constant(ops.convert_to_numpy(layer.positions("float32")))
    if positions is not None:
        table = cx.op.Gather(table, positions, axis=0)
    elif start is not None:
        table = cx.op.Slice(table, start, cx.op.Add(start, axis_length(cx, inputs, 1)), [0])
    elif shape_of(inputs)[1] != layer.length:
        table = cx.op.Slice(table, [0], cx.op.Shape(inputs, start=1, end=2), [0])
    return cx.op.Add(inputs, table)


@lowers(
    layers.MultiHeadAttention,
    example=lambda x: layers.MultiHeadAttention(4, kv_heads=2)(x),
    shape=(5, 16),
    nodes="MatMul Add Split Attention MatMul Add",
    quantized_parts=True,
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
    has_causal_bias = cx.cache is not None and bias is not None
    heads = Heads(layer.num_heads, layer.kv_heads, layer.size, layer.value_size)
    value = query if value is None else value
    key = value if key is None else key
    is_self = key is value is query
    if cx.cache is not None:
        _check_cacheable(cx, layer, is_self, key is value, past, attention_mask, bias)
        if not is_self:
            return _attend_to_source(cx, layer, heads, query, value, padding_mask)
        past = cx.cache.ports(cx, heads.keys, heads.size, heads.values)
        padding_mask = cx.cache.mask_for(padding_mask)
        positions = cx.cache.positions if positions is None else positions
        bias = _causal(cx, bias)
    elif padding_mask is None:
        padding_mask = implicit_mask(cx, [key] if key is value else [key, value])
    q, k, v = _projected(cx, layer, heads, query, key, value)
    if layer.rotary_base is not None:
        q, k = _rotated(cx, layer, heads, (q, query), (k, None if is_self else key), past, positions)
    sizes = axis_length(cx, query, 1), axis_length(cx, key, 1)
    mask, bias = full_mask_and_bias(cx, attention_mask, bias, sizes, past)
    bias = _with_relative_scores(cx, layer, heads, (q, query), bias)
    if layer.causal and not is_self:
        mask = all_of(cx, [mask, in_order(cx, q, k)])
    attended, present, weights = attend(
        cx,
        heads,
        q,
        k,
        v,
        causal=layer.causal and is_self and not has_causal_bias,
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
    output = inner_projection(cx, layer.output_projection, attended)
    extra = [x for x in (present, weights if return_attention_scores else None) if x is not None]
    return (output, *extra) if extra else output


def _check_cacheable(
    cx: GraphContext,
    layer: Any,
    is_self: bool,
    is_one_sequence: bool,
    past: Any,
    attention_mask: ir.Value | None,
    bias: ir.Value | None,
) -> None:
    """Raises an ExportError for a call of attention that a graph with a cache cannot compute."""
    supported = past is None and attention_mask is None
    if is_self:
        supported &= layer.causal and (bias is None or AFTER_PAST in bias.meta)
    else:
        supported &= isinstance(cx.cache, Seq2SeqCache) and is_one_sequence and bias is None
        supported &= layer.rotary_base is None and not layer.causal
    if not supported:
        raise ExportError(
            f"The layer {cx.scope!r} cannot decode with a cache: it is not causal, or was called with "
            "another sequence, an attention_mask, a bias or a past. Export with cache=False."
        )


def _causal(cx: GraphContext, bias: ir.Value | None) -> ir.Value | None:
    """A bias with the causal mask, once for all layers that share it."""
    if bias is None:
        return None

    def make() -> ir.Value:
        masked = cx.op.Where(bias.meta[AFTER_PAST], bias, LOWEST)
        masked.meta[FINITE] = True
        return masked

    return cx.once(("causal", bias), make)


def _attend_to_source(
    cx: GraphContext,
    layer: Any,
    heads: Heads,
    query: ir.Value,
    source: ir.Value,
    padding_mask: ir.Value | None,
) -> ir.Value:
    """Cross-attention of a graph with a cache, which contains the keys and values of the source."""
    assert isinstance(cx.cache, Seq2SeqCache)
    if source is not cx.cache.source:
        raise ExportError(
            f"The layer {cx.scope!r} attends to a sequence that the decoder computes from the encoder's "
            "output. Compute it in the encoder, because a cache contains its keys and values."
        )
    padding_mask = implicit_mask(cx, [source]) if padding_mask is None else padding_mask
    allowed = None if padding_mask is None else real_keys(cx, padding_mask)
    if allowed is not None and cx.opset >= 23:
        allowed = for_each_query(cx, allowed, axis_length(cx, query, 1))
    q = inner_projection(cx, layer.query, query)
    if layer.qk_norm:
        q = _normalized(cx, layer.query_norm, q, heads.queries, heads.size)
    q = split_heads(cx, q, heads.queries, heads.size)

    def project_source() -> tuple[ir.Value, ir.Value]:
        k, v = (inner_projection(cx, dense, source) for dense in (layer.key, layer.value))
        if layer.qk_norm:
            k = _normalized(cx, layer.key_norm, k, heads.keys, heads.size)
        return split_heads(cx, k, heads.keys, heads.size), split_heads(cx, v, heads.keys, heads.values)

    attended = cx.cache.attend_to_source(
        cx,
        (heads.keys, heads.size, heads.values),
        project_source,
        lambda k, v: attend_heads(cx, heads, q, k, v, allowed, layer.scale),
    )
    return inner_projection(
        cx, layer.output_projection, merge_heads(cx, attended, heads.queries * heads.values)
    )


def implicit_mask(cx: GraphContext, inputs: list[ir.Value]) -> ir.Value | None:
    """The conjunction of the Keras masks of the inputs."""
    masks = [mask_of(x) for x in inputs]
    return all_of(cx, [None if x is None else cx.op.Cast(x, to=ir.DataType.BOOL) for x in masks])


def _projected(
    cx: GraphContext, layer: Any, heads: Heads, query: ir.Value, key: ir.Value, value: ir.Value
) -> tuple[ir.Value, ...]:
    """Query, key and value (batch, tokens, heads * size), normalized where the layer has norms."""
    if key is value is query:
        q, k, v = packed_projection(cx, layer, query, heads)
    else:
        parts = ((layer.query, query), (layer.key, key), (layer.value, value))
        q, k, v = (inner_projection(cx, dense, x) for dense, x in parts)
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
    if layer.rotary_grid is not None:
        angles = of_key = fixed_angles(cx, query, layer.angles())
    else:
        frequencies = inverse_frequencies(heads.size, layer.rotary_base, layer.rotary_scaling)
        angles = of_key = rotary_angles(cx, query, _places(cx, query, past, positions), frequencies)
        if key is not None:
            of_key = rotary_angles(cx, key, _places(cx, key, None, None), frequencies)
    return (
        rotate(cx, q, angles, heads.queries, heads.size),
        rotate(cx, k, of_key, heads.keys, heads.size),
    )


def _with_relative_scores(
    cx: GraphContext, layer: Any, heads: Heads, queries: tuple[ir.Value, ir.Value], bias: ir.Value | None
) -> ir.Value | None:
    """The bias and the scores of the offsets; `queries` are the projection and its input."""
    if layer.relative is None:
        return bias
    relative = relative_scores(cx, layer, heads, *queries)
    return relative if bias is None else cx.op.Add(relative, bias)


def _normalized(cx: GraphContext, norm: Any, x: ir.Value, heads: int, size: int) -> ir.Value:
    """Layer or RMS normalization of each head of (batch, tokens, heads * size)."""
    x = cx.op.Reshape(x, [0, 0, heads, size])
    x.meta[KERAS_TENSOR] = keras.KerasTensor((None, None, heads, size))
    normalize = rms_normalization if isinstance(norm, keras.layers.RMSNormalization) else layer_normalization
    x = normalize(cx, norm, x)
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


def full_mask_and_bias(
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


def packed_projection(cx: GraphContext, layer: Any, x: ir.Value, heads: Heads) -> tuple[ir.Value, ...]:
    """Query, key and value as one product, which is faster than three; apart if one is quantized."""
    parts = (layer.query, layer.key, layer.value)
    if any(part.quantization_mode for part in parts):
        return tuple(inner_projection(cx, part, x) for part in parts)
    x = cx.op.MatMul(x, cx.packed(f"{layer.path}/qkv/kernel", [part.kernel for part in parts], axis=1))
    sizes = [heads.queries * heads.size, heads.keys * heads.size, heads.keys * heads.values]
    if layer.qkv_bias and layer.key_bias:
        x = cx.op.Add(x, cx.packed(f"{layer.path}/qkv/bias", [part.bias for part in parts], axis=0))
    elif layer.qkv_bias or layer.key_bias:
        x = cx.op.Add(x, _padded_bias(cx, layer, parts, sizes))
    return cx.op.Split(x, sizes, outputs=3, axis=-1)


def inner_projection(cx: GraphContext, dense: Any, x: ir.Value) -> ir.Value:
    """A dense layer inside a layer; if it is quantized, its name is part of the names of its nodes."""
    with cx.inside(dense.name if dense.quantization_mode else ""):
        return project(cx, dense, x)


def _padded_bias(cx: GraphContext, layer: Any, parts: Sequence[Any], sizes: Sequence[int]) -> ir.Value:
    """The biases of query, key and value, zero for those without one."""
    present = [part.bias is not None for part in parts]

    def make(*biases: np.ndarray) -> np.ndarray:
        left = iter(biases)
        zeros = (np.zeros(size, "float32") for size in sizes)
        return np.concatenate([next(left) if has else zero for has, zero in zip(present, zeros, strict=True)])

    variables = [part.bias for part in parts if part.bias is not None]
    return cx.made_of(f"{layer.path}/qkv/bias", variables, (sum(sizes),), make)


@lowers(
    SlidingWindow,
    example=lambda x: SlidingWindow(1)(x),
    shape=(5, 6),
    nodes="Shape Squeeze Range Unsqueeze Unsqueeze Sub Abs LessOrEqual Unsqueeze",
)
def sliding_window(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    places = counting(cx, length(cx, inputs, 1))
    distances = cx.op.Abs(cx.op.Sub(cx.op.Unsqueeze(places, [0]), cx.op.Unsqueeze(places, [1])))
    return cx.op.Unsqueeze(cx.op.LessOrEqual(distances, np.int64(layer.distance)), [0])


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
