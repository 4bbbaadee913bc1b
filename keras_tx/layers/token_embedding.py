"""TokenEmbedding: a learned vector for each id, and the way back from vectors to scores of the ids."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx.arguments import Shape, Size, checked
from keras_tx.errors import ConfigError


@keras.saving.register_keras_serializable("keras_tx")
class TokenEmbedding(keras.layers.Layer):
    """Looks ids up in a table of `vocabulary_size` rows: tokens, but segments and positions too.

    Called with `reverse=True` it takes vectors instead and scores each of them against every row, with the
    same variable: the output projection that is tied to the embedding (BERT, GPT-2). Scores are float32
    under every dtype policy.

    Ids outside the vocabulary cannot be refused inside a graph: what happens to them is the backend's
    business (an error, a row of zeros, NaN). The text models check ids that come as NumPy arrays.

    >>> import numpy as np
    >>> embedding = TokenEmbedding(vocabulary_size=100, width=16)
    >>> vectors = embedding(np.array([[5, 7, 99]]))
    >>> tuple(vectors.shape), tuple(embedding(vectors, reverse=True).shape)
    ((1, 3, 16), (1, 3, 100))

    Args:
        vocabulary_size: number of rows; ids go from 0 to `vocabulary_size - 1`.
        width: width of a vector.
        initializer: of the table; by default a normal distribution with a deviation of 0.02.

    Call arguments:
        inputs: integers of any shape; with `reverse`, vectors (..., width).
        reverse: whether to give scores (..., vocabulary) for vectors.
    """

    @checked
    def __init__(self, vocabulary_size: Size, width: Size, initializer: Any = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.vocabulary_size = vocabulary_size
        self.width = width
        self.initializer = keras.initializers.get(initializer or keras.initializers.RandomNormal(stddev=0.02))

    def build(self, input_shape: Shape) -> None:
        # Without autocast: half precision would round the whole table for the sake of a few rows of it.
        self.table = self.add_weight(
            shape=(self.vocabulary_size, self.width),
            initializer=self.initializer.clone(),
            autocast=False,
            name="table",
        )

    def call(self, inputs: Any, reverse: bool = False) -> Any:
        if reverse:
            self._check_vectors(inputs.shape)
            return ops.matmul(ops.cast(inputs, "float32"), ops.transpose(ops.cast(self.table, "float32")))
        kind = keras.backend.standardize_dtype(inputs.dtype)
        if "int" not in kind:
            # Not cast for the caller: Keras has already rounded floats to the policy's precision.
            raise ConfigError(f"Layer {self.name!r} looks up ids, but got {kind}. Give integers.")
        return ops.cast(ops.take(self.table, inputs, axis=0), self.compute_dtype)

    def _check_vectors(self, shape: Shape) -> None:
        if shape[-1] != self.width:
            raise ConfigError(
                f"Layer {self.name!r} has vectors of width {self.width}, but reverse=True got an input of "
                f"shape {tuple(shape)}."
            )

    def compute_output_shape(self, input_shape: Shape, reverse: bool = False) -> Shape:
        return (*input_shape[:-1], self.vocabulary_size) if reverse else (*input_shape, self.width)

    def compute_output_spec(self, inputs: Any, reverse: bool = False) -> keras.KerasTensor:
        if reverse:
            self._check_vectors(inputs.shape)
        dtype = "float32" if reverse else self.compute_dtype
        return keras.KerasTensor(self.compute_output_shape(inputs.shape, reverse), dtype=dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "width": self.width,
            "initializer": keras.initializers.serialize(self.initializer),
        }
