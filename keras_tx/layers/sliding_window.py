"""SlidingWindow: the mask of attention to the neighbouring tokens."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx.arguments import Count, Shape, checked


@keras.saving.register_keras_serializable("keras_tx")
class SlidingWindow(keras.layers.Layer):
    """Computes an attention_mask: each token attends to the tokens at most `distance` places away.

    One call is shared by all attention layers with this window.

    >>> import numpy as np
    >>> tuple(SlidingWindow(distance=1)(np.zeros((2, 3), "int32")).shape)
    (1, 3, 3)

    Args:
        distance: the largest distance between a query and a key.

    Call arguments:
        inputs: (batch, tokens, ...), of which only the number of tokens is used.

    Returns:
        Booleans (1, tokens, tokens).
    """

    @checked
    def __init__(self, distance: Count, **kwargs: Any):
        super().__init__(**kwargs)
        self.distance = distance

    def call(self, inputs: Any) -> Any:
        places = ops.arange(ops.shape(inputs)[1])
        distances = ops.subtract(ops.expand_dims(places, 0), ops.expand_dims(places, 1))
        return ops.expand_dims(ops.less_equal(ops.abs(distances), self.distance), 0)

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        tokens = inputs.shape[1]
        return keras.KerasTensor((1, tokens, tokens), "bool")

    def compute_mask(self, inputs: Any, mask: Any = None) -> None:
        return None

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (1, input_shape[1], input_shape[1])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "distance": self.distance}
