"""Computes the parameters and floating-point operations of each layer of a model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import keras

from keras_tx.errors import ConfigError
from keras_tx.layers import FeedForward, MultiHeadAttention, PatchEmbedding, TokenEmbedding, TransformerBlock
from keras_tx.layers.disentangled_attention import DisentangledAttention
from keras_tx.models.families import families
from keras_tx.models.transformer_model import TransformerModel
from keras_tx.weights.weightless import build_weightless

FREE = (  # layers without matrix products, which papers do not count
    "Activation Add AlphaDropout Average BatchNormalization Bias Cast ClassToken Concatenate Cumsum Divide "
    "Dropout ExpandDims Flatten Gelu GetItem GlobalAveragePooling1D Identity InputLayer LayerNormalization "
    "MaskToken Maximum Mean Multiply NotEqual PositionalEmbedding RelativeEmbeddings RelativePositionBias "
    "Relu RMSNormalization Rescaling Reshape SlidingWindow Softmax Sqrt Square Subtract Sum Tanh Transpose "
    "Where"
).split()


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """The cost of one layer for one sample.

    Args:
        name: of the layer.
        kind: its class name.
        params: the number of its parameters.
        flops: its floating-point operations; None if they are unknown for this kind of layer.
    """

    name: str
    kind: str
    params: int
    flops: int | None


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a model for one sample; `print` shows it as a table.

    Args:
        layers: the cost of each layer.
    """

    layers: tuple[LayerCost, ...]

    @property
    def params(self) -> int:
        """The number of parameters."""
        return sum(layer.params for layer in self.layers)

    @property
    def flops(self) -> int:
        """Floating-point operations of the matrix products, two for each multiply-add, as papers count."""
        return sum(layer.flops or 0 for layer in self.layers)

    def __str__(self) -> str:
        rows = [("layer", "kind", "parameters", "MFLOPs")]
        for layer in self.layers:
            flops = "not counted" if layer.flops is None else f"{layer.flops / 1e6:,.1f}"
            rows.append((layer.name, layer.kind, f"{layer.params:,}", flops))
        rows.append(("total", "", f"{self.params:,}", f"{self.flops / 1e6:,.1f}"))
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        return "\n".join(
            f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}" for a, b, c, d in rows
        )


def cost(model: Any, *, tokens: int | None = None) -> Cost:
    """Computes the parameters and FLOPs of a model for one sample.

    Args:
        model: a functional Keras model, or a config of keras_tx, whose model is not allocated.
        tokens: length of the text, for a text model; by default `max_length` of its config.

    Returns:
        A Cost with `params`, `flops` and the cost of each layer.

    Raises:
        ConfigError: if `model` is neither a functional Keras model nor a config.

    Example:

    >>> import keras_tx
    >>> total = keras_tx.cost(keras_tx.ViTConfig.variant("B/16"))
    >>> f"{total.params / 1e6:.0f} M, {total.flops / 1e9:.1f} GFLOPs"
    '86 M, 35.1 GFLOPs'
    """
    model = config_model(model) or model
    if not isinstance(model, keras.Model) or not hasattr(model, "operations"):
        raise ConfigError(
            f"model is a {type(model).__name__}, expected a functional Keras model or a config."
        )
    if tokens is None and isinstance(model, TransformerModel):
        tokens = getattr(model.config, "max_length", None)
    rows = []
    for operation in model.operations:
        kind = type(operation).__name__
        variables = operation.weights if isinstance(operation, keras.layers.Layer) else []
        params = sum(math.prod(variable.shape) for variable in variables)
        if params or kind not in FREE:
            rows.append(LayerCost(operation.name, kind, params, _flops(model, operation, tokens)))
    return Cost(tuple(rows))


def config_model(config: Any) -> TransformerModel | None:
    """Returns the model of a config, with the default head and without allocated weights, or None."""
    for family in families():
        if isinstance(config, family.config_class):
            kind = family.model_class
            return build_weightless(kind.assemble, config, head=kind.default_head())
    return None


