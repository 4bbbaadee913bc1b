"""The transformer blocks of keras-hub: one Attention each, its mask made once for all blocks."""

from __future__ import annotations

from typing import Any

import keras_hub
import onnx_ir as ir

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext, shape_of
from keras_tx_onnx.lowerings.keras_hub.layers import described, uncached
from keras_tx_onnx.lowerings.keras_hub.self_attention import attend_to_past, causal_mask, full_mask
from keras_tx_onnx.lowerings.layers.attention import (
    mean_where_nothing_is_seen,
    output_of,
    projected,
)
from keras_tx_onnx.lowerings.layers.dense import dense
from keras_tx_onnx.lowerings.layers.normalization import layer_normalization
from keras_tx_onnx.lowerings.nodes.arguments import as_bool
from keras_tx_onnx.lowerings.nodes.attention import Heads, attend
from keras_tx_onnx.reading.keras_masks import mask_of
from keras_tx_onnx.reading.registry import lowers

layers = keras_hub.layers


@lowers(
    layers.CachedMultiHeadAttention,
    example=lambda x: layers.CachedMultiHeadAttention(4, 3)(x, x),
    shape=(None, 16),
    nodes="MatMul Add Split Attention MatMul Add",
)
def cached_attention(
    cx: GraphContext,
    layer: Any,
    /,
    query: ir.Value,
    value: ir.Value,
    key: ir.Value | None = None,
    attention_mask: ir.Value | None = None,
    cache: Any = None,
    cache_update_index: Any = None,
    return_attention_scores: bool = False,
) -> Any:
    uncached(cx, cache=cache, cache_update_index=cache_update_index)
    if layer.attention_axes != (1,) or len(shape_of(query)) != 3 or layer._use_gate or layer._sliding_window:
        return NotImplemented
    if attention_mask is not None and len(shape_of(attention_mask)) == 4:
        return NotImplemented
    mask = None if attention_mask is None else as_bool(cx, attention_mask)
    return _attended(
        cx, layer, query, value, mask=mask, weights=return_attention_scores, at=(query, value), key=key
    )


def _attended(
    cx: GraphContext,
    layer: Any,
    query: ir.Value,
    value: ir.Value,
    *,
    at: tuple[ir.Value, ir.Value],
    mask: ir.Value | None = None,
    causal: bool = False,
    key: ir.Value | None = None,
    weights: bool = False,
) -> Any:
    """An attention layer of Keras with a boolean mask (b, 1 or queries, keys).

    `at` are values of which the lengths of `query` and `value` are known.
    """
    heads = Heads(layer.num_heads, layer.num_heads, layer.key_dim, layer.value_dim)
    if cx.cache is not None:
        if query is not value or key not in (None, value) or weights:
            raise ExportError(
                f"The layer {cx.scope!r} attends to another sequence, or returns its weights, which is not "
                "supported with a cache. Export with cache=False."
            )
        qkv = projected(cx, layer, heads, query, value, value)
        y = attend_to_past(cx, heads, qkv, mask, causal=causal)
        return output_of(cx, layer._output_dense, y)
    # In Keras's fused path, the output of a query without any key is the mean of all values; otherwise zero.
    fused = layer.dropout == 0 and not weights
    if causal and mask is not None and (fused or cx.opset < 23):
        mask, causal = cx.op.And(mask, causal_mask(cx, *at)), False
    q, k, v = projected(cx, layer, heads, query, value if key is None else key, value)
    if mask is not None:
        whole = cx.op.Unsqueeze(mask, [1])
        if fused:
            q, whole = mean_where_nothing_is_seen(cx, heads, q, whole, False)
        mask = full_mask(cx, whole, *at)
    y, _, scores = attend(cx, heads, q, k, v, causal=causal, mask=mask, weights=weights)
    y = output_of(cx, layer._output_dense, y)
    return (y, scores) if weights else y


def merged(
    cx: GraphContext, inputs: ir.Value, padding: ir.Value | None, mask: ir.Value | None
) -> ir.Value | None:
    """The conjunction of the padding mask and the attention mask: (b, 1 or queries, keys)."""
    padding = mask_of(inputs) if padding is None else padding
    masks = [] if padding is None else [cx.op.Unsqueeze(as_bool(cx, padding), [1])]
    masks += [] if mask is None else [as_bool(cx, mask)]
    if len(masks) == 2:
        return cx.op.And(*masks)
    return masks[0] if masks else None


