"""The head of sentence encoders: one vector per text."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tx import contract
from keras_tx.heads.base import Encoded, Head, average_tokens, check_pooling
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
        check_pooling(self.pooling, POOLINGS)

    def __call__(self, features: Encoded) -> Any:
        if self.pooling == "class":
            x = ops.cast(features.tokens, "float32")[:, 0]
        else:
            x = average_tokens(features)
        if self.normalize:
            square = ops.sum(ops.square(x), axis=-1, keepdims=True)
            x = ops.divide(x, ops.sqrt(ops.maximum(square, 1e-24)))
        return keras.layers.Identity(dtype="float32", name="sentence_embedding")(x)

    def loss(self) -> keras.losses.Loss:
        return ContrastiveLoss()

    def metrics(self) -> list[Any]:
        return [NearestNeighborAccuracy()]
