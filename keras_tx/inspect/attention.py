"""Arrays computed from attention weights: maps over the patches, rollout, distances and entropies."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_tx.errors import ConfigError

ROUNDING = 0.01  # of the sum of a row: weights in bfloat16 are off by less, scores before the softmax by more


class PatchGrid(NamedTuple):
    """The grid of patches of an image.

    Attributes:
        rows: number of rows of patches.
        columns: number of columns of patches.
        prefix: number of tokens before the patches: class token, distillation token and registers.
        covered: shares of the height and width that the patches cover, from the top left; below 1 if the
            model drops the remainder.
        registers: how many of the tokens before the patches are registers; they follow the others.
    """

    rows: int
    columns: int
    prefix: int
    covered: tuple[float, float] = (1.0, 1.0)
    registers: int = 0

    @property
    def has_class_token(self) -> bool:
        """Whether the first token is a class token: not all tokens before the patches are registers."""
        return self.prefix > self.registers

    @property
    def tokens(self) -> int:
        """The number of tokens of an image."""
        return self.prefix + self.rows * self.columns


def patch_maps(attention: Any, grid: PatchGrid) -> np.ndarray:
    """Returns the weights of each query as a map over the patches.

    Args:
        attention: array (..., keys) with the weights of the class token, the patches and others.
        grid: rows, columns and number of prefix tokens, of `Inspector.grid`.

    Returns:
        An array (..., rows, columns). The weights are not renormalized; the rest is on the prefix tokens.

    Raises:
        ConfigError: if the number of keys is not that of the grid.

    Example:

    >>> patch_maps([[0.4, 0.1, 0.2, 0.0, 0.3]], PatchGrid(2, 2, 1))
    array([[[0.1, 0.2],
            [0. , 0.3]]])
    """
    attention = np.asarray(attention)
    if attention.shape[-1:] != (grid.tokens,):
        raise ConfigError(
            f"attention has the shape {attention.shape}, but {grid} requires {grid.tokens} keys "
            "on the last axis."
        )
    return attention[..., grid.prefix :].reshape(*attention.shape[:-1], grid.rows, grid.columns)


def class_token_map(attention: Any, grid: PatchGrid) -> np.ndarray:
    """Returns the weights of the class token for the patches, as in DINO's figures.

    Args:
        attention: array (..., queries, keys) of a layer, such as (batch, heads, queries, keys).
        grid: of `Inspector.grid`.

    Returns:
        An array (..., rows, columns), such as (batch, heads, rows, columns).

    Raises:
        ConfigError: if there is no class token, or the number of tokens is not that of the grid.
    """
    attention = _check_tokens(attention, grid)
    if not grid.has_class_token:
        raise ConfigError(
            f"{grid} has no class token. Use reference_point_map, or average patch_maps over the queries."
        )
    return patch_maps(attention[..., 0, :], grid)


def pooled_map(attention: Any, grid: PatchGrid) -> np.ndarray:
    """Returns `class_token_map`, or the mean of the maps of all patches if there is no class token."""
    if grid.has_class_token:
        return class_token_map(attention, grid)
    return patch_maps(_check_tokens(attention, grid)[..., grid.prefix :, :], grid).mean(axis=-3)


def reference_point_map(attention: Any, grid: PatchGrid, points: Sequence[tuple[int, int]]) -> np.ndarray:
    """Returns the weights of chosen patches for all patches.

    Args:
        attention: array (..., queries, keys) of a layer.
        grid: of `Inspector.grid`.
        points: (row, column) of each chosen patch, from 0.

    Returns:
        An array (..., points, rows, columns).

    Raises:
        ConfigError: if a point is outside of the grid, or the number of tokens is not that of the grid.
    """
    attention = _check_tokens(attention, grid)
    for row, column in points:
        if not (0 <= row < grid.rows and 0 <= column < grid.columns):
            raise ConfigError(
                f"points has {(row, column)}, but the grid has {grid.rows} x {grid.columns} patches."
            )
    queries = [grid.prefix + row * grid.columns + column for row, column in points]
    return patch_maps(attention[..., queries, :], grid)


def mass_threshold(map: Any, mass: float = 0.6) -> np.ndarray:
    """Returns the patches that together have a share of the mass of a map, the largest first.

    Args:
        map: array (..., rows, columns), such as the weights of the class token.
        mass: the share of the sum of each map; 0.6 in DINO's figures.

    Returns:
        Booleans of the same shape: the fewest patches whose sum is at least this share.

    Raises:
        ConfigError: if `mass` is not between 0 and 1, or the map has negative values.

    Example:

    >>> mass_threshold([[0.1, 0.5], [0.3, 0.1]])
    array([[False,  True],
           [ True, False]])
    """
    if not 0 < mass <= 1:
        raise ConfigError(f"mass={mass!r} is out of range, expected above 0 and at most 1.")
    maps = np.asarray(map, "float64")
    if maps.ndim < 2 or not (maps >= 0).all():
        raise ConfigError(
            f"map has the shape {maps.shape}, expected (rows, columns) with values of 0 or more."
        )
    flat = maps.reshape(*maps.shape[:-2], -1)
    order = np.argsort(flat, axis=-1, kind="stable")
    sums = np.cumsum(np.take_along_axis(flat, order, -1), -1)  # from the smallest value on
    inside = np.empty(flat.shape, bool)
    np.put_along_axis(inside, order, sums > (1 - mass) * sums[..., -1:], -1)
    return inside.reshape(maps.shape)


def _check_tokens(attention: Any, grid: PatchGrid) -> np.ndarray:
    """The array; raises a ConfigError unless queries and keys are the tokens of the image."""
    attention = np.asarray(attention)
    if attention.shape[-2:] != (grid.tokens, grid.tokens):
        raise ConfigError(
            f"attention has the shape {attention.shape}, but {grid} requires {grid.tokens} tokens "
            "on the last two axes."
        )
    return attention


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


def mean_attention_distance(
    attention: Any, grid: tuple[int, int], patch_size: int | tuple[int, int], prefix_tokens: int = 0
) -> np.ndarray:
    """Computes the mean attention distance of each head, as in Dosovitskiy et al., appendix D.7.

    The distance of a query is the sum over keys of attention weight times Euclidean distance between the
    centers of the two patches. It is averaged over queries and images. Prefix tokens have no position and are
    excluded, as queries and as keys; the other weights of each query are renormalized. Queries with all their
    weight on prefix tokens are excluded too.

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
        lowest = attention.reshape(-1, attention.shape[-1])[wrong[0]].min()
        raise ConfigError(
            f"attention has a row with the minimum {lowest:g} and the sum {sums.flat[wrong[0]]:g}, expected "
            "attention weights of 0 or more with the sum 1. Pass the output of the softmax, not its scores."
        )
    return attention
