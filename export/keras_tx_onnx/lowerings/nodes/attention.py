"""Attention: one node from opset 23 on, written out in older nodes below it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.graph.cache_ports import Cache


@dataclasses.dataclass(frozen=True)
class Heads:
    """How many query and key-value heads there are, and how wide each is."""

    queries: int
    keys: int
    size: int
    value_size: int | None = None  # that of queries and keys if None

    @property
    def values(self) -> int:
        return self.value_size or self.size


LOWEST = -16000.0  # below every score; half precision holds it, and sums with it
FINITE = "finite"  # metadata key of a bias without -inf


def attend(  # Branches: one for each option of attention
    cx: GraphContext,
    heads: Heads,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    *,
    causal: bool = False,
    padding_mask: ir.Value | None = None,
    mask: ir.Value | None = None,
    bias: ir.Value | None = None,
    past: tuple[ir.Value, ir.Value] | None = None,
    weights: bool = False,
    scale: float | None = None,
    soft_cap: float | None = None,
    tokens: ir.Value | None = None,
) -> tuple[ir.Value, tuple[ir.Value, ir.Value] | None, ir.Value | None]:
    """Attends with projected q, k, v (batch, tokens, heads * size).

    `padding_mask` (batch, keys) is true where a key is real. `mask`, boolean, and `bias` broadcast to (batch,
    heads, queries, keys); without a bias, `mask` is of full size in its last two axes. A bias of -inf masks,
    and a query that may attend to no key results in zero. `causal` is for keys that continue `past`.
    `tokens` is the number of queries as a vector of one, if several layers share it and with it their masks.

    Returns the result in the same form, the (key, value) of the next step where there is a past, and the
    weights if requested. Attention's own output of weights is not used, because shape inference fails on it.
    """
    if past is None and isinstance(cx.cache, Cache):
        raise ExportError(
            f"The layer {cx.scope!r} attends without the past: it is not recognized as causal attention "
            "of a text to itself. Export with cache=False."
        )
    finite = None if bias is None or bias.meta.get(FINITE) else cx.op.Not(cx.op.Equal(bias, -np.inf))
    real = None if padding_mask is None else real_keys(cx, padding_mask)
    allowed = all_of(cx, [mask, finite, real])
    # Attention's own softcap comes behind the mask in opset 23, and lifts it.
    if cx.opset < 23 or weights or soft_cap is not None:
        allowed = all_of(cx, [in_order(cx, q, k, past) if causal else None, allowed])
        return _written_out(cx, heads, q, k, v, allowed, bias, past, scale, soft_cap)

    seen = None  # the mask beside a bias
    if bias is None:
        if real is not None and allowed is real:
            allowed = for_each_query(cx, real, cx.op.Shape(q, start=1, end=2) if tokens is None else tokens)
        added: ir.Value | None = allowed
    else:
        seen = allowed
        if causal:
            allowed = all_of(cx, [in_order(cx, q, k, past), allowed])
            seen = None if seen is None else allowed
        added, causal = bias if allowed is None else cx.op.Where(allowed, bias, LOWEST), False
    options: dict[str, Any] = {"q_num_heads": heads.queries, "kv_num_heads": heads.keys}
    options |= {"is_causal": int(causal)} | ({} if scale is None else {"scale": scale})
    if past is None:
        y, present = cx.op.Attention(q, k, v, added, **options), None
    else:
        y, *present = cx.op.Attention(q, k, v, added, *past, outputs=3, **options)
        present = tuple(present)
    if seen is not None:
        y = _zero_queries_without_keys(cx, heads, y, seen)
    return y, present, None


def _zero_queries_without_keys(cx: GraphContext, heads: Heads, y: ir.Value, seen: ir.Value) -> ir.Value:
    """With a mask of numbers, a query that may attend to no key results in the mean of the values."""
    some = cx.op.ReduceMax(cx.op.Cast(seen, to=ir.DataType.FLOAT), [3])  # (b, heads or 1, queries, 1)
    y = cx.op.Reshape(y, [0, 0, heads.queries, heads.values])
    y = cx.op.Mul(y, cx.op.Transpose(some, perm=[0, 2, 1, 3]))
    return cx.op.Reshape(y, [0, 0, heads.queries * heads.values])


def _written_out(
    cx: GraphContext,
    heads: Heads,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    allowed: ir.Value | None,
    bias: ir.Value | None,
    past: tuple[ir.Value, ir.Value] | None,
    scale: float | None,
    soft_cap: float | None,
) -> tuple[ir.Value, tuple[ir.Value, ir.Value] | None, ir.Value]:
    q = split_heads(cx, q, heads.queries, heads.size)
    k = split_heads(cx, k, heads.keys, heads.size)
    v = split_heads(cx, v, heads.keys, heads.values)
    present = None
    if past is not None:
        k, v = cx.op.Concat(past[0], k, axis=2), cx.op.Concat(past[1], v, axis=2)
        present = (k, v)
    y, weights = _weighted(cx, heads, q, k, v, allowed, bias, scale, soft_cap)
    return merge_heads(cx, y, heads.queries * heads.values), present, weights


def attend_heads(
    cx: GraphContext,
    heads: Heads,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    allowed: ir.Value | None,
    scale: float | None,
) -> ir.Value:
    """Attends with q, k, v and a result of (batch, heads, tokens, size).

    `allowed`, boolean, is of full size in its last two axes.
    """
    if cx.opset < 23:
        return _weighted(cx, heads, q, k, v, allowed, None, scale, None)[0]
    return cx.op.Attention(q, k, v, allowed, **({} if scale is None else {"scale": scale}))


def _weighted(
    cx: GraphContext,
    heads: Heads,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    allowed: ir.Value | None,
    bias: ir.Value | None,
    scale: float | None,
    soft_cap: float | None,
) -> tuple[ir.Value, ir.Value]:
    """The result (batch, heads, queries, size) and the weights, in older operators."""
    if scale != 1.0:
        q = cx.op.Mul(q, heads.size**-0.5 if scale is None else scale)
    if heads.keys != heads.queries:
        k, v = _shared(cx, k, heads, heads.size), _shared(cx, v, heads, heads.values)
    scores = cx.op.MatMul(q, cx.op.Transpose(k, perm=[0, 1, 3, 2]))
    if soft_cap is not None:
        scores = cx.op.Mul(cx.op.Tanh(cx.op.Div(scores, float(soft_cap))), float(soft_cap))
    if bias is not None:
        scores = cx.op.Add(scores, bias)
    if allowed is not None:
        scores = cx.op.Where(allowed, scores, LOWEST)
    weights = cx.op.Softmax(scores, axis=-1)
    if allowed is not None:
        weights = cx.op.Where(allowed, weights, 0.0)
    return cx.op.MatMul(weights, v), weights


def merge_heads(cx: GraphContext, x: ir.Value, width: int) -> ir.Value:
    """(batch, heads, tokens, size) -> (batch, tokens, width)."""
    return cx.op.Reshape(cx.op.Transpose(x, perm=[0, 2, 1, 3]), [0, 0, width])


def split_heads(cx: GraphContext, x: ir.Value, heads: int, size: int) -> ir.Value:
    """(batch, tokens, heads * size) -> (batch, heads, tokens, size)."""
    return cx.op.Transpose(cx.op.Reshape(x, [0, 0, heads, size]), perm=[0, 2, 1, 3])


def _shared(cx: GraphContext, x: ir.Value, heads: Heads, size: int) -> ir.Value:
    """(b, keys, t, d) -> (b, queries, t, d), each head repeated."""
    x = cx.op.Expand(cx.op.Unsqueeze(x, [2]), [1, 1, heads.queries // heads.keys, 1, 1])
    return cx.op.Reshape(x, [0, heads.queries, -1, size])


def real_keys(cx: GraphContext, padding_mask: ir.Value) -> ir.Value:
    """(b, keys) of any type -> boolean (b, 1, 1, keys)."""
    return cx.op.Unsqueeze(cx.op.Cast(padding_mask, to=ir.DataType.BOOL), [1, 2])


def for_each_query(cx: GraphContext, mask: ir.Value, count: ir.Value) -> ir.Value:
    """A mask of one row for all queries with a row for each of `count`, as onnxruntime requires."""
    return cx.op.Expand(mask, cx.op.Concat([1, 1], count, [1], axis=0))


def in_order(
    cx: GraphContext, q: ir.Value, k: ir.Value, past: tuple[ir.Value, ir.Value] | None = None
) -> ir.Value:
    """Boolean (1, 1, queries, keys): the keys up to the query's own position, which follows the past."""
    start = length(cx, past[0], 2) if past is not None else np.int64(0)
    queries = cx.op.Add(counting(cx, length(cx, q, 1)), start)
    keys = counting(cx, cx.op.Add(length(cx, k, 1), start))
    return cx.op.LessOrEqual(cx.op.Unsqueeze(keys, [0, 1, 2]), cx.op.Unsqueeze(queries, [0, 1, 3]))


