"""The embeddings of a model: filters of its patches, similarity of its positions, and nearest tokens."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError, InputError, nearest, whole_number


def principal_filters(kernel: Any, count: int = 28) -> tuple[np.ndarray, np.ndarray]:
    """Computes the principal components of the filters of a patch embedding.

    These are the filters in the left part of figure 7 of Dosovitskiy et al. Each filter is one observation.
    The mean filter is subtracted. A component has norm 1; its sign is the one for which its value of largest
    magnitude is positive.

    Args:
        kernel: the kernel of the patch embedding, (height, width, channels, filters).
        count: largest number of components. A kernel has at most height * width * channels components, and
            at most filters - 1.

    Returns:
        The components (count, height, width, channels), by decreasing variance, and the share of the
        variance of each, (count,).

    Raises:
        ConfigError: if the kernel does not have four axes, is not finite, or has equal filters only.

    Example:

    >>> kernel = np.random.default_rng(0).standard_normal((16, 16, 3, 768))
    >>> components, shares = principal_filters(kernel)
    >>> components.shape, shares.shape
    ((28, 16, 16, 3), (28,))
    """
    kernel = np.asarray(kernel, "float64")
    if kernel.ndim != 4 or not np.isfinite(kernel).all():
        raise ConfigError(
            f"kernel has the shape {kernel.shape}, expected finite values of shape (height, width, channels, "
            "filters)."
        )
    if count < 1:
        raise ConfigError(f"count={count}, expected 1 or more components.")
    filters = kernel.reshape(-1, kernel.shape[-1]).T  # (filters, height * width * channels)
    _, singular, components = np.linalg.svd(filters - filters.mean(axis=0), full_matrices=False)
    if not singular.any():
        raise ConfigError(f"All {len(filters)} filters of the kernel are equal, so they have no components.")
    count = min(count, filters.shape[1], len(filters) - 1)
    components = components[:count]
    largest = np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1)
    shares = singular[:count] ** 2 / (singular**2).sum()
    return (components * np.sign(largest)).reshape(count, *kernel.shape[:-1]), shares


def patch_kernel(model: Any, layer: str | None = None) -> np.ndarray:
    """Returns the kernel of the patch embedding of a Keras model.

    Args:
        model: a Keras model.
        layer: the name of the PatchEmbedding; by default the only one.

    Returns:
        An array (height, width, channels, filters).

    Raises:
        ConfigError: if the model has no such PatchEmbedding, or it is not one for images.

    Example:

    >>> import keras_tx
    >>> patch_kernel(keras_tx.vit("Mu/2", image_size=8)).shape
    (2, 2, 3, 32)
    """
    import keras

    from keras_tx.layers import PatchEmbedding

    embedding = _layer_of_class(model, PatchEmbedding, layer)
    kernel = keras.ops.convert_to_numpy(embedding.kernel)
    if kernel.ndim != 4:
        raise ConfigError(
            f"Layer {embedding.name!r} has a kernel of shape {kernel.shape}, expected (height, width, "
            "channels, filters) of a patch embedding for images."
        )
    return kernel


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
        The table (tokens, width), the grid, and the number of prefix tokens, or rows of padding in RoBERTa:
        the arguments of `position_similarity`.

    Raises:
        ConfigError: if the model has no such PositionalEmbedding, or it has kind="none".

    Example:

    >>> import keras_tx
    >>> table, grid, prefix_tokens = position_table(keras_tx.vit("Mu/2", image_size=8))
    >>> table.shape, grid, prefix_tokens
    ((17, 32), (4, 4), 1)
    """
    import keras

    from keras_tx.layers import PositionalEmbedding, TokenEmbedding

    for one in model.layers:
        if isinstance(one, TokenEmbedding) and one.name == (layer or "positions"):  # of GPT and RoBERTa
            table = keras.ops.convert_to_numpy(one.table)
            before = getattr(getattr(model, "config", None), "position_offset", 0)  # padding of RoBERTa
            return table, (len(table) - before,), before
    embedding = _layer_of_class(model, PositionalEmbedding, layer)
    if embedding.kind == "none":
        raise ConfigError(f"Layer {embedding.name!r} has kind='none', so it has no positional embeddings.")
    table = keras.ops.convert_to_numpy(embedding.positions("float32"))
    return table, embedding.grid, embedding.prefix_tokens


@dataclasses.dataclass(frozen=True)
class NearestToken:
    """A token of a vocabulary.

    Attributes:
        id: the token id.
        text: the token; its id as text if there is no tokenizer.
        similarity: cosine of the angle between its embedding and the vector.
    """

    id: int
    text: str
    similarity: float


class NearestTokens(list[NearestToken]):
    """A list of NearestToken, most similar first, that prints as a table.

    >>> NearestTokens([NearestToken(3449, "tired", 0.75), NearestToken(8233, "weary", 0.5)])
        id  token    similarity
      3449  'tired'      0.7500
      8233  'weary'      0.5000
    """

    def __repr__(self) -> str:
        width = max(5, *(len(repr(token.text)) for token in self))
        rows = [f"{'id':>6}  {'token':{width}}  similarity"]
        rows += [f"{token.id:6}  {token.text!r:{width}}  {token.similarity:10.4f}" for token in self]
        return "\n".join(rows)


