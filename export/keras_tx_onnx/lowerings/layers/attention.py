"""The attention layers of Keras."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import onnx_ir as ir
from keras import layers

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import GraphContext, shape_of
from keras_tx_onnx.lowerings.nodes.arguments import as_bool, reduced
from keras_tx_onnx.lowerings.nodes.attention import LOWEST, Heads, all_of, attend, counting, length
from keras_tx_onnx.reading.keras_masks import MASK, mask_of
from keras_tx_onnx.reading.registry import lowers


@lowers(
    layers.MultiHeadAttention,
    example=lambda x: layers.MultiHeadAttention(4, 3)(x, x),
    shape=(None, 16),
    nodes="MatMul Add Split Attention MatMul Add",
)
def multi_head_attention(cx: GraphContext, layer: Any, /, *args: Any, **kwargs: Any) -> Any:
    call = inspect.signature(layer.call).bind(*args, **kwargs).arguments
    query = call["query"]
    heads = Heads(layer.num_heads, layer.num_heads, layer.key_dim, layer.value_dim)
    inputs = [x for x in (query, call["value"], call.get("key")) if x is not None]
    if layer.attention_axes != (1,) or any(len(shape_of(x)) != 3 for x in inputs):
        raise ExportError(
            f"Layer {cx.scope!r} has attention_axes={layer.attention_axes} and an input of rank "
            f"{len(shape_of(query))}. Only axis 1 of (batch, tokens, width) is supported: reshape the input."
        )
    # Keras reads the query's mask from the query only, and removes the masks of all three inputs.
    own = mask_of(query)
    output = _attention(
        cx, layer, heads, layer._sliding_window, layer._use_gate, **{**call, "query_mask": own}
    )
    for x in inputs:
        x.meta.pop(MASK, None)
    if own is not None:
        (output[0] if isinstance(output, tuple) else output).meta[MASK] = own
    return output


@lowers(
    layers.GroupQueryAttention,
    example=lambda x: layers.GroupQueryAttention(3, 4, 2)(x, x),
    shape=(None, 16),
    nodes="MatMul Add Split Attention MatMul Add",
)
def group_query_attention(cx: GraphContext, layer: Any, /, *args: Any, **kwargs: Any) -> Any:
    call = inspect.signature(layer.call).bind(*args, **kwargs).arguments
    heads = Heads(layer.num_query_heads, layer.num_key_value_heads, layer.head_dim)
    return _attention(cx, layer, heads, layer.sliding_window, layer.use_gate, **call)


def _attention(  # Branches: one for each option of two layers
    cx: GraphContext,
    layer: Any,
    heads: Heads,
    window: int | None,
    gated: bool,
    /,
    query: ir.Value,
    value: ir.Value,
    key: ir.Value | None = None,
    query_mask: ir.Value | None = None,
    value_mask: ir.Value | None = None,
    key_mask: ir.Value | None = None,
    attention_mask: ir.Value | None = None,
    return_attention_scores: bool = False,
    use_causal_mask: bool = False,
) -> Any:
    key = value if key is None else key
    carried = [_at(cx, query_mask, -1), _at(cx, value_mask, -2), _at(cx, key_mask, -2)]
    causal_only = use_causal_mask and all(x is None for x in (window, attention_mask, *carried))
    written = _written_masks(cx, query, value, attention_mask, window, use_causal_mask and not causal_only)
    mask = all_of(cx, [*carried, *written])

    q, k, v = projected(cx, layer, heads, query, key, value)
    if mask is not None:
        shape = () if attention_mask is None else shape_of(attention_mask)
        mask = mask if len(shape) == 4 else cx.op.Unsqueeze(mask, [-3])
        # In Keras's fused path a query that sees no key results in the mean of all values, else in zero.
        if not return_attention_scores and layer.dropout == 0:
            per_head = len(shape) == 4 and shape[1] != 1
            q, mask = mean_where_nothing_is_seen(cx, heads, q, mask, per_head)
        if any(x is not None for x in carried[1:]) and query is value and attention_mask is None:
            mask = _of_full_size(cx, mask, mask, mask, axis=-1)  # the same for layers that share the mask
        else:
            mask = _of_full_size(cx, mask, q, k, axis=1)
    y, _, weights = attend(
        cx, heads, q, k, v, causal=causal_only, mask=mask, weights=bool(return_attention_scores)
    )
    if gated:
        gate = _dense(cx, layer._gate_dense, query, heads.queries * heads.values)
        y = cx.op.Mul(y, cx.op.Sigmoid(gate))
    y = output_of(cx, layer._output_dense, y)
    return (y, weights) if return_attention_scores else y


def _written_masks(
    cx: GraphContext,
    query: ir.Value,
    value: ir.Value,
    attention_mask: ir.Value | None,
    window: int | None,
    causal: bool,
) -> list[ir.Value]:
    """The masks that follow from the places of queries and keys, and the attention mask."""
    masks = [cx.op.GreaterOrEqual(*_places(cx, query, value))] if causal else []
    if window is not None:
        distance = cx.op.Abs(cx.op.Sub(*_places(cx, query, value)))
        masks.append(cx.op.Less(distance, np.int64(window)))
    if attention_mask is not None:
        masks.append(as_bool(cx, attention_mask))
    return masks


def _at(cx: GraphContext, mask: ir.Value | None, axis: int) -> ir.Value | None:
    return None if mask is None else cx.op.Unsqueeze(as_bool(cx, mask), [axis])


def _places(cx: GraphContext, query: ir.Value, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The places of queries (1, queries, 1) and keys (1, 1, keys)."""
    places = counting(cx, length(cx, query, 1)), counting(cx, length(cx, value, 1))
    return cx.op.Unsqueeze(places[0], [0, 2]), cx.op.Unsqueeze(places[1], [0, 1])


