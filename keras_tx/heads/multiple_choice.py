"""The head of multiple choice: one logit for each choice of a sample."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import keras
from keras import ops

from keras_tx import contract
from keras_tx.arguments import Rate
from keras_tx.heads.base import Head, project
from keras_tx.heads.token_classification import AT_PADDING


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class MultipleChoiceHead(Head):
    """A head that selects one of several texts: logits (batch, choices).

    The inputs of the model are (batch, choices, sequence): the context of a sample with each of its choices.
    Samples may have different numbers of choices: rows without tokens have the logit -10,000. Targets are the
    indices of the correct choices (batch,).

    >>> import keras_tx, numpy as np
    >>> model = keras_tx.bert("tiny", vocabulary_size=100, head=MultipleChoiceHead())
    >>> tuple(model(np.ones((2, 4, 7), "int32")).shape)
    (2, 4)

    Args:
        dropout: the dropout rate before the dense layer.
    """

    dropout: Rate = 0.0

    takes_sample: ClassVar[bool] = True
    has_choices: ClassVar[bool] = True
    task: ClassVar[str | None] = contract.MULTIPLE_CHOICE

    def __call__(self, features: Any) -> Any:
        return project(features, 1, contract.LOGITS, self.dropout)

    def loss(self) -> keras.losses.Loss:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def metrics(self) -> list[Any]:
        return ["accuracy"]


@keras.saving.register_keras_serializable("keras_tx")
class FoldChoices(keras.layers.Layer):
    """(batch, choices, sequence) to (batch * choices, sequence)."""

    def call(self, inputs: Any) -> Any:
        return ops.reshape(inputs, (-1, ops.shape(inputs)[2]))

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        batch, choices, length = inputs.shape
        rows = None if batch is None or choices is None else batch * choices
        return keras.KerasTensor((rows, length), inputs.dtype)


@keras.saving.register_keras_serializable("keras_tx")
class UnfoldChoices(keras.layers.Layer):
    """Logits (batch * choices, 1) and the mask (batch, choices, sequence) to logits (batch, choices)."""

    def call(self, logits: Any, real: Any) -> Any:
        is_text = ops.max(real, axis=-1)  # (b, c)
        logits = ops.reshape(logits, (-1, ops.shape(real)[1]))
        return ops.where(ops.not_equal(is_text, 0), logits, AT_PADDING)

    def compute_output_shape(
        self, logits_shape: tuple[int | None, ...], real_shape: tuple[int | None, ...]
    ) -> tuple[int | None, ...]:
        return tuple(real_shape[:2])
