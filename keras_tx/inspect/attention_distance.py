"""Mean attention distance in pixels, and entropy of attention, for each head."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError

ROUNDING = 0.01  # of the sum of a row: weights in bfloat16 are off by less, scores before the softmax by more


def mean_attention_distance(
    attention: Any, grid: tuple[int, int], patch_size: int | tuple[int, int], prefix_tokens: int = 0
) -> np.ndarray:
    """Computes the mean attention distance of each head, as in Dosovitskiy et al., appendix D.7.

    The distance of a query is the sum over keys of attention weight times Euclidean distance between the
    centers of the two patches. It is averaged over queries and images. Prefix tokens have no position: as
    queries they are left out, as keys too, and the weights of the other keys are divided by their sum. A
    query whose whole weight is on prefix tokens is left out.

    Args:
        attention: attention weights of one layer, (batch, heads, tokens, tokens).
        grid: (rows, columns) of the patches.
        patch_size: side of a patch in pixels, or (height, width).
        prefix_tokens: number of tokens before the patches, such as the class token and registers.

    Returns:
        An array (heads,), in pixels. NaN for a head of which every query is left out.

    Raises:
        ConfigError: if the array does not have these tokens, or does not contain attention weights.

    Example:

    >>> uniform = np.full((1, 1, 4, 4), 0.25)  # 2 x 2 patches: 0, 16, 16 and 16 * sqrt(2) pixels
    >>> mean_attention_distance(uniform, grid=(2, 2), patch_size=16).round(3)
    array([13.657])
    """
    attention = _checked_weights(attention)
    rows, columns = grid
    tokens = prefix_tokens + rows * columns
    if attention.shape[2:] != (tokens, tokens):
        raise ConfigError(
            f"attention has the shape {attention.shape}, but prefix_tokens={prefix_tokens} and grid={grid} "
            f"require (batch, heads, {tokens}, {tokens})."
        )
    distances = patch_distances(grid, patch_size)
    total = np.zeros(attention.shape[1])
    count = np.zeros(attention.shape[1])
    for weights in attention[:, :, prefix_tokens:, prefix_tokens:]:  # (heads, patches, patches)
        on_patches = weights.sum(axis=-1, dtype="float64")
        moment = np.einsum("hqk,qk->hq", weights, distances, dtype="float64", casting="same_kind")
        has_weight = on_patches > 0
        total += np.divide(moment, on_patches, out=np.zeros_like(moment), where=has_weight).sum(axis=-1)
        count += has_weight.sum(axis=-1)
    return np.divide(total, count, out=np.full_like(total, math.nan), where=count > 0)


def patch_distances(grid: tuple[int, int], patch_size: int | tuple[int, int]) -> np.ndarray:
    """Computes the distances in pixels between the centers of all patches.

    Args:
        grid: (rows, columns) of the patches.
        patch_size: side of a patch in pixels, or (height, width).

    Returns:
        An array (patches, patches), with the patches row by row.

    Example:

    >>> patch_distances((1, 3), 16)
    array([[ 0., 16., 32.],
           [16.,  0., 16.],
           [32., 16.,  0.]])
    """
    height, width = (patch_size, patch_size) if isinstance(patch_size, int) else patch_size
    row, column = (axis.ravel() for axis in np.indices(grid))
    return np.hypot(np.subtract.outer(row, row) * height, np.subtract.outer(column, column) * width)


def entropy_in_nats(attention: Any) -> np.ndarray:
    """Computes the entropy of the attention weights of each head, averaged over queries and examples.

    It is 0 if each query attends to one key, and log(keys), the maximum, if it attends to all keys equally.
    Queries whose weights are all 0, such as padding, are left out.

    Args:
        attention: attention weights of one layer, (batch, heads, queries, keys).

    Returns:
        An array (heads,), in nats. NaN for a head of which every query is left out.

    Raises:
        ConfigError: if the array does not contain attention weights.

    Example:

    >>> entropy_in_nats(np.full((1, 1, 4, 4), 0.25)) == np.log(4)
    array([ True])
    """
    attention = _checked_weights(attention)
    total = np.zeros(attention.shape[1])
    count = np.zeros(attention.shape[1])
    for head, row in itertools.product(range(attention.shape[1]), range(len(attention))):
        weights = attention[row, head].astype("float64")
        logarithm = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
        total[head] -= (weights * logarithm).sum()
        count[head] += weights.any(axis=-1).sum()
    return np.divide(total, count, out=np.full_like(total, math.nan), where=count > 0)


def _checked_weights(attention: Any) -> np.ndarray:
    """Returns the array; raises a ConfigError unless each row has the sum 1 or, without keys, 0."""
    attention = np.asarray(attention)
    if attention.ndim != 4 or not attention.size:
        raise ConfigError(
            f"attention has the shape {attention.shape}, expected (batch, heads, queries, keys) of one layer."
        )
    sums = attention.sum(axis=-1, dtype="float64")
    off = np.abs(sums - 1) > ROUNDING
    wrong = np.flatnonzero(off & (sums != 0) | (attention.min(axis=-1) < 0) | ~np.isfinite(sums))
    if wrong.size:
        raise ConfigError(
            f"attention has a row from {attention.reshape(-1, attention.shape[-1])[wrong[0]].min():g} with "
            f"the sum {sums.flat[wrong[0]]:g}, expected attention weights of 0 or more with the sum 1. Pass "
            "the output of the softmax, not its scores."
        )
    return attention
