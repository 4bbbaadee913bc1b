"""Attention weights as maps over the patches of an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError
from keras_tx.inspect.patch_grid import PatchGrid


def patch_maps(attention: Any, grid: PatchGrid) -> np.ndarray:
    """Returns the weights of each query as a map over the patches.

    Args:
        attention: array (..., keys) with the weights of the class token, the patches and others.
        grid: rows, columns and number of prefix tokens, of `Inspector.grid`.

    Returns:
        An array (..., rows, columns). The weights are not normalized again: the prefix tokens have the rest.

    Raises:
        ConfigError: if the number of keys is not that of the grid.

    Example:

    >>> patch_maps([[0.4, 0.1, 0.2, 0.0, 0.3]], PatchGrid(2, 2, 1))
    array([[[0.1, 0.2],
            [0. , 0.3]]])
    """
    attention = np.asarray(attention)
    rows, columns, prefix, _ = grid
    keys = prefix + rows * columns
    if attention.ndim < 1 or attention.shape[-1] != keys:
        raise ConfigError(
            f"attention has the shape {attention.shape}, but {grid} has {keys} keys, the last axis."
        )
    return attention[..., prefix:].reshape(*attention.shape[:-1], rows, columns)


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
    attention = _of_image(attention, grid)
    if not grid.prefix:
        raise ConfigError(
            f"{grid} has no class token. Use reference_point_map, or average patch_maps over the queries."
        )
    return patch_maps(attention[..., 0, :], grid)


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
    attention = _of_image(attention, grid)
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
        raise ConfigError(f"map has the shape {maps.shape}, expected (rows, columns) of values from 0.")
    flat = maps.reshape(*maps.shape[:-2], -1)
    order = np.argsort(flat, axis=-1, kind="stable")
    sums = np.cumsum(np.take_along_axis(flat, order, -1), -1)  # from the smallest value on
    kept = np.empty(flat.shape, bool)
    np.put_along_axis(kept, order, sums > (1 - mass) * sums[..., -1:], -1)
    return kept.reshape(maps.shape)


def _of_image(attention: Any, grid: PatchGrid) -> np.ndarray:
    """The array; raises a ConfigError unless queries and keys are the tokens of the image."""
    attention = np.asarray(attention)
    tokens = grid.prefix + grid.rows * grid.columns
    if attention.shape[-2:] != (tokens, tokens):
        raise ConfigError(
            f"attention has the shape {attention.shape}, but {grid} has {tokens} tokens, the last two axes."
        )
    return attention
