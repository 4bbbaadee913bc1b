"""The attention of keras-hub's families with rotary positions: Llama, Mistral, Qwen, Phi-3, Gemma and kin."""

from __future__ import annotations

from typing import Any

import keras
import onnx_ir as ir
from keras_hub.layers import RotaryEmbedding
from keras_hub.src.models.gemma.gemma_attention import CachedGemmaAttention
from keras_hub.src.models.gemma3.gemma3_attention import CachedGemma3Attention
from keras_hub.src.models.llama.llama_attention import LlamaAttention
from keras_hub.src.models.llama.llama_rotary_embedding import LlamaRotaryEmbedding
from keras_hub.src.models.mistral.mistral_attention import CachedMistralAttention
from keras_hub.src.models.mixtral.mixtral_attention import CachedMixtralAttention
from keras_hub.src.models.phi3.phi3_attention import Phi3Attention
from keras_hub.src.models.qwen.qwen_attention import QwenAttention
from keras_hub.src.models.qwen3.qwen3_attention import Qwen3Attention
from keras_hub.src.models.qwen3_moe.qwen3_moe_attention import Qwen3MoeAttention
from keras_hub.src.models.qwen_moe.qwen_moe_attention import QwenMoeAttention

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import GraphContext, shape_of
from keras_tx_onnx.lowerings.keras_hub.layers import one_more, rms_norm, rotary_angles, uncached
from keras_tx_onnx.lowerings.keras_hub.self_attention import attend_to_self, windowed
from keras_tx_onnx.lowerings.nodes.arguments import as_bool
from keras_tx_onnx.lowerings.nodes.attention import Heads, rotate
from keras_tx_onnx.reading.registry import lowers

NODES = (
    "MatMul Split Shape Squeeze Range Cast Unsqueeze Mul Cos Sin Shape Concat Expand Expand "
    "RotaryEmbedding RotaryEmbedding Attention MatMul"
)
BIASED = NODES.replace("MatMul Split", "MatMul Add Split")
NORMED = NODES + " Reshape RMSNormalization Reshape Reshape RMSNormalization Reshape"


def _example(kind: type, **options: Any) -> Any:
    return lambda x: kind(num_query_heads=4, num_key_value_heads=2, **options)(x)


@lowers(LlamaAttention, example=_example(LlamaAttention), shape=(None, 16), nodes=NODES)
@lowers(CachedMixtralAttention, example=_example(CachedMixtralAttention), shape=(None, 16), nodes=NODES)
@lowers(CachedMistralAttention, example=_example(CachedMistralAttention), shape=(None, 16), nodes=NODES)
@lowers(Phi3Attention, example=_example(Phi3Attention), shape=(None, 16), nodes=NODES)
@lowers(QwenAttention, example=_example(QwenAttention), shape=(None, 16), nodes=BIASED)
@lowers(QwenMoeAttention, example=_example(QwenMoeAttention), shape=(None, 16), nodes=BIASED)
def llama_attention(
    cx: GraphContext,
    layer: Any,
    /,
    hidden_states: ir.Value,
    attention_mask: ir.Value | None = None,
    cache: Any = None,
    cache_update_index: Any = None,
) -> Any:
    uncached(cx, cache=cache, cache_update_index=cache_update_index)
    window = layer.sliding_window_size if getattr(layer, "use_sliding_window_attention", False) else None
    return _rotary(cx, layer, hidden_states, attention_mask, window)


@lowers(
    Qwen3Attention,
    example=_example(Qwen3Attention, head_dim=4, sliding_window_size=None),
    shape=(None, 16),
    nodes=NORMED,
)
@lowers(
    Qwen3MoeAttention,
    example=_example(Qwen3MoeAttention, head_dim=4, sliding_window_size=None),
    shape=(None, 16),
    nodes=NORMED,
)
def qwen3_attention(
    cx: GraphContext,
    layer: Any,
    /,
    hidden_states: ir.Value,
    attention_mask: ir.Value | None = None,
    cache: Any = None,
    cache_update_index: Any = None,
) -> Any:
    uncached(cx, cache=cache, cache_update_index=cache_update_index)
    norms = tuple(
        (cx.weight(norm.scale), norm.epsilon)
        for norm in (layer._query_dense_layer_norm, layer._key_dense_layer_norm)
    )
    return _rotary(cx, layer, hidden_states, attention_mask, layer.sliding_window_size, norms)


def _gemma(kind: type) -> Any:
    return lambda x: kind(head_dim=4, num_query_heads=4, num_key_value_heads=2)(
        x, attention_mask=keras.ops.greater(keras.ops.einsum("bid,bjd->bij", x, x), 0.0)
    )


GEMMA = "Transpose MatMul Greater Unsqueeze Concat Expand " + NODES.replace("MatMul Split", 3 * "MatMul ")