def all_of(cx: GraphContext, masks: Sequence[ir.Value | None]) -> ir.Value | None:
    """The conjunction of the masks; None if all of them are None."""
    masks = [mask for mask in masks if mask is not None]
    return functools.reduce(cx.op.And, masks) if masks else None


def length(cx: GraphContext, x: ir.Value, axis: int) -> ir.Value:
    """The size of an axis, as a scalar of the graph."""
    return cx.op.Squeeze(cx.op.Shape(x, start=axis, end=axis + 1), [0])


def counting(cx: GraphContext, end: ir.Value, start: Any = np.int64(0)) -> ir.Value:  # noqa: B008  a constant
    """start, start + 1 ... up to `end`."""
    return cx.op.Range(start, end, np.int64(1))


def rotary_angles(
    cx: GraphContext, x: ir.Value, positions: ir.Value, frequencies: np.ndarray
) -> tuple[ir.Value, ir.Value]:
    """Cosine and sine (batch, tokens, size / 2) of the angle of each token and pair of channels."""
    positions = cx.op.Expand(cx.op.Cast(positions, to=ir.DataType.FLOAT), cx.op.Shape(x, start=0, end=2))
    angles = cx.op.Mul(cx.op.Unsqueeze(positions, [2]), frequencies)
    return cx.op.Cos(angles), cx.op.Sin(angles)