def mean_where_nothing_is_seen(
    cx: GraphContext, heads: Heads, q: ir.Value, mask: ir.Value, per_head: bool
) -> tuple[ir.Value, ir.Value]:
    """A query that sees no key becomes zero and sees all keys, so that its scores are equal."""
    seen = reduced(cx, "ReduceMax", cx.op.Cast(mask, to=ir.DataType.FLOAT), [-1], keepdims=True)
    seen = cx.op.Cast(seen, to=ir.DataType.BOOL)  # (b, h, queries, 1)
    mask = cx.op.Or(mask, cx.op.Not(seen))
    if not per_head:
        return cx.op.Where(cx.op.Squeeze(seen, [1]), q, 0.0), mask
    split = cx.op.Reshape(q, [0, 0, heads.queries, heads.size])
    split = cx.op.Where(cx.op.Transpose(seen, perm=[0, 2, 1, 3]), split, 0.0)
    return cx.op.Reshape(split, [0, 0, heads.queries * heads.size]), mask


def _of_full_size(cx: GraphContext, mask: ir.Value, q: ir.Value, k: ir.Value, axis: int) -> ir.Value:
    """onnxruntime refuses a mask of one row for all queries; the sizes are those of an axis of q and k."""
    if cx.opset < 23:
        return mask
    end = {} if axis == -1 else {"end": axis + 1}
    rows, columns = (cx.op.Shape(x, start=axis, **end) for x in (q, k))
    return cx.op.Expand(mask, cx.op.Concat([1, 1], rows, columns, axis=0))


def projected(
    cx: GraphContext, layer: Any, heads: Heads, query: ir.Value, key: ir.Value, value: ir.Value
) -> tuple[ir.Value, ...]:
    parts = (layer._query_dense, layer._key_dense, layer._value_dense)
    sizes = [heads.queries * heads.size, heads.keys * heads.size, heads.keys * heads.values]
    if query is not value or key is not value:
        pairs = zip(parts, (query, key, value), sizes, strict=True)
        return tuple(_dense(cx, part, x, size) for part, x, size in pairs)
    width = shape_of(query)[-1]
    kernels, biases = [part.kernel for part in parts], [part.bias for part in parts]
    shapes = [(width, size) for size in sizes]
    x = cx.op.MatMul(cx.floating(query), cx.packed(f"{layer.path}/qkv/kernel", kernels, 1, shapes))
    if layer.use_bias:
        x = cx.op.Add(x, cx.packed(f"{layer.path}/qkv/bias", biases, 0, [(size,) for size in sizes]))
    return cx.op.Split(x, sizes, outputs=3, axis=-1)


def _dense(cx: GraphContext, dense: Any, x: ir.Value, size: int) -> ir.Value:
    """(b, s, d) -> (b, s, heads * size)."""
    x = cx.op.MatMul(cx.floating(x), cx.weight(dense.kernel, shape=(dense.kernel.shape[0], size)))
    return x if dense.bias is None else cx.op.Add(x, cx.weight(dense.bias, shape=(size,)))


def output_of(cx: GraphContext, dense: Any, y: ir.Value) -> ir.Value:
    shape = tuple(dense.kernel.shape)
    width = math.prod(shape[2:])
    y = cx.op.MatMul(y, cx.weight(dense.kernel, shape=(shape[0] * shape[1], width)))
    if dense.bias is not None:
        y = cx.op.Add(y, cx.weight(dense.bias, shape=(width,)))
    return y if len(shape) == 3 else cx.op.Reshape(y, [0, 0, *shape[2:]])


def _inputs_and_masks(
    cx: GraphContext, inputs: list[ir.Value], mask: list[ir.Value | None] | None
) -> tuple[Any, ...]:
    """Query, value and key, which is the value where there is none, and the masks of the first two."""
    query, value = (cx.floating(x) for x in inputs[:2])
    key = cx.floating(inputs[2]) if len(inputs) > 2 else value
    of_query, of_value = (None, None) if mask is None else mask[:2]
    return query, value, key, of_query, of_value


