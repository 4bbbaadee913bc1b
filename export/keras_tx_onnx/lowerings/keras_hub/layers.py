"""The layers of keras-hub that its families are made of. Imported with the first such layer of an export."""

from __future__ import annotations

from typing import Any

import keras
import keras_hub
import numpy as np
import onnx_ir as ir
from keras import ops
from keras_hub.src.models.gemma.rms_normalization import RMSNormalization as GemmaNorm
from keras_hub.src.models.gemma3.gemma3_layers import RMSNormalization as Gemma3Norm
from keras_hub.src.models.llama.llama_layernorm import LlamaLayerNorm
from keras_hub.src.models.mistral.mistral_layer_norm import MistralLayerNormalization
from keras_hub.src.models.mixtral.mixtral_layer_norm import MixtralLayerNormalization
from keras_hub.src.models.phi3.phi3_layernorm import Phi3LayerNorm
from keras_hub.src.models.qwen.qwen_layernorm import QwenLayerNorm
from keras_hub.src.models.qwen3.qwen3_layernorm import Qwen3LayerNorm
from keras_hub.src.models.qwen3_moe.qwen3_moe_layernorm import Qwen3MoeLayerNorm
from keras_hub.src.models.qwen_moe.qwen_moe_layernorm import QwenMoeLayerNorm
from keras_hub.src.models.siglip.siglip_layers import SigLIPTextEmbedding
from keras_hub.src.models.t5.t5_layer_norm import T5LayerNorm

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext, shape_of
from keras_tx_onnx.lowerings.layers.sequences import reversible_embedding
from keras_tx_onnx.lowerings.nodes.arguments import reduced
from keras_tx_onnx.lowerings.nodes.attention import counting, rotate
from keras_tx_onnx.lowerings.nodes.cached_masks import cache_of
from keras_tx_onnx.reading.keras_masks import MASK
from keras_tx_onnx.reading.registry import lowers, opens
from keras_tx_onnx.reading.symbolic_sizes import axis_length

layers = keras_hub.layers


def tokens(x: Any) -> Any:
    """For examples: token ids 0, 1 and 2 from numbers around 0."""
    return keras.layers.Discretization([0.0, 1.0])(x)


def uncached(cx: GraphContext, **caches: Any) -> None:
    """Raises an ExportError if keras-hub's cache is passed."""
    passed = [name for name, x in caches.items() if x is not None]
    if passed:
        raise ExportError(
            f"The layer {cx.scope!r} is called with {', '.join(passed)}, the cache of keras-hub's "
            "generation, which is not supported. Export the model without it."
        )


lowers(
    layers.ReversibleEmbedding,
    example=lambda x: layers.ReversibleEmbedding(7, 4)(x, reverse=True),
    shape=(None, 4),
    nodes="Shape Concat Reshape Gemm Reshape",
)(reversible_embedding)


@lowers(
    layers.PositionEmbedding,
    example=lambda x: layers.PositionEmbedding(9)(x),
    shape=(None, 4),
    nodes="Shape Slice Shape Expand",
)
def position_embedding(
    cx: GraphContext, layer: Any, /, inputs: ir.Value, start_index: Any = 0, positions: ir.Value | None = None
) -> ir.Value:
    return cx.op.Expand(_positions(cx, layer, inputs, 1, start_index, positions), cx.op.Shape(inputs))


def _positions(
    cx: GraphContext, layer: Any, inputs: ir.Value, axis: int, start_index: Any, positions: ir.Value | None
) -> ir.Value:
    """The rows of the table for as many tokens as an axis of `inputs` has; the batch is in front, if any."""
    table = cx.weight(layer.position_embeddings)
    if cx.cache is not None and positions is None and start_index == 0:
        positions = cache_of(cx).positions
    if positions is not None:
        return cx.op.Gather(table, positions, axis=0)
    if not isinstance(start_index, int):
        raise ExportError(f"The layer {cx.scope!r} has a dynamic start_index. Pass positions instead.")
    end = axis_length(cx, inputs, axis)
    if start_index:
        end = cx.op.Add(end, [start_index])
    return cx.op.Slice(table, [start_index], end, [0])


