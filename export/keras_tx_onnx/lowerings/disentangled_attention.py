"""DeBERTa's attention, whose scores also compare tokens with relative positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx.layers.disentangled_attention import DisentangledAttention
from keras_tx.layers.relative_embeddings import RelativeEmbeddings
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.keras_tx import (
    full_mask_and_bias,
    implicit_mask,
    inner_projection,
    packed_projection,
)
from keras_tx_onnx.lowerings.nodes.attention import FINITE, Heads, attend, counting, split_heads
from keras_tx_onnx.lowerings.relative_positions import by_key
from keras_tx_onnx.reading.registry import lowers
from keras_tx_onnx.reading.symbolic_sizes import axis_length

OF_POSITIONS = "relative embeddings"  # metadata key of their value: the layer


@lowers(
    RelativeEmbeddings,
    example=lambda x: RelativeEmbeddings(4, 6)(x),
    shape=(5, 6),
    nodes="Identity",
)
def relative_embeddings(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    result = cx.made_of(
        f"{layer.path}/normalized", layer.weights, (layer.count, layer.width), _normalized_by(layer)
    )
    result.meta[OF_POSITIONS] = layer
    return result


def _normalized_by(layer: Any) -> Callable[..., np.ndarray]:
    """A function of the variables of RelativeEmbeddings that returns its result."""

    def make(table: np.ndarray, *norm: np.ndarray) -> np.ndarray:
        if not norm:
            return table
        gamma, beta = norm
        centered = table - table.mean(axis=-1, keepdims=True, dtype="float64")
        variance = np.square(centered).mean(axis=-1, keepdims=True)
        return (centered / np.sqrt(variance + layer.norm_epsilon) * gamma + beta).astype("float32")

    return make


@lowers(
    DisentangledAttention,
    example=lambda x: DisentangledAttention(2, 9, buckets=4)(x, positions=RelativeEmbeddings(8, 16)(x)),
    shape=(None, 16),
    nodes=(
        "MatMul Add Split Shape Squeeze Neg Add Range "  # the projections, and the offsets of the tokens
        "Neg Clip Add Gather Gather Transpose Reshape Transpose MatMul "  # queries with positions
        "Concat Reshape Slice Concat Reshape Gather "
        "Clip Add Gather Gather Transpose Reshape Transpose MatMul "  # keys with positions
        "Reshape Slice Reshape Gather Transpose "
        "Add Attention MatMul Add"
    ),
    quantized_parts=True,
)
def disentangled_attention(
    cx: GraphContext,
    layer: Any,
    /,
    query: ir.Value,
    value: None = None,
    key: None = None,
    attention_mask: ir.Value | None = None,
    padding_mask: ir.Value | None = None,
    bias: ir.Value | None = None,
    positions: ir.Value | None = None,
    past: None = None,
    return_attention_scores: bool = False,
) -> Any:
    assert positions is not None
    heads = Heads(layer.num_heads, layer.kv_heads, layer.size, layer.value_size)
    if padding_mask is None:
        padding_mask = implicit_mask(cx, [query])
    q, k, v = packed_projection(cx, layer, query, heads)
    n = axis_length(cx, query, 1)
    mask, bias = full_mask_and_bias(cx, attention_mask, bias, (n, n), None)
    scores = _position_scores(cx, layer, heads, q, k, positions, n)
    attended, _, weights = attend(
        cx,
        heads,
        q,
        k,
        v,
        padding_mask=padding_mask,
        mask=mask,
        bias=scores if bias is None else cx.op.Add(scores, bias),
        weights=return_attention_scores,
        scale=layer._factor(),
        tokens=n,
    )
    output = inner_projection(cx, layer.output_projection, attended)
    return (output, weights) if return_attention_scores else output


def _position_scores(
    cx: GraphContext,
    layer: Any,
    heads: Heads,
    q: ir.Value,
    k: ir.Value,
    positions: ir.Value,
    n: ir.Value,
) -> ir.Value:
    """The scores (batch, heads, n, n) of queries and keys with positions; see DisentangledAttention."""
    end, reach = cx.op.Squeeze(n, [0]), np.int64(layer.max_distance)
    upward = counting(cx, cx.op.Add(end, np.int64(1)), cx.op.Neg(end))  # -n ... n; by_key skips both ends
    parts = []
    for role, dense in layer.position_layers().items():
        # Queries are rows, and the offsets query - key in a row go down; keys are rows of the other term.
        offsets = cx.op.Neg(upward) if role == "key" else upward
        places = cx.op.Gather(
            cx.constant(layer.places().astype("int64")), cx.op.Add(cx.op.Clip(offsets, -reach, reach), reach)
        )
        rows = cx.op.Gather(_projected_positions(cx, layer, role, dense, positions), places, axis=1)
        x = split_heads(cx, q if role == "key" else k, heads.queries, heads.size)
        x = by_key(cx, cx.op.MatMul(x, cx.op.Transpose(rows, perm=[0, 2, 1])), n, 4)
        parts.append(x if role == "key" else cx.op.Transpose(x, perm=[0, 1, 3, 2]))
    scores = parts[0] if len(parts) == 1 else cx.op.Add(*parts)
    scores.meta[FINITE] = True
    return scores


def _projected_positions(
    cx: GraphContext, layer: Any, role: str, dense: Any, positions: ir.Value
) -> ir.Value:
    """(heads, positions, size): the positions projected and scaled, as a weight where they are weights."""
    count, factor = layer.position_count, np.float32(layer._factor())
    shape = (layer.num_heads, count, layer.size)
    source = positions.meta.get(OF_POSITIONS)
    if source is None or dense.quantization_mode:
        x = cx.op.Reshape(inner_projection(cx, dense, positions), [count, layer.num_heads, layer.size])
        return cx.op.Mul(cx.op.Transpose(x, perm=[1, 0, 2]), factor)
    normalize = _normalized_by(source)
    variables = [dense.kernel, *([] if dense.bias is None else [dense.bias])]

    def make(*values: np.ndarray) -> np.ndarray:
        table = normalize(*values[: len(source.weights)])
        kernel, *bias = values[len(source.weights) :]
        x = (table @ kernel + (bias[0] if bias else 0)) * factor
        return x.reshape(count, layer.num_heads, layer.size).transpose(1, 0, 2)

    return cx.made_of(f"{layer.path}/{role}_positions", [*source.weights, *variables], shape, make)
