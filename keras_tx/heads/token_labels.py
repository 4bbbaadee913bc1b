"""Heads that answer for each token: a label, or whether it starts or ends the answer."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tx import contract
from keras_tx.arguments import Rate, Size
from keras_tx.errors import ConfigError
from keras_tx.heads.base import Encoded, Head, check_labels, project
from keras_tx.losses import TokenCrossentropy
from keras_tx.metrics import SpanExactMatch, SpanF1, TokenAccuracy

AT_PADDING = -1e4  # the logit of a span at padding: no probability, and finite in half precision


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class TokenClassifierHead(Head):
    """One label for each token: logits (batch, sequence, classes).

    Labels are (batch, sequence), -100 where none is to be learned: padding, and all pieces of a word but
    its first. `keras_tx.metrics.EntityF1` counts whole entities where labels are B-, I- and O. The field
    `labels` has the names of the classes, in order; the exported folder has them, too.
    """

    num_classes: Size
    dropout: Rate = 0.0
    labels: tuple[str, ...] | None = None

    task: ClassVar[str | None] = contract.TOKEN_CLASSIFICATION
    token_outputs: ClassVar[tuple[str, ...]] = (contract.LOGITS,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes < 2:
            raise ConfigError(
                f"num_classes={self.num_classes!r}: a classifier tells at least 2 classes apart."
            )
        if self.labels is not None:
            object.__setattr__(self, "labels", check_labels(self.labels, self.num_classes))

    def __call__(self, features: Encoded) -> Any:
        return project(features.tokens, self.num_classes, contract.LOGITS, self.dropout)

    def loss(self) -> keras.losses.Loss:
        return TokenCrossentropy()

    def metrics(self) -> list[Any]:
        return [TokenAccuracy(name="accuracy")]


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class SpanHead(Head):
    """Where the answer starts and where it ends: {"start_logits", "end_logits"}, each (batch, sequence).

    Labels have the same names and are (batch,): positions of the first and the last token of the answer;
    both 0, the class token, where the text has no answer. Logits at padding are -10,000.
    """

    dropout: Rate = 0.0

    task: ClassVar[str | None] = contract.QUESTION_ANSWERING

    def __call__(self, features: Encoded) -> dict[str, Any]:
        both = project(features.tokens, 2, "span", self.dropout)  # (b, s, 2)
        real = ops.cast(features.mask, "bool")
        both = ops.where(ops.expand_dims(real, -1), both, AT_PADDING)
        names = (contract.START_LOGITS, contract.END_LOGITS)
        return {
            name: keras.layers.Identity(dtype="float32", name=name)(both[:, :, index])
            for index, name in enumerate(names)
        }

    def loss(self) -> dict[str, keras.losses.Loss]:
        names = (contract.START_LOGITS, contract.END_LOGITS)
        return {name: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in names}

    def metrics(self) -> dict[str, list[Any]]:
        return {contract.START_LOGITS: ["accuracy"], contract.END_LOGITS: ["accuracy"]}

    def joint_metrics(self) -> list[keras.metrics.Metric]:
        return [SpanExactMatch(), SpanF1()]
