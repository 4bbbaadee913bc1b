"""Bias: a learned offset for each channel."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx.arguments import Shape


@keras.saving.register_keras_serializable("keras_tx")
class Bias(keras.layers.Layer):
    """Adds a learned bias to the last axis, for instance after a projection that is tied to an embedding.

    >>> import numpy as np
    >>> tuple(Bias()(np.zeros((2, 5, 16), "float32")).shape)
    (2, 5, 16)
    """

    def __init__(self, initializer: Any = "zeros", **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape: Shape) -> None:
        self.bias = self.add_weight(
            shape=(input_shape[-1],), initializer=self.initializer.clone(), name="bias"
        )

    def call(self, inputs: Any) -> Any:
        return ops.add(inputs, self.bias)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "initializer": keras.initializers.serialize(self.initializer)}
