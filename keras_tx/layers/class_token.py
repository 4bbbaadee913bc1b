"""ClassToken: learned tokens that are inserted into a sequence."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx.arguments import Count, Shape, Size, checked
from keras_tx.errors import ConfigError


@keras.saving.register_keras_serializable("keras_tx")
class ClassToken(keras.layers.Layer):
    """Inserts `count` learned tokens after the first `after` tokens.

    `ClassToken()` is a class token, `ClassToken(after=1)` the distillation token of DeiT, and
    `ClassToken(4, after=1)` four registers of DINOv2.

    >>> import numpy as np
    >>> tuple(ClassToken()(np.zeros((2, 196, 768), "float32")).shape)
    (2, 197, 768)

    Args:
        count: number of tokens.
        after: number of tokens of the input before them.
        initializer: of the tokens.
    """

    @checked
    def __init__(self, count: Size = 1, after: Count = 0, initializer: Any = "zeros", **kwargs: Any):
        super().__init__(**kwargs)
        self.count = count
        self.after = after
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape: Shape) -> None:
        if len(input_shape) != 3 or input_shape[-1] is None:
            raise ConfigError(
                f"Layer {self.name!r}: the input has the shape {tuple(input_shape)}, expected (batch, "
                "tokens, width)."
            )
        if input_shape[1] is not None and input_shape[1] < self.after:
            raise ConfigError(
                f"Layer {self.name!r}: after={self.after}, but the input has {input_shape[1]} tokens."
            )
        self.tokens = self.add_weight(
            shape=(self.count, input_shape[-1]), initializer=self.initializer.clone(), name="tokens"
        )

    def call(self, inputs: Any) -> Any:
        tokens = ops.cast(ops.expand_dims(self.tokens, 0), inputs.dtype)  # (1, count, d)
        tokens = ops.broadcast_to(tokens, (ops.shape(inputs)[0], self.count, inputs.shape[-1]))
        if self.after == 0:
            return ops.concatenate([tokens, inputs], axis=1)
        return ops.concatenate([inputs[:, : self.after], tokens, inputs[:, self.after :]], axis=1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, length, width = input_shape
        return (batch, None if length is None else length + self.count, width)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "count": self.count,
            "after": self.after,
            "initializer": keras.initializers.serialize(self.initializer),
        }
