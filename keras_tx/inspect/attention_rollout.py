"""Attention rollout: how much each token of the last layer depends on each input token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError


def rollout(attention: Iterable[Any], *, residual: bool = True) -> np.ndarray:
    """Computes attention rollout (Abnar and Zuidema, 2020).

    The weights A of each layer are averaged over its heads, and the matrices of all layers are multiplied,
    the last layer on the left. With the residual connection, A is first replaced by 0.5 A + 0.5 I, whose rows
    are normalized to the sum 1.

    Args:
        attention: array (batch, heads, tokens, tokens) of each layer, first layer first: a list, or an
            iterator such as `Inspector.attention_layers`, of which one layer is in memory.
        residual: whether the residual connection is added, as in the paper.

    Returns:
        An array (batch, tokens, tokens), float32: a row for each token of the last layer, whose values for
        the input tokens sum to 1.

    Raises:
        ConfigError: if there are no layers, or the arrays have other shapes.

    Example:

    >>> uniform = np.full((1, 2, 2, 2), 0.5)
    >>> rollout([uniform, uniform])
    array([[[0.625, 0.375],
            [0.375, 0.625]]], dtype=float32)
    """
    product: np.ndarray | None = None
    for index, weights in enumerate(attention):
        weights = np.asarray(weights)
        fits = weights.ndim == 4 and weights.shape[2] == weights.shape[3]
        if not fits or (product is not None and product.shape[1:] != weights.shape[2:]):
            raise ConfigError(
                f"attention has the shape {weights.shape} in layer {index}, expected (batch, heads, tokens, "
                "tokens) with the same tokens in each layer."
            )
        mean = weights.mean(axis=1, dtype=np.float32)
        if residual:
            mean = 0.5 * mean + 0.5 * np.eye(mean.shape[-1], dtype=np.float32)
            mean /= mean.sum(-1, keepdims=True)
        product = mean if product is None else mean @ product
    if product is None:
        raise ConfigError("attention has no layers.")
    return product