@lowers(CachedGemmaAttention, example=_gemma(CachedGemmaAttention), shape=(None, 16), nodes=GEMMA)
@lowers(CachedGemma3Attention, example=_gemma(CachedGemma3Attention), shape=(None, 16), nodes=GEMMA)
def gemma_attention(
    cx: GraphContext,
    layer: Any,
    /,
    x: ir.Value,
    attention_mask: ir.Value | None = None,
    cache: Any = None,
    cache_update_index: Any = 0,
    cache_update_mask: Any = None,
) -> Any:
    """Gemma mixes the halves of each head of queries and keys after the rotation, which keeps the scores."""
    uncached(cx, cache=cache, cache_update_mask=cache_update_mask)
    both_ways = getattr(layer, "use_bidirectional_attention", False) and layer.use_sliding_window_attention
    if cache_update_index != 0 or attention_mask is None or both_ways:
        return NotImplemented
    norms = None
    if getattr(layer, "use_query_key_norm", False):
        norms = tuple((one_more(cx, norm.scale), norm.epsilon) for norm in (layer.query_norm, layer.key_norm))
    if layer.query_head_dim_normalize:
        scale = layer.head_dim**-0.5
    else:
        scale = (layer.hidden_dim // layer.num_query_heads) ** -0.5
    window = layer.sliding_window_size if layer.use_sliding_window_attention else None
    return _rotary(cx, layer, x, attention_mask, window, norms, scale, layer.logit_soft_cap)


def _rotary(
    cx: GraphContext,
    layer: Any,
    x: ir.Value,
    mask: ir.Value | None,
    window: int | None = None,
    norms: Any = None,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> Any:
    query, key, value, output = (
        _part(layer, f"{name}_dense") for name in ("query", "key", "value", "output")
    )
    rotary = getattr(layer, "rotary_embedding_layer", None) or layer.rope_layer
    if type(rotary) not in (RotaryEmbedding, LlamaRotaryEmbedding):
        if cx.cache is None:
            return NotImplemented
        scaling = getattr(layer, "rope_scaling_type", None)
        setting = f", rope_scaling_type={scaling!r}" if scaling else ""
        raise ExportError(
            f"The layer {cx.scope!r} has the rotary embedding {type(rotary).__name__}{setting}, which is not "
            "supported with a cache. Export with cache=False."
        )
    size = shape_of_kernel(output)[1]
    heads = Heads(shape_of_kernel(output)[0], _part(layer, "num_key_value_heads"), size)
    q, k, v = projections(cx, layer, x, (query, key, value), heads)
    if norms is not None:
        q = _normed(cx, q, heads.queries, size, *norms[0])
        k = _normed(cx, k, heads.keys, size, *norms[1])
    angles = rotary_angles(cx, rotary, x, size)
    q, k = rotate(cx, q, angles, heads.queries, size), rotate(cx, k, angles, heads.keys, size)
    if mask is not None:
        mask = as_bool(cx, mask)
        if window:
            mask = windowed(cx, mask, x, window)
    y = attend_to_self(cx, heads, (q, k, v), x, mask, scale=scale, soft_cap=soft_cap)
    y = cx.op.MatMul(y, cx.weight(output.kernel, shape=(heads.queries * size, output.kernel.shape[2])))
    return y if output.bias is None else cx.op.Add(y, cx.weight(output.bias))


def _part(layer: Any, name: str) -> Any:
    """Some families write their parts with an underscore."""
    return getattr(layer, f"_{name}") if hasattr(layer, f"_{name}") else getattr(layer, name)


def shape_of_kernel(dense: Any) -> tuple[int, ...]:
    return tuple(dense.kernel.shape)


def projections(
    cx: GraphContext, layer: Any, x: ir.Value, parts: tuple[Any, ...], heads: Heads
) -> tuple[ir.Value, ...]:
    """Queries, keys and values (b, s, heads * size); in one product where the kernels' order allows it."""
    width = shape_of(x)[-1]
    sizes = [heads.queries * heads.size, heads.keys * heads.size, heads.keys * heads.size]
    x = cx.floating(x)
    if all(part.kernel.shape[1] == width and part.bias is None for part in parts) and _heads_first(parts[0]):
        weights = (
            cx.weight(part.kernel, permute=(1, 0, 2), shape=(width, size))
            for part, size in zip(parts, sizes, strict=True)
        )
        q, k, v = (cx.op.MatMul(x, weight) for weight in weights)
        return q, k, v
    shapes = [(width, size) for size in sizes]
    kernel = cx.packed(f"{layer.path}/qkv/kernel", [part.kernel for part in parts], 1, shapes)
    y = cx.op.MatMul(x, kernel)
    if parts[0].bias is not None:
        flat = [(size,) for size in sizes]
        y = cx.op.Add(y, cx.packed(f"{layer.path}/qkv/bias", [part.bias for part in parts], 0, flat))
    return cx.op.Split(y, sizes, outputs=3, axis=-1)


def _heads_first(dense: Any) -> bool:
    """Whether the kernel is (heads, width, size), as in Gemma, and not (width, heads, size)."""
    inputs, _, _ = dense.equation.partition("->")
    x, _, kernel = inputs.partition(",")
    return kernel[0] != x[-1]


def _normed(
    cx: GraphContext, x: ir.Value, heads: int, size: int, scale: ir.Value, epsilon: float
) -> ir.Value:
    """Separately for each head."""
    x = rms_norm(cx, cx.op.Reshape(x, [0, 0, heads, size]), scale, epsilon)
    return cx.op.Reshape(x, [0, 0, heads * size])