@lowers(
    layers.TransformerEncoder,
    example=lambda x: layers.TransformerEncoder(8, 2)(x),
    shape=(None, 4),
    nodes=(
        "MatMul Add Split Attention MatMul Add Add LayerNormalization "
        "MatMul Add Relu MatMul Add Add LayerNormalization"
    ),
)
def transformer_encoder(
    cx: GraphContext,
    layer: Any,
    /,
    inputs: ir.Value,
    padding_mask: ir.Value | None = None,
    attention_mask: ir.Value | None = None,
    return_attention_scores: bool = False,
) -> Any:
    mask = merged(cx, inputs, padding_mask, attention_mask)
    own = mask_of(inputs)
    if own is not None:  # Keras's own attention layer hides the queries, too, that the inputs' mask hides
        both = cx.op.And(cx.op.Unsqueeze(own, [2]), cx.op.Unsqueeze(own, [1]))
        mask = both if mask is None else cx.op.And(mask, both)
    scores = []

    def attention(x: ir.Value) -> ir.Value:
        y = _attended(
            cx,
            layer._self_attention_layer,
            x,
            x,
            at=(inputs, inputs),
            mask=mask,
            weights=return_attention_scores,
        )
        if return_attention_scores:
            y, weights = y
            scores.append(weights)
        return y

    x = _residual(cx, layer, inputs, layer._self_attention_layer_norm, attention)
    x = _residual(cx, layer, x, layer._feedforward_layer_norm, lambda x: _feed_forward(cx, layer, x))
    return (x, *scores) if scores else x


@lowers(
    layers.TransformerDecoder,
    example=lambda x: layers.TransformerDecoder(8, 2, normalize_first=True)(x),
    shape=(None, 4),
    nodes=(
        "LayerNormalization MatMul Add Split Attention MatMul Add Add "
        "LayerNormalization MatMul Add Relu MatMul Add Add"
    ),
)
def transformer_decoder(
    cx: GraphContext,
    layer: Any,
    /,
    decoder_sequence: ir.Value,
    encoder_sequence: ir.Value | None = None,
    decoder_padding_mask: ir.Value | None = None,
    decoder_attention_mask: ir.Value | None = None,
    encoder_padding_mask: ir.Value | None = None,
    encoder_attention_mask: ir.Value | None = None,
    self_attention_cache: Any = None,
    self_attention_cache_update_index: Any = None,
    cross_attention_cache: Any = None,
    cross_attention_cache_update_index: Any = None,
    use_causal_mask: bool = True,
) -> ir.Value:
    uncached(
        cx,
        self_attention_cache=self_attention_cache,
        self_attention_cache_update_index=self_attention_cache_update_index,
        cross_attention_cache=cross_attention_cache,
        cross_attention_cache_update_index=cross_attention_cache_update_index,
    )
    mask = merged(cx, decoder_sequence, decoder_padding_mask, decoder_attention_mask)
    own = layer._self_attention_layer
    places = (decoder_sequence, decoder_sequence)
    x = _residual(
        cx,
        layer,
        decoder_sequence,
        layer._self_attention_layer_norm,
        lambda x: _attended(cx, own, x, x, at=places, mask=mask, causal=bool(use_causal_mask)),
    )
    if encoder_sequence is not None:
        seen = merged(cx, encoder_sequence, encoder_padding_mask, encoder_attention_mask)
        cross, between = layer._cross_attention_layer, (decoder_sequence, encoder_sequence)
        x = _residual(
            cx,
            layer,
            x,
            layer._cross_attention_layer_norm,
            lambda x: _attended(cx, cross, x, encoder_sequence, at=between, mask=seen),
        )
    return _residual(cx, layer, x, layer._feedforward_layer_norm, lambda x: _feed_forward(cx, layer, x))


def _residual(cx: GraphContext, layer: Any, x: ir.Value, norm: Any, branch: Any) -> ir.Value:
    """x + branch(x), normalized before the branch or after the sum."""
    known = x.meta[KERAS_TENSOR].shape

    def normalized(value: ir.Value) -> ir.Value:
        with cx.inside(norm.name):
            return described(layer_normalization(cx, norm, described(value, known)), known)

    result = cx.op.Add(branch(normalized(x) if layer.normalize_first else x), x)
    return described(result, known) if layer.normalize_first else normalized(result)


def _feed_forward(cx: GraphContext, layer: Any, x: ir.Value) -> ir.Value:
    known = x.meta[KERAS_TENSOR].shape
    for part in (layer._feedforward_intermediate_dense, layer._feedforward_output_dense):
        with cx.inside(part.name):
            x = described(dense(cx, part, x), (*known[:-1], part.units))
    return x