@lowers(
    layers.TokenAndPositionEmbedding,
    example=lambda x: layers.TokenAndPositionEmbedding(5, 9, 4)(tokens(x)),
    shape=(None,),
    nodes="Unsqueeze GreaterOrEqual Cast ReduceSum Gather Shape Slice Add",
)
def token_and_position_embedding(
    cx: GraphContext, layer: Any, /, inputs: ir.Value, start_index: Any = 0, positions: ir.Value | None = None
) -> ir.Value:
    embedded = reversible_embedding(cx, layer.token_embedding, inputs)
    places = _positions(cx, layer.position_embedding, inputs, 1, start_index, positions)
    result = cx.op.Add(embedded, places)
    if MASK in embedded.meta:
        result.meta[MASK] = embedded.meta[MASK]
    return result


# -- normalization ----------------------------------------------------------------------------------------


def _norm(*classes: type) -> Any:
    """Registers root-mean-square norms that differ in name alone, each with its own example."""

    def register(function: Any) -> Any:
        for kind in classes:
            lowers(kind, example=lambda x, kind=kind: kind()(x), shape=(5, 8), nodes="RMSNormalization")(
                function
            )
        return function

    return register


@_norm(
    LlamaLayerNorm,
    MistralLayerNormalization,
    MixtralLayerNormalization,
    Phi3LayerNorm,
    QwenLayerNorm,
    QwenMoeLayerNorm,
)
def family_norm(cx: GraphContext, layer: Any, /, x: ir.Value) -> ir.Value:
    return rms_norm(cx, x, cx.weight(layer.scale), layer.epsilon)


@lowers(T5LayerNorm, example=lambda x: T5LayerNorm()(x), shape=(5, 8), nodes="RMSNormalization")
def t5_norm(cx: GraphContext, layer: Any, /, hidden_states: ir.Value) -> ir.Value:
    return rms_norm(cx, hidden_states, cx.weight(layer.weight), layer.epsilon)


@_norm(GemmaNorm, Gemma3Norm)
def gemma_norm(cx: GraphContext, layer: Any, /, x: ir.Value) -> ir.Value:
    return rms_norm(cx, x, one_more(cx, layer.scale), layer.epsilon)


def one_more(cx: GraphContext, scale: Any) -> ir.Value:
    """Gemma's norms multiply by 1 + scale."""
    return cx.made_of(f"{scale.path}/one_more", [scale], tuple(scale.shape), lambda x: 1.0 + x)


@lowers(
    layers.RMSNormalization,
    example=lambda x: layers.RMSNormalization(8)(x),
    shape=(5, 8),
    nodes="RMSNormalization",
)
def hub_norm(cx: GraphContext, layer: Any, /, x: ir.Value) -> ir.Value:
    return rms_norm(cx, cx.floating(x), cx.weight(layer.scale), 1e-6)


@lowers(
    Qwen3LayerNorm, example=lambda x: Qwen3LayerNorm(head_dim=8)(x), shape=(5, 8), nodes="RMSNormalization"
)
@lowers(
    Qwen3MoeLayerNorm,
    example=lambda x: Qwen3MoeLayerNorm(head_dim=8)(x),
    shape=(5, 8),
    nodes="RMSNormalization",
)
def qwen3_norm(cx: GraphContext, layer: Any, /, x: ir.Value) -> ir.Value:
    return rms_norm(cx, x, cx.weight(layer.scale), layer.epsilon)


def rms_norm(cx: GraphContext, x: ir.Value, scale: ir.Value, epsilon: float) -> ir.Value:
    """Over the last axis."""
    if cx.opset >= 23:
        return cx.op.RMSNormalization(x, scale, axis=-1, epsilon=float(epsilon))
    mean = reduced(cx, "ReduceMean", cx.op.Mul(x, x), [-1], keepdims=True)
    return cx.op.Mul(cx.op.Div(x, cx.op.Sqrt(cx.op.Add(mean, float(epsilon)))), scale)


# -- positions --------------------------------------------------------------------------------------------


@lowers(
    layers.RotaryEmbedding,
    example=lambda x: layers.RotaryEmbedding()(x),
    shape=(None, 2, 4),
    nodes=(
        "Shape Squeeze Range Cast Unsqueeze Mul Cos Sin Shape Concat Expand Expand "
        "Reshape RotaryEmbedding Reshape"
    ),
)
def rotary_embedding(
    cx: GraphContext, layer: Any, /, inputs: ir.Value, start_index: Any = 0, positions: ir.Value | None = None
) -> Any:
    shape = shape_of(inputs)
    standard = len(shape) == 4 and layer.sequence_axis == 1 and layer.feature_axis in (-1, 3)
    if not standard or positions is not None or start_index != 0 or shape[2] is None:
        _check_positions(cx, positions)
        return NotImplemented
    heads, size = shape[2], shape[3]
    angles = rotary_angles(cx, layer, inputs, size)
    x = rotate(cx, cx.op.Reshape(inputs, [0, 0, heads * size]), angles, heads, size)
    return cx.op.Reshape(x, [0, 0, heads, size])


