"""RelativeEmbeddings: the embeddings of relative positions, which all layers of a model share."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx.arguments import Epsilon, Shape, Size, checked


@keras.saving.register_keras_serializable("keras_tx")
class RelativeEmbeddings(keras.layers.Layer):
    """Returns a learned table, normalized if `normalize` is true, for DisentangledAttention.

    >>> import numpy as np
    >>> tuple(RelativeEmbeddings(8, 16)(np.zeros((2, 3), "int32")).shape)
    (8, 16)

    Args:
        count: number of positions.
        width: size of their vectors.
        normalize: whether a layer norm follows.
        norm_epsilon: of the norm.
        initializer: of the table.

    Call arguments:
        inputs: any tensor of the graph; its values are not used.

    Returns:
        (count, width).
    """

    @checked
    def __init__(
        self,
        count: Size,
        width: Size,
        normalize: bool = True,
        norm_epsilon: Epsilon = 1e-7,
        initializer: Any = "glorot_uniform",
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.count = count
        self.width = width
        self.normalize = normalize
        self.norm_epsilon = norm_epsilon
        self.initializer = keras.initializers.get(initializer)
        self.norm: Any = None
        if normalize:
            self.norm = keras.layers.LayerNormalization(
                epsilon=norm_epsilon, dtype=self.dtype_policy, name="norm"
            )

    def build(self, input_shape: Shape) -> None:
        shape = (self.count, self.width)
        self.table = self.add_weight(shape=shape, initializer=self.initializer, name="table")
        if self.norm is not None:
            self.norm.build(shape)

    def call(self, inputs: Any) -> Any:
        table = ops.cast(self.table, self.compute_dtype)
        return table if self.norm is None else self.norm(table)

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        return keras.KerasTensor((self.count, self.width), self.compute_dtype)

    def compute_mask(self, inputs: Any, mask: Any = None) -> None:
        return None

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (self.count, self.width)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "count": self.count,
            "width": self.width,
            "normalize": self.normalize,
            "norm_epsilon": self.norm_epsilon,
            "initializer": keras.initializers.serialize(self.initializer),
        }
