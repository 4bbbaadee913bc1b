"""Relevance of tokens for a decision, by attention weights and their gradients."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError
from keras_tx.inspect.attention import rollout
from keras_tx.inspect.decision import complete_inputs, decision_mask, masked_sum, named_output
from keras_tx.inspect.gradients import flatten_layers, inner_gradients
from keras_tx.inspect.graph_evaluation import as_float32

Pairs = Sequence[tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class AttentionGradients:
    """Attention weights of a model, and the gradients of a score with respect to them.

    Attributes:
        scores: the explained score of each example (batch,).
        layers: a pair of arrays (batch, heads, queries, keys) for each layer, weights and gradients. The keys
            are "encoder", "decoder" and "cross" for an encoder-decoder, and "" for other models.
        is_read: booleans (batch, tokens), true for the tokens of the last layer that the score is computed
            from: the class token, or all tokens that are averaged.
    """

    scores: np.ndarray
    layers: dict[str, list[tuple[np.ndarray, np.ndarray]]]
    is_read: np.ndarray

    def of_tokens(self, relevance: np.ndarray) -> np.ndarray:
        """Averages the rows of a relevance matrix over the tokens that are read.

        Args:
            relevance: array (batch, queries, keys).

        Returns:
            An array (batch, keys).
        """
        count = np.maximum(self.is_read.sum(axis=1, keepdims=True), 1)
        return np.einsum("bq,bqk->bk", self.is_read, relevance) / count


def attention_gradients(
    model: Any, inputs: Any, target: Any = None, *, position: Any = None, output: str | None = None
) -> AttentionGradients:
    """Computes the gradients of a score with respect to all attention weights of a Keras model.

    It needs about 14 times the memory of the attention weights; `Inspector.relevance` computes one example at
    a time.

    Args:
        model: a model of keras_tx, or another Keras model with layers `keras_tx.layers.MultiHeadAttention` or
            `keras.layers.MultiHeadAttention`; it runs in inference mode.
        inputs: inputs of the model.
        target: index of the explained class or token, or one for each example; by default the one with the
            highest score.
        position: of a model with an output for each token, the explained position; by default the last one
            that is not padding.
        output: name of the explained output; by default the only one, or "logits".

    Returns:
        An AttentionGradients.

    Raises:
        ConfigError: if the model has no attention layers or unsupported ones, or for an unknown output or
            target.
    """
    layers = _attention_layers(model)
    inputs = complete_inputs(model, inputs)
    outputs = as_float32(named_output(model(inputs, training=False), output))
    mask = decision_mask(outputs, target, position, inputs)

    def scores() -> Any:
        return masked_sum(named_output(model(inputs, training=False), output), mask)

    points = [(layer, _weights_method(layer)) for layer in layers] + [(layer, "call") for layer in layers]
    with _explicit_weights(layers) as has_other_keys:
        values, tensors = inner_gradients(scores, points)
    decoder = _decoder_layers(model)
    is_seq2seq = any(has_other_keys.values())
    grouped: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for tensor in tensors:
        layer, method = tensor.point
        if method == "call":
            continue
        if tensor.value.ndim != 4:
            raise ConfigError(
                f"Layer {layer.name!r} has attention weights of shape {tensor.value.shape}, expected (batch, "
                "heads, queries, keys)."
            )
        part = ""
        if is_seq2seq:
            part = "cross" if has_other_keys[id(layer)] else "decoder" if id(layer) in decoder else "encoder"
        grouped.setdefault(part, []).append((tensor.value, tensor.gradient))
    if is_seq2seq and not decoder:
        raise ConfigError(
            f"Model {model.name!r} has cross-attention outside of a TransformerBlock, so that its decoder is "
            "unknown. Build it of keras_tx.layers.TransformerBlock(cross_attention=True)."
        )
    last = [tensor for tensor in tensors if tensor.point[1] == "call"][-1]
    return AttentionGradients(values, grouped, (last.gradient != 0).any(axis=-1))


def _attention_layers(model: Any) -> list[Any]:
    import keras

    from keras_tx.layers import MultiHeadAttention

    theirs = keras.layers.MultiHeadAttention
    others = (theirs, keras.layers.GroupQueryAttention, keras.layers.Attention)
    layers = []
    for layer in flatten_layers(model):
        if isinstance(layer, MultiHeadAttention) or (
            isinstance(layer, theirs) and type(layer).call is theirs.call
        ):
            layers.append(layer)
        elif isinstance(layer, others):
            raise ConfigError(
                f"Layer {layer.name!r} is a {type(layer).__name__}, whose attention weights are not "
                "accessible. Use integrated_gradients or occlusion."
            )
    if not layers:
        raise ConfigError(
            f"Model {model.name!r} has no attention layers, so it has no relevance by attention. Use "
            "integrated_gradients or occlusion."
        )
    return layers


def _weights_method(layer: Any) -> str:
    """The method that returns the attention weights."""
    return "_masked_softmax" if hasattr(layer, "_masked_softmax") else "_weights"


@contextlib.contextmanager
def _explicit_weights(layers: list[Any]) -> Iterator[dict[int, bool]]:
    """Makes Keras's layers compute their weights, which fused kernels hide.

    The context is a dict that is filled with whether each layer attended to another sequence.
    """
    has_other_keys: dict[int, bool] = {}

    def wrap(layer: Any, method: Any) -> Any:
        is_fused = _weights_method(layer) == "_masked_softmax"

        def call(query: Any, value: Any = None, *args: Any, **kwargs: Any) -> Any:
            has_other_keys[id(layer)] = value is not None and value is not query
            if not is_fused or kwargs.get("return_attention_scores"):
                return method(query, value, *args, **kwargs)
            return method(query, value, *args, **{**kwargs, "return_attention_scores": True})[0]

        return call

    for layer in layers:
        vars(layer)["call"] = wrap(layer, layer.call)
    try:
        yield has_other_keys
    finally:
        for layer in layers:
            del vars(layer)["call"]


def _decoder_layers(model: Any) -> set[int]:
    """The self-attention layers of blocks with cross-attention."""
    from keras_tx.layers import TransformerBlock

    blocks = [layer for layer in flatten_layers(model) if isinstance(layer, TransformerBlock)]
    return {id(block.attention) for block in blocks if block.cross_attention is not None}


def head_relevance(attention: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Averages the positive part of attention times gradient over the heads.

    Args:
        attention: attention weights of a layer (batch, heads, queries, keys).
        gradient: gradients with respect to them, in the same shape.

    Returns:
        An array (batch, queries, keys).

    Example:

    >>> weights = np.array([[[[0.5, 0.5]], [[0.2, 0.8]]]])
    >>> head_relevance(weights, np.array([[[[2.0, -1.0]], [[1.0, 1.0]]]]))
    array([[[0.6, 0.4]]])
    """
    return np.maximum(np.multiply(attention, gradient, dtype="float64"), 0).mean(axis=1)


