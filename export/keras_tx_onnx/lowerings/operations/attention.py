"""keras.ops.dot_product_attention: one node from opset 23 on, written out below."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.nodes.arguments import as_bool, as_float, refuse, sizes_of
from keras_tx_onnx.lowerings.nodes.attention import counting, length
from keras_tx_onnx.reading.registry import lowers

# Keras adds a large negative number where the mask is False: a query without keys gets the mean of all.
HIDDEN = -1e30


@lowers(
    "DotProductAttention",
    example=lambda x: ops.dot_product_attention(x, x, x, is_causal=True),
    shape=(5, 2, 4),
    nodes="Reshape Attention Reshape",
)
def dot_product_attention(
    cx: GraphContext,
    operation: Any,
    /,
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    scale: Any = None,
) -> ir.Value:
    """(batch, tokens, heads, size) each."""
    (*_, heads, size), (*_, kv_heads, _), width = sizes_of(query), sizes_of(key), sizes_of(value)[-1]
    if None in (heads, kv_heads, size, width):
        raise refuse(cx, operation, "heads and size", (heads, kv_heads, size, width), "They must be static.")
    if width != size:
        raise refuse(cx, operation, "value of width", width, f"Expected {size}, the width of the query.")
    if operation.attn_logits_soft_cap is not None:
        raise refuse(cx, operation, "attn_logits_soft_cap", operation.attn_logits_soft_cap)
    q, k, v = (as_float(cx, x) for x in (query, key, value))
    if scale is None:
        scale = size**-0.5
    elif not isinstance(scale, (int, float)):
        q, scale = cx.op.Mul(q, as_float(cx, scale)), 1.0
    offsets = None if bias is None else as_float(cx, bias)
    if cx.opset < 23:
        if kv_heads != heads:
            k, v = (_repeated(cx, x, heads, kv_heads, size) for x in (k, v))
        scores = _scores(cx, q, k, offsets, float(scale))
        return _mixed(cx, scores, _allowed(cx, query, key, mask, operation.is_causal), v)
    causal = operation.is_causal
    if mask is not None or bias is not None:
        allowed = _allowed(cx, q, k, mask, causal)
        offsets = _offsets(cx, offsets, allowed)
        rows = cx.op.Concat([1, 1], cx.op.Shape(q, start=1, end=2), cx.op.Shape(k, start=1, end=2), axis=0)
        offsets = cx.op.Expand(offsets, rows)  # onnxruntime rejects one row for all queries
        causal = False
    y = cx.op.Attention(
        *(cx.op.Reshape(x, [0, 0, -1]) for x in (q, k, v)),  # (batch, tokens, heads * size)
        offsets,
        q_num_heads=heads,
        kv_num_heads=kv_heads,
        scale=float(scale),
        is_causal=int(causal),
    )
    return cx.op.Reshape(y, [0, 0, heads, size])


def _scores(cx: GraphContext, q: ir.Value, k: ir.Value, offsets: ir.Value | None, scale: float) -> ir.Value:
    q = cx.op.Mul(cx.op.Transpose(q, perm=[0, 2, 1, 3]), scale)
    scores = cx.op.MatMul(q, cx.op.Transpose(k, perm=[0, 2, 3, 1]))
    return scores if offsets is None else cx.op.Add(scores, offsets)


def _mixed(cx: GraphContext, scores: ir.Value, allowed: ir.Value | None, v: ir.Value) -> ir.Value:
    if allowed is not None:
        scores = cx.op.Where(allowed, scores, HIDDEN)
    mixed = cx.op.MatMul(cx.op.Softmax(scores, axis=-1), cx.op.Transpose(v, perm=[0, 2, 1, 3]))
    return cx.op.Transpose(mixed, perm=[0, 2, 1, 3])


def _allowed(cx: GraphContext, query: Any, key: Any, mask: Any, causal: bool) -> ir.Value | None:
    """Boolean, broadcasting to (batch, heads, queries, keys)."""
    allowed = None if mask is None else as_bool(cx, mask)
    if not causal:
        return allowed
    keys, queries = counting(cx, length(cx, key, 1)), counting(cx, length(cx, query, 1))
    earlier = cx.op.LessOrEqual(cx.op.Unsqueeze(keys, [0]), cx.op.Unsqueeze(queries, [1]))
    return earlier if allowed is None else cx.op.And(allowed, earlier)


def _offsets(cx: GraphContext, bias: ir.Value | None, allowed: ir.Value | None) -> ir.Value:
    """The offsets of the scores; masked ones ignore the bias."""
    if allowed is None:
        assert bias is not None
        return bias
    return cx.op.Where(allowed, np.float32(0) if bias is None else bias, HIDDEN)


def _repeated(cx: GraphContext, x: ir.Value, heads: int, kv_heads: int, size: int) -> ir.Value:
    """(b, t, kv_heads, size) -> (b, t, heads, size), each head several times."""
    x = cx.op.Expand(cx.op.Unsqueeze(x, [3]), [1, 1, 1, heads // kv_heads, 1])
    return cx.op.Reshape(x, [0, 0, heads, size])
