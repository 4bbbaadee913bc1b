"""Self-attention of keras-hub's decoders, with and without a cache, and its masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.nodes.attention import Heads, attend, counting
from keras_tx_onnx.lowerings.nodes.cached_masks import after_past, cache_of, of_whole_text
from keras_tx_onnx.reading.symbolic_sizes import axis_length

Projections = tuple[ir.Value, ...]  # query, key and value (batch, tokens, heads * size)


def attend_to_self(
    cx: GraphContext, heads: Heads, qkv: Projections, x: ir.Value, mask: ir.Value | None, **options: Any
) -> ir.Value:
    """The attention of a text (batch, tokens, ...) to itself, with a boolean mask (b, 1 or queries, keys)."""
    if cx.cache is not None:
        return attend_to_past(cx, heads, qkv, mask, **options)
    if mask is not None:
        mask = full_mask(cx, cx.op.Unsqueeze(mask, [1]), x, x)
    return attend(cx, heads, *qkv, mask=mask, **options)[0]


def attend_to_past(
    cx: GraphContext,
    heads: Heads,
    qkv: Projections,
    mask: ir.Value | None,
    *,
    causal: bool = False,
    bias: ir.Value | None = None,
    **options: Any,
) -> ir.Value:
    """The attention of tokens to themselves and to the past of a cache.

    Args:
        cx: of the graph.
        heads: the numbers and sizes of heads.
        qkv: query, key and value (batch, tokens, heads * size).
        mask: boolean (batch, 1 or queries, keys), as Keras's graph computes it for the tokens.
        causal: whether later keys are excluded beside the mask.
        bias: (1 or batch, heads, 1, keys), as Keras's graph computes it for the tokens.
        **options: scale and soft_cap.
    """
    cache = cache_of(cx)
    padding, mask = after_past(cx, mask, causal)
    y, present, _ = attend(
        cx,
        heads,
        *qkv,
        causal=mask is None,
        padding_mask=padding,
        mask=mask,
        bias=None if bias is None else of_whole_text(cx, bias),
        past=cache.ports(cx, heads.keys, heads.size, heads.values),
        tokens=axis_length(cx, cache.stand_in, 1),
        **options,
    )
    cache.query_heads = heads.queries
    cache.keep(present)
    return y


def causal_mask(cx: GraphContext, query: ir.Value, value: ir.Value) -> ir.Value:
    """(1, queries, keys): True for keys that are not later."""
    queries, keys = (counting(cx, cx.op.Squeeze(axis_length(cx, x, 1), [0])) for x in (query, value))
    return cx.op.GreaterOrEqual(cx.op.Unsqueeze(queries, [0, 2]), cx.op.Unsqueeze(keys, [0, 1]))


def full_mask(cx: GraphContext, mask: ir.Value, query: ir.Value, value: ir.Value) -> ir.Value:
    """(b, 1, 1 or queries, keys) in full size: onnxruntime refuses one row for all queries."""
    if cx.opset < 23:
        return mask
    sizes = cx.op.Concat([1, 1], axis_length(cx, query, 1), axis_length(cx, value, 1), axis=0)
    return cx.op.Expand(mask, sizes)


def windowed(cx: GraphContext, mask: ir.Value, tokens: ir.Value, window: int) -> ir.Value:
    """A mask without keys at a distance of `window` or more."""
    places = counting(cx, cx.op.Squeeze(axis_length(cx, tokens, 1), [0]))
    distance = cx.op.Sub(cx.op.Unsqueeze(places, [0, 2]), cx.op.Unsqueeze(places, [0, 1]))
    return cx.op.And(mask, cx.op.Less(cx.op.Abs(distance), np.int64(window)))