def fixed_angles(cx: GraphContext, x: ir.Value, angles: np.ndarray) -> tuple[ir.Value, ir.Value]:
    """Cosine and sine (batch or 1, tokens, size / 2) of fixed angles (tokens, size / 2)."""
    both = (cx.constant(function(angles)[None]) for function in (np.cos, np.sin))
    if cx.opset >= 23:  # onnxruntime requires them for each sample
        shape = cx.op.Concat(cx.op.Shape(x, start=0, end=1), [1, 1], axis=0)
        both = (cx.op.Expand(each, shape) for each in both)
    cosine, sine = both
    return cosine, sine


def rotate(
    cx: GraphContext, x: ir.Value, angles: tuple[ir.Value, ir.Value], heads: int, size: int
) -> ir.Value:
    """Rotary positions on (batch, tokens, heads * size)."""
    if cx.opset >= 23:
        return cx.op.RotaryEmbedding(x, *angles, num_heads=heads)
    cosine, sine = (cx.op.Unsqueeze(angle, [2]) for angle in angles)  # (b, s, 1, size / 2)
    first, second = cx.op.Split(cx.op.Reshape(x, [0, 0, heads, size]), [size // 2] * 2, outputs=2, axis=-1)
    rotated = cx.op.Concat(
        cx.op.Sub(cx.op.Mul(first, cosine), cx.op.Mul(second, sine)),
        cx.op.Add(cx.op.Mul(second, cosine), cx.op.Mul(first, sine)),
        axis=-1,
    )
    return cx.op.Reshape(rotated, [0, 0, heads * size])
