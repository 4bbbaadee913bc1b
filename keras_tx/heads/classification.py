"""Heads that answer for a whole sample: a class, a number, whether a sentence follows."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import keras

from keras_tx import contract
from keras_tx.arguments import Rate, Size
from keras_tx.errors import ConfigError
from keras_tx.heads.base import Head, check_labels, project
from keras_tx.metrics import MultiLabelF1, Spearman


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class ClassifierHead(Head):
    """One label for each sample: dropout, then a dense layer that gives logits (batch, classes).

    For images, and for a text or a pair of texts. `labels` are the names of the classes, in order; the
    exported folder has them.
    """

    num_classes: Size
    dropout: Rate = 0.0
    labels: tuple[str, ...] | None = None

    takes_sample: ClassVar[bool] = True
    task: ClassVar[str | None] = contract.TEXT_CLASSIFICATION

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes < 2:
            raise ConfigError(
                f"num_classes={self.num_classes!r}: a classifier tells at least 2 classes apart."
            )
        if self.labels is not None:
            object.__setattr__(self, "labels", check_labels(self.labels, self.num_classes))

    def __call__(self, features: Any) -> Any:
        return project(features, self.num_classes, contract.LOGITS, self.dropout)

    def loss(self) -> keras.losses.Loss:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def metrics(self) -> list[Any]:
        return ["accuracy"]


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class MultiLabelHead(Head):
    """Any number of labels for each sample: logits (batch, classes), each of which is a question of its own.

    What is to be learned is 0 or 1 for each class. For images, and for a text or a pair of texts. `labels`
    are the names of the classes, in order.
    """

    num_classes: Size
    dropout: Rate = 0.0
    labels: tuple[str, ...] | None = None

    takes_sample: ClassVar[bool] = True
    task: ClassVar[str | None] = contract.TEXT_CLASSIFICATION

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels is not None:
            object.__setattr__(self, "labels", check_labels(self.labels, self.num_classes))

    def __call__(self, features: Any) -> Any:
        return project(features, self.num_classes, contract.LOGITS, self.dropout)

    def loss(self) -> keras.losses.Loss:
        return keras.losses.BinaryCrossentropy(from_logits=True)

    def metrics(self) -> list[Any]:
        return [MultiLabelF1(self.num_classes)]


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class RegressionHead(Head):
    """Numbers for each sample (batch, outputs), such as how alike two sentences are.

    `labels` are the names of the numbers.
    """

    outputs: Size = 1
    dropout: Rate = 0.0
    labels: tuple[str, ...] | None = None

    takes_sample: ClassVar[bool] = True
    task: ClassVar[str | None] = contract.TEXT_CLASSIFICATION  # with one label, as Hugging Face has it

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels is not None:
            object.__setattr__(self, "labels", check_labels(self.labels, self.outputs))

    def __call__(self, features: Any) -> Any:
        return project(features, self.outputs, contract.LOGITS, self.dropout)

    def loss(self) -> keras.losses.Loss:
        return keras.losses.MeanSquaredError()

    def metrics(self) -> list[Any]:
        return [Spearman()] if self.outputs == 1 else ["mean_absolute_error"]


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class NextSentenceHead(Head):
    """Whether the second text follows the first: class 0 that it does, 1 that it is a random one."""

    takes_sample: ClassVar[bool] = True
    task: ClassVar[str | None] = contract.TEXT_CLASSIFICATION

    def __call__(self, features: Any) -> Any:
        return project(features, 2, contract.LOGITS)

    def default_labels(self) -> list[str]:
        return list(contract.NEXT_SENTENCE_LABELS)

    def loss(self) -> keras.losses.Loss:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def metrics(self) -> list[Any]:
        return ["accuracy"]