def _check_positions(cx: GraphContext, positions: ir.Value | None) -> None:
    """Raises an ExportError if a layer that is opened would count positions from the first new token."""
    if cx.cache is not None and positions is None:
        raise ExportError(
            f"The layer {cx.scope!r} counts positions from the first token of its input, which is wrong with "
            "a cache. Pass positions to it, or export with cache=False."
        )


def rotary_angles(cx: GraphContext, layer: Any, tokens: ir.Value, size: int) -> tuple[ir.Value, ir.Value]:
    """Cosine and sine (b, s, size / 2) of the angles of as many positions as there are tokens (b, s, ...)."""
    inverse = np.asarray(ops.convert_to_numpy(layer._get_inverse_freq(size)), "float32")
    angles = cx.op.Mul(_places(cx, tokens, [0, 2]), inverse)
    waves = cx.op.Cos(angles), cx.op.Sin(angles)
    if layer.rope_type == "yarn":
        factor = np.float32(0.1 * np.log(layer.scaling_factor) + 1.0)
        waves = cx.op.Mul(waves[0], factor), cx.op.Mul(waves[1], factor)
    if cx.cache is not None:  # positions are those of each text
        return waves
    whole = cx.op.Concat(axis_length(cx, tokens, 0), [1, 1], axis=0)
    return cx.op.Expand(waves[0], whole), cx.op.Expand(waves[1], whole)


@lowers(
    layers.SinePositionEncoding,
    example=lambda x: layers.SinePositionEncoding()(x),
    shape=(None, 4),
    nodes="Shape Squeeze Range Cast Unsqueeze Mul Sin Cos Where Shape Expand",
)
def sine_position_encoding(
    cx: GraphContext, layer: Any, /, inputs: ir.Value, start_index: Any = 0, positions: ir.Value | None = None
) -> Any:
    if positions is not None or start_index != 0 or len(shape_of(inputs)) != 3:
        _check_positions(cx, positions)
        return NotImplemented
    width = shape_of(inputs)[-1]
    pairs = np.float32(2) * (np.arange(width) // 2).astype("float32") / np.float32(width)
    timescales = np.float32(1 / layer.max_wavelength) ** pairs
    angles = cx.op.Mul(_places(cx, inputs, [1]), timescales)
    odd = np.arange(width) % 2 == 1
    return cx.op.Expand(cx.op.Where(odd, cx.op.Cos(angles), cx.op.Sin(angles)), cx.op.Shape(inputs))


def _places(cx: GraphContext, tokens: ir.Value, axes: list[int]) -> ir.Value:
    """0.0, 1.0, 2.0 ... for each token (b, s, ...), with new axes of size 1; with a cache, (b, s, 1)."""
    if cx.cache is not None:
        return cx.op.Unsqueeze(cx.op.Cast(cache_of(cx).positions, to=ir.DataType.FLOAT), [2])
    count = cx.op.Squeeze(axis_length(cx, tokens, 1), [0])
    return cx.op.Unsqueeze(cx.op.Cast(counting(cx, count), to=ir.DataType.FLOAT), axes)


opens(
    layers.FNetEncoder,
    example=lambda x: layers.FNetEncoder(8)(x),
    shape=(5, 4),
    nodes=(
        "MatMul MatMul Neg MatMul MatMul Add Add LayerNormalization "
        "MatMul Add Relu MatMul Add Add LayerNormalization"
    ),
)


def described(value: ir.Value, shape: tuple[Any, ...]) -> ir.Value:
    """Records the shape of an intermediate value for the lowerings that use it."""
    value.meta[KERAS_TENSOR] = keras.KerasTensor(shape, "float32")
    return value


@lowers(
    SigLIPTextEmbedding,
    example=lambda x: SigLIPTextEmbedding(5, 6, 4)(tokens(x)),
    shape=(6,),
    nodes="Unsqueeze GreaterOrEqual Cast ReduceSum Gather Gather Add",
)
def siglip_text_embedding(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    """The only length of texts is that of the table of positions."""
    positions = cx.op.Gather(cx.weight(layer.position_embedding.embeddings), cx.weight(layer.position_ids))
    return cx.op.Add(reversible_embedding(cx, layer.token_embedding, inputs), positions)
