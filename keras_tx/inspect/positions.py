"""Similarity of positional embeddings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError


def position_similarity(table: Any, grid: tuple[int, ...], prefix_tokens: int = 0) -> np.ndarray:
    """Computes the cosine similarity of the embedding of each position with those of all others.

    These are the maps in the center of figure 7 of Dosovitskiy et al. Prefix tokens are left out.

    Args:
        table: embeddings (prefix_tokens + positions, width), those of a grid row by row.
        grid: (rows, columns) of a grid, or (length,) of a sequence.
        prefix_tokens: number of rows of the table before the grid, such as the class token.

    Returns:
        An array of shape grid + grid: `similarity[row, column]` is the map of one position of a grid.

    Raises:
        ConfigError: if the table has another number of rows, or a position has no direction because its
            embedding is 0.

    Example:

    >>> from keras_tx.layers.position_tables import sine_cosine
    >>> similarity = position_similarity(sine_cosine((14, 14), 64), (14, 14))
    >>> similarity.shape, float(similarity[3, 5, 3, 5].round(6))
    ((14, 14, 14, 14), 1.0)
    """
    table = np.asarray(table, "float64")
    grid = tuple(grid)
    if table.ndim != 2 or len(table) != prefix_tokens + math.prod(grid):
        raise ConfigError(
            f"table has the shape {table.shape}, but prefix_tokens={prefix_tokens} and grid={grid} require "
            f"({prefix_tokens + math.prod(grid)}, width)."
        )
    table = table[prefix_tokens:]
    norms = np.linalg.norm(table, axis=1)
    invalid = np.flatnonzero(~np.isfinite(norms) | (norms == 0))
    if invalid.size:
        raise ConfigError(
            f"The embedding of position {invalid[0]} has the norm {norms[invalid[0]]:g}, so its cosine "
            "similarity is not defined. Pass embeddings that are finite and not 0."
        )
    table = table / norms[:, None]
    return (table @ table.T).reshape(grid + grid)


def position_table(model: Any, layer: str | None = None) -> tuple[np.ndarray, tuple[int, ...], int]:
    """Returns the positional embeddings of a Keras model, learned or computed.

    Args:
        model: a Keras model.
        layer: the name of the PositionalEmbedding, or of the TokenEmbedding of positions; by default the
            only PositionalEmbedding, and "positions" of GPT and RoBERTa.

    Returns:
        The table (tokens, width), the grid, and the number of prefix tokens: the arguments of
        `position_similarity`.

    Raises:
        ConfigError: if the model has no such PositionalEmbedding, or it has kind="none".

    Example:

    >>> import keras_tx
    >>> table, grid, prefix_tokens = position_table(keras_tx.vit("Mu/2", image_size=8))
    >>> table.shape, grid, prefix_tokens
    ((17, 32), (4, 4), 1)
    """
    import keras

    from keras_tx.inspect.keras_layers import layer_of_class
    from keras_tx.layers import PositionalEmbedding, TokenEmbedding

    for one in model.layers:
        if isinstance(one, TokenEmbedding) and one.name == (layer or "positions"):  # of GPT and RoBERTa
            table = keras.ops.convert_to_numpy(one.table)
            return table, (len(table),), 0
    embedding = layer_of_class(model, PositionalEmbedding, layer)
    if embedding.kind == "none":
        raise ConfigError(f"Layer {embedding.name!r} has kind='none', so it has no positional embeddings.")
    table = keras.ops.convert_to_numpy(embedding.positions("float32"))
    return table, embedding.grid, embedding.prefix_tokens
