"""Attention of keras-hub's families that are opened without a cache: Bloom, Falcon, GPT-NeoX and SmolLM3.

With a cache, the keys and values of a layer must be known, so these layers have lowerings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from keras import ops
from keras_hub.src.models.bloom.bloom_attention import BloomAttention
from keras_hub.src.models.falcon.falcon_attention import FalconAttention
from keras_hub.src.models.gpt_neo_x.gpt_neo_x_attention import GPTNeoXAttention
from keras_hub.src.models.gpt_neo_x.gpt_neo_x_decoder import GPTNeoXDecoder
from keras_hub.src.models.smollm3.smollm3_layers import SmolLM3Attention, SmolLM3DecoderLayer

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import GraphContext, shape_of
from keras_tx_onnx.lowerings.keras_hub.layers import rotary_angles, uncached
from keras_tx_onnx.lowerings.keras_hub.rotary_attention import projections
from keras_tx_onnx.lowerings.keras_hub.self_attention import attend_to_past
from keras_tx_onnx.lowerings.layers.dense import project
from keras_tx_onnx.lowerings.nodes.arguments import as_bool
from keras_tx_onnx.lowerings.nodes.attention import Heads, counting, rotate
from keras_tx_onnx.lowerings.nodes.cached_masks import cache_of, check_columns
from keras_tx_onnx.reading.registry import lowers
from keras_tx_onnx.reading.symbolic_sizes import axis_length


def _all_seen(x: Any) -> Any:
    """For examples: a mask (b, s, s) that excludes nothing."""
    return ops.ones_like(ops.einsum("bid,bjd->bij", x, x))


@lowers(
    BloomAttention,
    example=lambda x: BloomAttention(4)(x, _all_seen(x)),
    shape=(None, 16),
    nodes=(
        "Transpose MatMul Shape Expand MatMul Reshape Add MatMul Reshape Add MatMul Reshape Add Transpose "
        "Transpose Transpose MatMul Mul Shape Squeeze Sub Range Unsqueeze Cast Mul Unsqueeze Unsqueeze "
        "Add Unsqueeze Greater Where Softmax Where MatMul Transpose Shape Squeeze Unsqueeze Unsqueeze "
        "Concat Reshape MatMul Add"
    ),
)
def bloom_attention(
    cx: GraphContext,
    layer: Any,
    /,
    hidden_states: ir.Value,
    attention_mask: ir.Value | None = None,
    cache: Any = None,
    cache_update_index: Any = None,
) -> Any:
    """The bias of a head grows with the position of the key."""
    uncached(cx, cache=cache, cache_update_index=cache_update_index)
    if cx.cache is None:
        return NotImplemented
    slopes = np.asarray(layer._alibi_layer._get_slopes(layer.num_heads), "float32")[:, None]
    start = cx.op.Sub(np.int64(1), cx.op.Squeeze(axis_length(cx, hidden_states, 1), [0]))
    places = counting(cx, cx.constant(np.int64(1)), start)  # that of the last key is 0
    places = cx.op.Cast(places, to=ir.DataType.FLOAT)
    bias = cx.op.Unsqueeze(cx.op.Mul(slopes, places), [0, 2])
    parts = (layer._query_dense, layer._key_dense, layer._value_dense)
    return _biased(cx, layer, hidden_states, parts, layer._output_dense, attention_mask, bias)


@lowers(
    FalconAttention,
    example=lambda x: FalconAttention(4, 0.0)(x, ops.zeros_like(x[:, None, None, :, 0]), _all_seen(x)),
    shape=(None, 16),
    nodes=(
        "Transpose MatMul Gather Unsqueeze Shape Expand Shape Expand MatMul Reshape Add MatMul Reshape "
        "Add MatMul Reshape Add Transpose Transpose MatMul Add Mul Unsqueeze Greater Where Softmax Where "
        "Transpose MatMul Transpose Shape Squeeze Shape Squeeze Unsqueeze Unsqueeze Concat Reshape MatMul "
        "Add"
    ),
)
def falcon_attention(
    cx: GraphContext,
    layer: Any,
    /,
    inputs: ir.Value,
    alibi: ir.Value,
    attention_mask: ir.Value | None = None,
    cache: Any = None,
    cache_update_index: Any = None,
) -> Any:
    """The bias is added before the scores are scaled."""
    uncached(cx, cache=cache, cache_update_index=cache_update_index)
    if cx.cache is None:
        return NotImplemented
    check_columns(cx, alibi, "bias")
    bias = cx.op.Mul(alibi, float(layer.inv_norm_factor))
    parts = (layer.query_dense, layer.key_dense, layer.value_dense)
    return _biased(cx, layer, inputs, parts, layer.output_dense, attention_mask, bias)


def _biased(
    cx: GraphContext,
    layer: Any,
    x: ir.Value,
    parts: tuple[Any, ...],
    output: Any,
    mask: ir.Value | None,
    bias: ir.Value,
) -> ir.Value:
    heads = Heads(layer.num_heads, layer.num_heads, layer.head_dim)
    qkv = projections(cx, layer, x, parts, heads)
    mask = None if mask is None else as_bool(cx, mask)
    return project(cx, output, attend_to_past(cx, heads, qkv, mask, bias=bias))


@lowers(
    GPTNeoXAttention,
    example=lambda x: GPTNeoXDecoder(8, 4, rotary_percentage=0.5)(x),
    shape=(None, 16),
    nodes=(
        "Shape Squeeze Cast Range Add Unsqueeze GreaterOrEqual Unsqueeze Shape Squeeze Unsqueeze "
        "Unsqueeze Concat Expand LayerNormalization MatMul Reshape Add Slice Slice Slice Slice Slice "
        "Slice Slice Range Cast Unsqueeze Mul Cos Sin Concat Expand Expand Reshape RotaryEmbedding "
        "Reshape Reshape RotaryEmbedding Reshape Concat Concat Transpose Transpose MatMul Transpose Mul "
        "Unsqueeze Where Softmax Where Transpose MatMul Transpose Concat Reshape MatMul Add "
        "LayerNormalization MatMul Add Relu MatMul Add Add Add"
    ),
)
def gpt_neox_attention(
    cx: GraphContext,
    layer: Any,
    /,
    hidden_states: ir.Value,
    attention_mask: ir.Value | None = None,
    cache: Any = None,
    cache_update_index: Any = None,
) -> Any:
    """Of each head, the first channels are rotated."""
    uncached(cx, cache=cache, cache_update_index=cache_update_index)
    if cx.cache is None:
        return NotImplemented
    count, size = layer.num_heads, layer.attn_head_size
    heads, width = Heads(count, count, size), shape_of(hidden_states)[-1]
    dense, output = layer._qkv_dense, layer._output_dense

    def by_part(weight: np.ndarray) -> np.ndarray:
        """Of (..., heads, 3 * size) to all queries, all keys and all values."""
        apart = weight.reshape(*weight.shape[:-1], 3, size)
        return np.moveaxis(apart, -2, -3).reshape(*weight.shape[:-2], 3 * count * size)

    shape = (width, 3 * count * size)
    x = cx.op.MatMul(hidden_states, cx.made_of(f"{dense.path}/kernel", [dense.kernel], shape, by_part))
    x = cx.op.Add(x, cx.made_of(f"{dense.path}/bias", [dense.bias], shape[1:], by_part))
    q, k, v = cx.op.Split(x, [count * size] * 3, outputs=3, axis=-1)
    angles = rotary_angles(cx, layer.rotary_embedding_layer, hidden_states, layer.rotary_dim)
    q, k = (_partly_rotated(cx, part, angles, count, size, layer.rotary_dim) for part in (q, k))
    mask = None if attention_mask is None else as_bool(cx, attention_mask)
    y = attend_to_past(cx, heads, (q, k, v), mask)
    return cx.op.Add(cx.op.MatMul(y, cx.weight(output.kernel)), cx.weight(output.bias))


def _partly_rotated(
    cx: GraphContext, x: ir.Value, angles: tuple[ir.Value, ir.Value], heads: int, size: int, rotated: int
) -> ir.Value:
    if rotated == size:
        return rotate(cx, x, angles, heads, size)
    x = cx.op.Reshape(x, [0, 0, heads, size])
    first, rest = cx.op.Split(x, [rotated, size - rotated], outputs=2, axis=-1)
    first = rotate(cx, cx.op.Reshape(first, [0, 0, heads * rotated]), angles, heads, rotated)
    x = cx.op.Concat(cx.op.Reshape(first, [0, 0, heads, rotated]), rest, axis=-1)
    return cx.op.Reshape(x, [0, 0, heads * size])


@lowers(
    SmolLM3Attention,
    example=lambda x: SmolLM3DecoderLayer(
        16, 4, 2, False, 0.0, [True], ["full_attention"], 0, 8, False, 1e-6
    )(x),
    shape=(None, 16),
    nodes=(
        "Shape Squeeze Cast Range Add Unsqueeze GreaterOrEqual Unsqueeze Shape Squeeze Unsqueeze "
        "Unsqueeze Concat Expand RMSNormalization MatMul Concat Reshape MatMul Concat Reshape MatMul "
        "Reshape Unsqueeze Unsqueeze Concat Expand Unsqueeze Unsqueeze Concat Expand MatMul Transpose "
        "Concat Cos Mul Sin Mul Unsqueeze Unsqueeze Mul Slice Slice Neg Concat Mul Add Mul Slice Slice "
        "Neg Concat Mul Add Gather Gather Transpose Transpose MatMul Mul Unsqueeze Where Softmax Where "
        "Transpose MatMul Transpose Reshape MatMul Add RMSNormalization MatMul Sigmoid Mul MatMul Mul "
        "MatMul Add"
    ),
)
def smollm3_attention(
    cx: GraphContext,
    layer: Any,
    /,
    hidden_states: ir.Value,
    training: bool = False,
    attention_mask: ir.Value | None = None,
) -> Any:
    """Some layers have no positions."""
    if cx.cache is None:
        return NotImplemented
    size = layer.head_dim
    heads = Heads(layer.num_attention_heads, layer.num_key_value_heads, size)
    q, k, v = (project(cx, part, hidden_states) for part in (layer.q_proj, layer.k_proj, layer.v_proj))
    if layer.use_rope:
        frequencies = layer.rotary_embedding.inv_freq
        if 2 * frequencies.shape[0] != size:
            raise ExportError(
                f"The layer {cx.scope!r} has partial_rotary_factor={layer.partial_rotary_factor}, which is "
                "not supported with a cache. Export with cache=False."
            )
        positions = cx.op.Unsqueeze(cx.op.Cast(cache_of(cx).positions, to=ir.DataType.FLOAT), [2])
        turns = cx.op.Mul(positions, cx.weight(frequencies))
        angles = cx.op.Cos(turns), cx.op.Sin(turns)
        q, k = rotate(cx, q, angles, heads.queries, size), rotate(cx, k, angles, heads.keys, size)
    mask = None if attention_mask is None else as_bool(cx, attention_mask)
    y = attend_to_past(cx, heads, (q, k, v), mask)
    kernel = cx.weight(layer.o_proj.kernel, shape=(heads.queries * size, layer.hidden_size))
    return cx.op.MatMul(y, kernel)
