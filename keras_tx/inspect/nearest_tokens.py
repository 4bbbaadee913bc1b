"""The tokens whose embeddings are nearest to a vector, by cosine similarity."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError, InputError, whole_number


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
        raise InputError(f"The vector has the norm {length:g}, expected a finite one above 0.")
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
    table: Any, token: Any, text_of: Callable[[int], str], id_of: Callable[[str], int | None], top_k: int = 10
) -> NearestTokens:
    """Returns the tokens nearest to a token or a vector.

    Args:
        table: embeddings (vocabulary, width).
        token: a token, its id, or a vector (width,). A token is not in its own list.
        text_of: the token of an id.
        id_of: the id of a token, None for an unknown one.
        top_k: number of tokens.

    Raises:
        InputError: if the token is not in the vocabulary, or the vector is not valid.
        ConfigError: if top_k is out of range.
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


def token_table(model: Any, layer: str | None = None) -> np.ndarray:
    """Returns the token embeddings of a Keras model: float32 (vocabulary, width).

    Args:
        model: a text model of keras_tx, or a Keras model with a keras.layers.Embedding.
        layer: the name of the embedding; by default that of the tokens, or the only one.

    Raises:
        ConfigError: if the model has no such embedding.

    Example:

    >>> import keras_tx
    >>> token_table(keras_tx.gpt("pico")).shape
    (256, 32)
    """
    import keras

    from keras_tx.inspect.keras_layers import layer_of_class
    from keras_tx.layers import TokenEmbedding
    from keras_tx.models.text_model import TextModel

    if isinstance(model, TextModel):
        weight = layer_of_class(model, TokenEmbedding, layer or "token_embedding").table
    else:
        weight = layer_of_class(model, keras.layers.Embedding, layer).embeddings
    return keras.ops.convert_to_numpy(keras.ops.cast(weight, "float32"))
