"""Heads with one output per token: classes, and the start and the end of an answer."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tx import contract
from keras_tx.arguments import Classes, Rate
from keras_tx.heads.base import Encoded, Head, project
from keras_tx.losses import TokenCrossentropy
from keras_tx.metrics import SpanExactMatch, SpanF1, TokenAccuracy

AT_PADDING = -1e4  # the logit at padding: its probability is 0, and it is finite in half precision
SPAN = (contract.START_LOGITS, contract.END_LOGITS)


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class TokenClassifierHead(Head):
    """One class per token: logits (batch, sequence, classes).

    Targets are (batch, sequence), -100 at padding and at all tokens of a word but its first. For labels
    that begin with B-, I- and O, `keras_tx.metrics.EntityF1` counts whole entities.

    Args:
        num_classes, dropout, labels, label_smoothing: as for `ClassifierHead`.
    """

    num_classes: Classes
    dropout: Rate = 0.0
    labels: tuple[str, ...] | None = None
    label_smoothing: Rate = 0.0

    task: ClassVar[str | None] = contract.TOKEN_CLASSIFICATION
    token_outputs: ClassVar[tuple[str, ...]] = (contract.LOGITS,)
    class_layers: ClassVar[tuple[str, ...]] = (contract.LOGITS,)

    def __call__(self, features: Encoded) -> Any:
        return project(features.tokens, self.num_classes, contract.LOGITS, self.dropout)

    def loss(self) -> keras.losses.Loss:
        return TokenCrossentropy(self.label_smoothing)

    def metrics(self) -> list[Any]:
        return [TokenAccuracy(name="accuracy")]


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class SpanHead(Head):
    """The start and the end of an answer: a dict of "start_logits" and "end_logits" (batch, sequence).

    Targets have the same names and are (batch,): the positions of the first and the last token of the
    answer, both 0 (the class token) where the text has no answer. Logits at padding are -10,000.

    Args:
        dropout: the dropout rate before the dense layer.
    """

    dropout: Rate = 0.0

    task: ClassVar[str | None] = contract.QUESTION_ANSWERING

    def __call__(self, features: Encoded) -> dict[str, Any]:
        both = project(features.tokens, 2, "span", self.dropout)  # (b, s, 2)
        real = ops.cast(features.mask, "bool")
        both = ops.where(ops.expand_dims(real, -1), both, AT_PADDING)
        return {
            name: keras.layers.Identity(dtype="float32", name=name)(both[:, :, index])
            for index, name in enumerate(SPAN)
        }

    def loss(self) -> dict[str, keras.losses.Loss]:
        return {name: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in SPAN}

    def metrics(self) -> dict[str, list[Any]]:
        return {name: ["accuracy"] for name in SPAN}

    def joint_metrics(self) -> list[keras.metrics.Metric]:
        return [SpanExactMatch(), SpanF1()]
