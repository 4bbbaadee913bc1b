"""Positions of keys relative to those of queries: scores of learned offsets, and biases by distance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx import layers
from keras_tx_onnx.graph.builder import GraphContext, shape_of
from keras_tx_onnx.graph.cache_ports import AFTER_PAST
from keras_tx_onnx.lowerings.nodes.attention import FINITE, Heads, counting, length, split_heads
from keras_tx_onnx.reading.registry import lowers
from keras_tx_onnx.reading.symbolic_sizes import axis_length


def relative_scores(cx: GraphContext, layer: Any, heads: Heads, q: ir.Value, query: ir.Value) -> ir.Value:
    """The scores (batch, heads, tokens, tokens) of the offsets; see RelativePositionEmbedding."""
    before, grid = layer.prefix_tokens, layer.relative.grid
    q = split_heads(cx, q, heads.queries, heads.size)
    if before:
        q = cx.op.Slice(q, [0, 0, before, 0], [2**62] * 4)
    if len(grid) == 1:
        size = shape_of(query)[1]
        n = size - before if isinstance(size, int) else cx.op.Sub(axis_length(cx, query, 1), [before])
        result = _offset_scores(cx, layer, 0, q, n)
    else:
        q = cx.op.Reshape(q, [0, 0, *grid, heads.size])
        of_columns = _offset_scores(cx, layer, 1, q, grid[1])  # (b, heads, rows, columns, key columns)
        of_rows = _offset_scores(cx, layer, 0, cx.op.Transpose(q, perm=[0, 1, 3, 2, 4]), grid[0])
        of_rows = cx.op.Transpose(of_rows, perm=[0, 1, 3, 2, 4])  # (b, heads, rows, columns, key rows)
        result = cx.op.Add(cx.op.Unsqueeze(of_rows, [5]), cx.op.Unsqueeze(of_columns, [4]))
        result = cx.op.Reshape(result, [0, 0, math.prod(grid), math.prod(grid)])
    if before:
        result = cx.op.Pad(result, [0, 0, before, before, 0, 0, 0, 0])
    result.meta[FINITE] = True
    return result


def _offset_scores(cx: GraphContext, layer: Any, axis: int, q: ir.Value, n: int | ir.Value) -> ir.Value:
    """(..., n, size) -> (..., n, n): the scaled scores of each query along one axis of the grid."""
    variable, length = layer.relative.tables[axis], layer.relative.grid[axis]
    factor = layer.size**-0.5 if layer.scale is None else layer.scale
    table = cx.made_of(
        f"{variable.path}/scaled",
        [variable],
        (layer.size, 2 * length - 1),
        lambda table: (table * np.float32(factor)).T,
    )
    if not isinstance(n, int):
        ends = cx.op.Sub([length], n), cx.op.Add([length], cx.op.Sub(n, [1]))
        table = cx.op.Slice(table, *ends, [1])  # its size differs from that of `by_key` for n > length
    elif n != length:
        table = cx.op.Slice(table, [length - n], [length + n - 1], [1])
    rank = 4 if len(layer.relative.grid) == 1 else 5
    both_ends = [0] * (rank - 1) + [1]
    return by_key(cx, cx.op.Pad(cx.op.MatMul(q, table), 2 * both_ends), n, rank)


def by_key(cx: GraphContext, x: ir.Value, n: int | ir.Value, rank: int) -> ir.Value:
    """(..., n, 2 n + 1) -> (..., n, n): row i has the entries from n - i on."""
    lead = [0] * (rank - 2)
    one_size, three_sizes = (
        ([*lead, -1, n], [*lead, n, 2, n])
        if isinstance(n, int)
        else (cx.op.Concat([*lead, -1], n, axis=0), cx.op.Concat(lead, n, [2], n, axis=0))
    )
    # Without the first n entries, rows are one shorter, and each begins one entry earlier than the one above.
    # Slices with constant ends and these reshapes keep the names of the axes in shape inference.
    x = cx.op.Slice(cx.op.Reshape(x, one_size), [1], [2**62], [rank - 2])
    return cx.op.Gather(cx.op.Reshape(x, three_sizes), np.int64(0), axis=rank - 1)


@lowers(
    layers.RelativePositionBias,
    example=lambda x: layers.RelativePositionBias(2, buckets=8, max_distance=16)(x),
    shape=(5, 6),
    nodes="Shape Squeeze Range Unsqueeze Unsqueeze Sub Add Clip Gather Unsqueeze",
)
def relative_position_bias(
    cx: GraphContext, layer: Any, /, query: ir.Value, value: ir.Value | None = None
) -> ir.Value:
    start, end = None, length(cx, query, 1)
    if cx.cache is not None and value is None:
        start = cx.op.Squeeze(cx.cache.past_length(cx), [0])
        end = cx.op.Add(start, end)
    queries = cx.op.Unsqueeze(counting(cx, end) if start is None else counting(cx, end, start), [1])
    keys = cx.op.Unsqueeze(counting(cx, end if value is None else length(cx, value, 1)), [0])
    reach = int(layer.thresholds()[-1])  # distances from this one on share a bias
    if layer.bidirectional:
        distances = np.arange(-reach, reach + 1)
        row = cx.op.Add(cx.op.Sub(keys, queries), np.int64(reach))
    else:
        distances = -np.arange(reach + 1)
        row = cx.op.Sub(queries, keys)
    row = cx.op.Clip(row, np.int64(0), np.int64(len(distances) - 1))
    table = cx.made_of(
        f"{layer.path}/table_by_distance",
        [layer.table],
        (layer.num_heads, len(distances)),
        lambda table: table[_buckets(layer, distances)].T,
    )
    result = cx.op.Unsqueeze(cx.op.Gather(table, row, axis=1), [0])  # (1, heads, queries, keys)
    if start is not None:
        result.meta[AFTER_PAST] = cx.op.LessOrEqual(keys, queries)
    result.meta[FINITE] = True
    return result


def _buckets(layer: Any, distances: np.ndarray) -> np.ndarray:
    """The row of the layer's table for each distance; above 0, the key is later."""
    back = np.abs(distances) if layer.bidirectional else np.maximum(-distances, 0)
    later = (distances > 0) * (layer.buckets // 2) if layer.bidirectional else 0
    return (back[:, None] >= layer.thresholds()).sum(axis=1) + later