@lowers(
    layers.Attention,
    example=lambda x: layers.Attention()([x, x]),
    shape=(None, 4),
    nodes="Attention",
)
def attention(
    cx: GraphContext,
    layer: Any,
    /,
    inputs: list[ir.Value],
    mask: list[ir.Value | None] | None = None,
    return_attention_scores: bool = False,
    use_causal_mask: bool = False,
) -> Any:
    query, value, key, of_query, of_value = _inputs_and_masks(cx, inputs, mask)
    if layer.score_mode == "concat" or len(shape_of(inputs[0])) != 3:
        scores = _scores(cx, layer, query, key)
        seen = _combined_mask(cx, of_value, use_causal_mask, scores, scores, -2, -1)
        return _applied(cx, scores, seen, value, of_query, return_attention_scores)
    if layer.scale is not None:
        query = cx.op.Mul(query, cx.weight(layer.scale))
    heads = Heads(1, 1, shape_of(inputs[0])[-1], shape_of(inputs[1])[-1])
    seen = None
    if of_value is not None:
        seen = _combined_mask(cx, of_value, use_causal_mask, query, key, 1, 1)
        assert seen is not None
        query, seen = mean_where_nothing_is_seen(cx, heads, query, cx.op.Unsqueeze(seen, [1]), False)
        seen = _of_full_size(cx, seen, query, key, axis=1)
    y, _, weights = attend(
        cx,
        heads,
        query,
        key,
        value,
        causal=bool(use_causal_mask) and seen is None,
        mask=seen,
        weights=bool(return_attention_scores),
        scale=1.0,
    )
    y = _zero_at_padding(cx, of_query, y)
    return (y, cx.op.Squeeze(weights, [1])) if return_attention_scores else y


@lowers(
    layers.AdditiveAttention,
    example=lambda x: layers.AdditiveAttention()([x, x]),
    shape=(None, 4),
    nodes="Unsqueeze Unsqueeze Add Tanh MatMul Softmax MatMul",
)
def additive_attention(
    cx: GraphContext,
    layer: Any,
    /,
    inputs: list[ir.Value],
    mask: list[ir.Value | None] | None = None,
    return_attention_scores: bool = False,
    use_causal_mask: bool = False,
) -> Any:
    query, value, key, of_query, of_value = _inputs_and_masks(cx, inputs, mask)
    both = cx.op.Tanh(_sums(cx, query, key))
    if layer.scale is None:
        scores = cx.op.ReduceSum(both, [-1], keepdims=0)
    else:
        scores = cx.op.MatMul(both, cx.weight(layer.scale))
    seen = _combined_mask(cx, of_value, use_causal_mask, scores, scores, -2, -1)
    return _applied(cx, scores, seen, value, of_query, return_attention_scores)


def _sums(cx: GraphContext, query: ir.Value, key: ir.Value) -> ir.Value:
    """Each query with each key: (b, queries, keys, d)."""
    return cx.op.Add(cx.op.Unsqueeze(query, [-2]), cx.op.Unsqueeze(key, [-3]))


def _scores(cx: GraphContext, layer: Any, query: ir.Value, key: ir.Value) -> ir.Value:
    if layer.score_mode == "dot":
        axes = list(range(len(shape_of(key))))
        scores = cx.op.MatMul(query, cx.op.Transpose(key, perm=[*axes[:-2], axes[-1], axes[-2]]))
        return scores if layer.scale is None else cx.op.Mul(scores, cx.weight(layer.scale))
    both = _sums(cx, query, key)
    if layer.scale is not None:
        both = cx.op.Mul(both, cx.weight(layer.scale))
    scores = cx.op.ReduceSum(cx.op.Tanh(both), [-1], keepdims=0)
    return cx.op.Mul(scores, cx.weight(layer.concat_score_weight))


def _combined_mask(
    cx: GraphContext,
    of_value: ir.Value | None,
    causal: bool,
    rows: Any,
    columns: Any,
    row_axis: int,
    axis: int,
) -> ir.Value | None:
    """Which keys (b, queries or 1, keys) a query sees; `rows` and `columns` have axes of these sizes."""
    seen = None
    if of_value is not None:
        seen = as_bool(cx, of_value)
        seen = cx.op.Unsqueeze(seen, [-2]) if causal or len(shape_of(of_value)) == 2 else seen
    if causal:
        queries, keys = (
            counting(cx, cx.op.Squeeze(cx.op.Gather(cx.op.Shape(x), [i], axis=0), [0]))
            for x, i in ((rows, row_axis), (columns, axis))
        )
        earlier = cx.op.GreaterOrEqual(cx.op.Unsqueeze(queries, [0, 2]), cx.op.Unsqueeze(keys, [0, 1]))
        seen = earlier if seen is None else cx.op.And(seen, earlier)
    return seen


def _applied(
    cx: GraphContext,
    scores: ir.Value,
    seen: ir.Value | None,
    value: ir.Value,
    of_query: ir.Value | None,
    with_weights: bool,
) -> Any:
    if seen is not None:
        scores = cx.op.Where(seen, scores, LOWEST)
    weights = cx.op.Softmax(scores, axis=-1)
    y = _zero_at_padding(cx, of_query, cx.op.MatMul(weights, value))
    return (y, weights) if with_weights else y


def _zero_at_padding(cx: GraphContext, of_query: ir.Value | None, y: ir.Value) -> ir.Value:
    return y if of_query is None else cx.op.Where(_at(cx, of_query, -1), y, 0.0)
