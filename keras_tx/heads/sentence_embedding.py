"""The head of sentence encoders: one vector per text."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tx import contract
from keras_tx.errors import ConfigError, nearest
from keras_tx.heads.base import Encoded, Head
from keras_tx.losses import ContrastiveLoss
from keras_tx.metrics import NearestNeighborAccuracy

POOLINGS = ("mean", "class")


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class SentenceEmbeddingHead(Head):
    """One vector per text (batch, width); texts with the same meaning have similar vectors.

    Targets are integers: texts of a batch with the same meaning have the same integer.

    Args:
        pooling: "mean" for the mean of the real tokens, "class" for the class token.
        normalize: whether the vectors have length 1.
    """

    pooling: str = "mean"
    normalize: bool = True

    task: ClassVar[str | None] = contract.FEATURE_EXTRACTION

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooling not in POOLINGS:
            raise ConfigError(f"pooling={self.pooling!r} is unknown. {nearest(str(self.pooling), POOLINGS)}")

    def __call__(self, features: Encoded) -> Any:
        tokens = ops.cast(features.tokens, "float32")
        if self.pooling == "class":
            x = tokens[:, 0]
        else:
            real = ops.expand_dims(ops.cast(features.mask, "float32"), -1)  # (b, s, 1)
            # The mean of a text without tokens is zeros, not NaN.
            x = ops.divide(ops.sum(tokens * real, axis=1), ops.maximum(ops.sum(real, axis=1), 1.0))
        if self.normalize:
            square = ops.sum(ops.square(x), axis=-1, keepdims=True)
            x = ops.divide(x, ops.sqrt(ops.maximum(square, 1e-24)))
        return keras.layers.Identity(dtype="float32", name="sentence_embedding")(x)

    def loss(self) -> keras.losses.Loss:
        return ContrastiveLoss()

    def metrics(self) -> list[Any]:
        return [NearestNeighborAccuracy()]