def gradient_rollout(layers: Pairs) -> np.ndarray:
    """Computes attention rollout with heads weighted by gradients.

    It is `rollout` with the residual connection. In place of the mean attention of the heads, each layer has
    the mean of the positive part of attention times gradient, whose rows are divided by their sums. A row
    without positive values is the residual alone.

    Args:
        layers: attention weights and gradients of each layer, from the first to the last, both (batch, heads,
            tokens, tokens).

    Returns:
        An array (batch, tokens, tokens), whose rows sum to 1: how much each token of the last layer depends
        on each input token. It does not depend on the scale of the gradients.

    Raises:
        ConfigError: if there are no layers, or their shapes differ.
    """
    return rollout(_row_normalized(head_relevance(*pair))[:, None] for pair in layers)


def self_attention_relevance(layers: Pairs) -> np.ndarray:
    """Computes the relevance of tokens by the rule of Chefer et al. (2021) for self-attention.

    With A the attention weights of a layer, averaged over heads after multiplication with their gradients
    and without negative values, the relevance starts as the identity and becomes R + A R in each layer.

    Args:
        layers: as for `gradient_rollout`.

    Returns:
        An array (batch, tokens, tokens): the relevance of each input token (column) for each token of the
        last layer (row).

    Raises:
        ConfigError: if there are no layers, or their shapes differ.
    """
    shapes = {np.shape(x) for pair in layers for x in pair}
    shape = max(shapes, default=())
    if len(shapes) != 1 or len(shape) != 4 or shape[2] != shape[3]:
        raise ConfigError(
            f"layers has arrays of the shapes {sorted(shapes)}, expected the same (batch, heads, tokens, "
            "tokens) for attention weights and gradients of every layer."
        )
    relevance = np.broadcast_to(np.eye(shape[2]), (shape[0], *shape[2:]))
    for pair in layers:
        relevance = relevance + head_relevance(*pair) @ relevance
    return relevance


def _row_normalized(x: np.ndarray) -> np.ndarray:
    """Rows divided by their sums; a row of zeros remains."""
    total = x.sum(axis=-1, keepdims=True)
    return np.divide(x, total, out=np.zeros_like(x), where=total > 0)


@dataclasses.dataclass(frozen=True)
class EncoderDecoderRelevance:
    """Relevance in an encoder-decoder.

    Attributes:
        encoder: of source tokens for source tokens (batch, source, source).
        decoder: of target tokens for target tokens (batch, target, target).
        cross: of source tokens for target tokens (batch, target, source).
    """

    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray


def encoder_decoder_relevance(encoder: Pairs, decoder: Pairs, cross: Pairs) -> EncoderDecoderRelevance:
    """Computes relevance by the generic rule of Chefer et al. (2021) for an encoder and a decoder.

    Self-attention follows `self_attention_relevance`. In each decoder layer, cross-attention then adds
    N(R)^T A N(S) to the relevance of the source for the target. R and S are the relevance in decoder and
    encoder; N subtracts the identity, divides each row by its sum, and adds the identity again.

    Args:
        encoder: attention weights and gradients of each layer of the encoder.
        decoder: of the self-attention of each layer of the decoder.
        cross: of its cross-attention.

    Returns:
        An EncoderDecoderRelevance.

    Raises:
        ConfigError: if decoder and cross differ in their numbers of layers, or shapes do not fit.
    """
    if len(decoder) != len(cross):
        raise ConfigError(
            f"decoder has {len(decoder)} layers and cross has {len(cross)}, expected as many of both."
        )
    source = self_attention_relevance(encoder)
    self_attention_relevance(decoder)  # raises for arrays of other shapes
    batch, _, length, _ = decoder[0][0].shape
    target = np.broadcast_to(np.eye(length), (batch, length, length))
    between = np.zeros((batch, length, source.shape[-1]))
    for self_pair, cross_pair in zip(decoder, cross, strict=True):
        step = head_relevance(*self_pair)
        target, between = target + step @ target, between + step @ between
        step = head_relevance(*cross_pair)
        if step.shape != between.shape:
            raise ConfigError(
                f"cross has attention weights {step.shape[1:]}, expected (queries, keys) = "
                f"{between.shape[1:]}."
            )
        between = between + np.swapaxes(_normalized(target), 1, 2) @ step @ _normalized(source)
    return EncoderDecoderRelevance(source, target, between)


def _normalized(relevance: np.ndarray) -> np.ndarray:
    identity = np.eye(relevance.shape[-1])
    return _row_normalized(relevance - identity) + identity