def nearest_rows(
    table: Any, vector: Any, *, top_k: int = 10, omit: Sequence[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of a table with the largest cosine similarity to a vector.

    Args:
        table: embeddings (rows, width). Rows of zeros have no direction and are omitted.
        vector: (width,).
        top_k: number of rows.
        omit: indices of rows that are not returned.

    Returns:
        The indices of the rows, most similar first, and their similarities.

    Raises:
        InputError: if the vector has another shape, is 0 or is not finite.
        ConfigError: if top_k is below 1, or above the number of rows.

    Example:

    >>> indices, similarities = nearest_rows([[1, 0], [0, 2], [3, 3]], [1, 1], top_k=2)
    >>> indices.tolist(), similarities.round(4).tolist()
    ([2, 0], [1.0, 0.7071])
    """
    table, vector = np.asarray(table, "float32"), np.asarray(vector, "float64")
    if vector.shape != table.shape[1:]:
        raise InputError(f"The vector has the shape {vector.shape}, expected {table.shape[1:]}.")
    length = np.linalg.norm(vector)
    if not np.isfinite(length) or length == 0:
        raise InputError(f"The vector has the norm {length:g}, expected a finite norm above 0.")
    norms = np.sqrt(np.einsum("ij,ij->i", table, table, dtype="float64"))
    products = table @ (vector / length).astype("float32")
    usable = norms > 0
    usable[list(omit)] = False
    similarities = np.divide(products, norms, out=np.full(len(table), -np.inf), where=usable)
    if whole_number("top_k", top_k) > np.count_nonzero(usable):
        raise ConfigError(f"top_k={top_k} is out of range: {np.count_nonzero(usable)} rows can be compared.")
    indices = np.argsort(-similarities, kind="stable")[:top_k]
    return indices, similarities[indices]


def nearest_tokens(
    table: Any, token: Any, text_of: Callable[[int], str], id_of: Callable[[str], int | None], top_k: int
) -> NearestTokens:
    """Returns the tokens nearest to a token or a vector; see `Inspector.nearest_tokens`.

    Args:
        table: embeddings (vocabulary, width).
        token: a token, its id, or a vector (width,). A token is not in its own list.
        text_of: the token of an id.
        id_of: the id of a token, None for an unknown one.
        top_k: number of tokens.
    """
    number = None
    if isinstance(token, str):
        number = id_of(token)
        if number is None:
            raise InputError(
                f"The vocabulary has no token {token!r}. Pass one of its tokens, as Inspector.tokens returns "
                "them, an id or a vector."
            )
    elif isinstance(token, int | np.integer) and not isinstance(token, bool):
        number = int(token)
        if not 0 <= number < len(table):
            raise InputError(f"token is {number}, expected an id from 0 to {len(table) - 1}.")
    omit = () if number is None else (number,)
    vector = token if number is None else table[number]
    pairs = zip(*nearest_rows(table, vector, top_k=top_k, omit=omit), strict=True)
    return NearestTokens(
        NearestToken(int(index), text_of(int(index)), float(value)) for index, value in pairs
    )


def token_table(model: Any) -> np.ndarray:
    """Returns the token embeddings of a Keras model: float32 (vocabulary, width).

    Args:
        model: a text model of keras_tx, or a Keras model with a keras.layers.Embedding.

    Raises:
        ConfigError: if the model has no such embedding, or several.

    Example:

    >>> import keras_tx
    >>> token_table(keras_tx.gpt("pico")).shape
    (256, 32)
    """
    import keras

    from keras_tx.layers import TokenEmbedding
    from keras_tx.models.text_model import TextModel

    if isinstance(model, TextModel):
        weight = _layer_of_class(model, TokenEmbedding, "token_embedding").table
    else:
        layers = [layer for layer in model.layers if isinstance(layer, keras.layers.Embedding)]
        if len(layers) != 1:
            names = f" ({', '.join(repr(layer.name) for layer in layers)})" if layers else ""
            raise ConfigError(
                f"Model {model.name!r} has {len(layers)} Embedding layers{names}, expected one. Use the "
                "embeddings of a layer as an array: nearest_rows(table, vector), or baseline=vector."
            )
        weight = layers[0].embeddings
    return keras.ops.convert_to_numpy(keras.ops.cast(weight, "float32"))


def _layer_of_class(model: Any, kind: type, name: str | None) -> Any:
    """Returns the layer of a class with this name, by default the only one of the class."""
    layers = {layer.name: layer for layer in model.layers if isinstance(layer, kind)}
    if not layers:
        raise ConfigError(f"Model {model.name!r} has no {kind.__name__} layer.")
    if name is None:
        if len(layers) > 1:
            names = ", ".join(map(repr, layers))
            raise ConfigError(
                f"Model {model.name!r} has {len(layers)} {kind.__name__} layers. Pass layer=: {names}."
            )
        return next(iter(layers.values()))
    if name not in layers:
        raise ConfigError(
            f"Model {model.name!r} has no {kind.__name__} layer with layer={name!r}. {nearest(name, layers)}"
        )
    return layers[name]
