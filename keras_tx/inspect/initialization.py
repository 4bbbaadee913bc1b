"""Attention at initialization: entropy and gradients with and without the factor 1 / sqrt(d)."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError, whole_number
from keras_tx.inspect.attention import entropy_in_nats
from keras_tx.inspect.gradients import Point, flatten_layers, inner_gradients, intercept_calls


@dataclasses.dataclass(frozen=True)
class AttentionStatistics:
    """Entropy and gradients of attention layers.

    The gradient of a query is that of a random linear function with respect to the scores of its keys before
    the softmax.

    Attributes:
        layers: names of the layers, or widths of a head.
        entropy: mean entropy of a query's weights for each layer, in nats. Its maximum is log(keys).
        mean_gradient: mean over queries of the gradient's norm, for each layer.
        median_gradient: median over queries of the gradient's norm, for each layer.
    """

    layers: list[Any]
    entropy: np.ndarray
    mean_gradient: np.ndarray
    median_gradient: np.ndarray


def head_width_statistics(
    head_widths: Sequence[int] = (4, 16, 64, 256),
    *,
    scaled: bool = True,
    tokens: int = 64,
    batch: int = 8,
    seed: int = 0,
) -> AttentionStatistics:
    """Measures an attention layer with one head at initialization, for several widths d of the head.

    For random inputs of variance 1 the queries and keys of `keras_tx.layers.MultiHeadAttention` have variance
    1, and their products have variance d. Without the factor 1 / sqrt(d) the softmax therefore saturates when
    d grows: the entropy falls, and the gradient of most queries vanishes.

    Args:
        head_widths: the widths d.
        scaled: whether scores are multiplied by 1 / sqrt(d).
        tokens: number of tokens.
        batch: number of random inputs.
        seed: of weights and inputs.

    Returns:
        An AttentionStatistics with one element for each width.

    Raises:
        ConfigError: for a size that is not positive.

    Example:

    >>> scaled, unscaled = (head_width_statistics((4, 256), scaled=scaled) for scaled in (True, False))
    >>> scaled.entropy.round(1), unscaled.entropy.round(1)
    (array([3.9, 3.7]), array([3.3, 0.3]))
    """
    from keras_tx.layers import MultiHeadAttention

    rng = np.random.default_rng(seed)
    rows = []
    for width in head_widths:
        whole_number("head_widths", width)
        inputs = rng.standard_normal((batch, tokens, width)).astype("float32")
        layer = MultiHeadAttention(1, scale=None if scaled else 1.0)
        layer.build(inputs.shape)
        for weight in layer.trainable_weights:  # one initializer with a seed would make Q = K
            if len(weight.shape) == 2:
                weight.assign(rng.standard_normal(weight.shape) / np.sqrt(width))
        rows += _measured(lambda layer=layer, inputs=inputs: layer(inputs), [layer], rng)
    return _statistics(list(head_widths), rows)


def model_statistics(model: Any, inputs: Any, *, scaled: bool = True, seed: int = 0) -> AttentionStatistics:
    """Measures all attention layers of a model of keras_tx; meant for a model at initialization.

    Args:
        model: a Keras model with layers `keras_tx.layers.MultiHeadAttention`; it runs in inference mode.
        inputs: inputs of the model.
        scaled: whether the model runs as it is; otherwise scores are multiplied by 1 in every layer.
        seed: of the random linear function of the last attention layer's output.

    Returns:
        An AttentionStatistics with one element for each call of a layer.

    Raises:
        ConfigError: if the model has no such layers.

    Example:

    >>> import keras_tx
    >>> model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    >>> statistics = model_statistics(model, np.zeros((1, 8, 8, 3), "float32"))
    >>> statistics.layers, statistics.entropy < np.log(17) + 1e-6
    (['block_0/attention'], array([ True]))
    """
    from keras_tx.layers import MultiHeadAttention

    layers = [layer for layer in flatten_layers(model) if isinstance(layer, MultiHeadAttention)]
    if not layers:
        raise ConfigError(
            f"Model {model.name!r} has no layers keras_tx.layers.MultiHeadAttention, which are measured."
        )

    def run() -> Any:
        outputs: list[Any] = []
        points = [(layer, "call") for layer in layers]
        with intercept_calls(points, lambda _, x: outputs.append(x) or x):
            model(inputs, training=False)
        return outputs[-1]

    with contextlib.nullcontext() if scaled else _without_factor(layers):
        rows = _measured(run, layers, np.random.default_rng(seed))
    return _statistics([_name(model, layer) for layer, *_ in rows], rows)


def _name(model: Any, layer: Any) -> str:
    """The name of a layer after that of the model's layer that contains it."""
    owner = next(owner for owner in model.layers if any(layer is x for x in flatten_layers(owner)))
    return layer.name if owner is layer else f"{owner.name}/{layer.name}"


@contextlib.contextmanager
def _without_factor(layers: list[Any]) -> Iterator[None]:
    scales = [layer.scale for layer in layers]
    for layer in layers:
        layer.scale = 1.0
    try:
        yield
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scale = scale


def _measured(
    run: Callable[[], Any], layers: list[Any], rng: np.random.Generator
) -> list[tuple[Any, float, np.ndarray]]:
    """The layer, the entropy, and the gradient norm of each query, for each call of a layer."""
    from keras import ops

    output = run()
    batch, *axes = output.shape
    factors = rng.standard_normal((batch, *axes)) / np.sqrt(axes[-1])
    points: list[Point] = [(layer, "_weights") for layer in layers]

    def scores() -> Any:
        return ops.sum(ops.multiply(ops.cast(run(), "float32"), factors.astype("float32")), axis=(1, 2))

    rows = []
    for tensor in inner_gradients(scores, points)[1]:
        weights, gradient = tensor.value.astype("float64"), tensor.gradient
        of_scores = weights * (gradient - (gradient * weights).sum(axis=-1, keepdims=True))
        rows.append(
            (tensor.point[0], float(entropy_in_nats(weights).mean()), np.linalg.norm(of_scores, axis=-1))
        )
    return rows


def _statistics(names: list[Any], rows: list[tuple[Any, float, np.ndarray]]) -> AttentionStatistics:
    return AttentionStatistics(
        names,
        np.array([entropy for _, entropy, _ in rows]),
        np.array([norm.mean() for *_, norm in rows]),
        np.array([np.median(norm) for *_, norm in rows]),
    )