def _flops(model: keras.Model, operation: Any, tokens: int | None) -> int | None:
    if type(operation).__name__ in FREE:
        return 0
    if isinstance(operation, TokenEmbedding):
        return _projection(model, operation, tokens)
    inputs = operation.input  # a layer with a mask has several; the first one is its data
    first = (inputs[0] if isinstance(inputs, list) else inputs).shape
    shape: tuple[Any, ...] = tuple(
        tokens if axis and size is None else size for axis, size in enumerate(first)
    )
    if None in shape[1:]:
        return None
    if isinstance(operation, MultiHeadAttention):
        floats = [x for x in keras.tree.flatten(inputs) if keras.backend.is_float_dtype(x.dtype)]
        return _attention(operation, shape[1]) if len(floats) == 1 else None  # value, key, past or bias
    if isinstance(operation, TransformerBlock):
        return _block(operation, shape[1], inputs, tokens)
    return next(
        (count(operation, shape) for kind, count in DENSE.items() if isinstance(operation, kind)), None
    )


def _projection(model: keras.Model, layer: TokenEmbedding, tokens: int | None) -> int | None:
    """FLOPs of an embedding: 0, or those of the logits if the head is tied to it."""
    if not isinstance(model, TransformerModel) or model.encoded is None:
        return None  # the table may also be a projection
    if layer is not model.encoded.embedding or model.head is None or not model.head.is_tied(model.encoded):
        return 0
    return 2 * tokens * math.prod(layer.table.shape) if tokens else None


def _block(layer: TransformerBlock, length: int, inputs: Any, tokens: int | None) -> int | None:
    flops = _attention(layer.attention, length) + _feed_forward(layer.feed_forward, length)
    if layer.cross_attention is None:
        return flops
    keys = inputs[1].shape[1] or tokens  # the second input is `value`
    return None if keys is None else flops + _attention(layer.cross_attention, length, keys)


def _feed_forward(layer: FeedForward, tokens: int) -> int:
    return 2 * tokens * sum(math.prod(v.shape) for v in layer.weights if len(v.shape) == 2)


def _attention(layer: MultiHeadAttention, queries: int, keys: int | None = None) -> int:
    keys = queries if keys is None else keys
    of_queries = (layer.query, layer.output_projection)
    projections = sum(2 * queries * math.prod(dense.kernel.shape) for dense in of_queries)
    projections += sum(2 * keys * math.prod(dense.kernel.shape) for dense in (layer.key, layer.value))
    if layer.relative is not None:  # the offsets of each axis of its grid
        offsets = sum(table.shape[0] for table in layer.relative.tables)
        projections += 2 * layer.num_heads * layer.size * (queries - layer.prefix_tokens) * offsets
    if isinstance(layer, DisentangledAttention):
        width = layer.num_heads * layer.size
        kernels = [dense.kernel for dense in layer.position_layers().values()]
        projections += sum(2 * layer.position_count * math.prod(kernel.shape) for kernel in kernels)
        projections += len(kernels) * 2 * width * queries * (2 * queries - 1)
    # The last term is for the scores and the weighted sum of the values.
    return projections + 2 * layer.num_heads * (layer.size + layer.value_size) * queries * keys


DENSE: dict[type, Callable[[Any, Any], int]] = {
    PatchEmbedding: lambda layer, shape: (
        2 * layer.compute_output_shape(shape)[1] * math.prod(layer.kernel.shape)
    ),
    keras.layers.Conv2D: lambda layer, shape: (  # a kernel for each output, over its group of channels
        2 * math.prod(layer.compute_output_shape(shape)[1:]) * math.prod(layer.kernel.shape[:3])
    ),
    keras.layers.Dense: lambda layer, shape: 2 * math.prod(shape[1:-1]) * math.prod(layer.kernel.shape),
    FeedForward: lambda layer, shape: _feed_forward(layer, shape[1]),
}
