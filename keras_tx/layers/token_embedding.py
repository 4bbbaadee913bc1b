"""TokenEmbedding: a learned vector for each id, and the projection tied to it."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx.arguments import Shape, Size, checked
from keras_tx.errors import ConfigError


@keras.saving.register_keras_serializable("keras_tx")
class TokenEmbedding(keras.layers.Layer):
    """Looks up ids in a table of `vocabulary_size` rows, for tokens, segments and positions.

    With `reverse=True` the input is vectors, and the output the score of each row for them: the output
    projection that is tied to the embedding (BERT, GPT-2). Scores are float32 under every dtype policy.

    The result of ids outside the vocabulary depends on the backend (an error, zeros, NaN). The text models
    check ids in NumPy arrays.

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
        reverse: whether to return scores (..., vocabulary) of vectors.
    """

    @checked
    def __init__(self, vocabulary_size: Size, width: Size, initializer: Any = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.vocabulary_size = vocabulary_size
        self.width = width
        self.initializer = keras.initializers.get(initializer or keras.initializers.RandomNormal(stddev=0.02))

    def build(self, input_shape: Shape) -> None:
        # Autocast would cast the whole table to half precision for a few rows of it.
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
            # Not cast here: Keras has already rounded floats to the policy's precision.
            raise ConfigError(f"Layer {self.name!r}: the ids are {kind}, expected integers. Cast them.")
        return ops.cast(ops.take(self.table, inputs, axis=0), self.compute_dtype)

    def _check_vectors(self, shape: Shape) -> None:
        if shape[-1] != self.width:
            raise ConfigError(
                f"Layer {self.name!r}: reverse=True with an input of the shape {tuple(shape)}, expected the "
                f"last axis {self.width}."
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
