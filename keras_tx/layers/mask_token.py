"""MaskToken: a weight of DINOv2's pre-training, kept for checkpoints."""

from __future__ import annotations

from typing import Any

import keras

from keras_tx.arguments import Shape


@keras.saving.register_keras_serializable("keras_tx")
class MaskToken(keras.layers.Layer):
    """Returns its input, and holds the mask token of DINOv2's pre-training, so that checkpoints are complete.

    The token is not trained.
    """

    def build(self, input_shape: Shape) -> None:
        self.token = self.add_weight(
            shape=(input_shape[-1],), initializer="zeros", trainable=False, name="token"
        )

    def call(self, inputs: Any) -> Any:
        return inputs

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape
