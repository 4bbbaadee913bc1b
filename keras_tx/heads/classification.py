"""Heads with one output per sample: classes, numbers, and whether a sentence follows another."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import keras

from keras_tx import contract
from keras_tx.arguments import Classes, Rate, Size
from keras_tx.heads.base import Head, project
from keras_tx.metrics import MultiLabelF1, Spearman

# The outputs of a separate DistilledClassifierHead, as transformers names them.
DISTILLED_OUTPUTS = (contract.LOGITS, "cls_logits", "distillation_logits")


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class ClassifierHead(Head):
    """One class per sample, for images, texts and pairs of texts: logits (batch, classes).

    Targets are integers from 0 to `num_classes` - 1.

    >>> import keras_tx
    >>> head = ClassifierHead(3, labels=("daisy", "rose", "tulip"))
    >>> keras_tx.bert("tiny", vocabulary_size=100, head=head).output_shape
    (None, 3)

    Args:
        num_classes: the number of classes, at least 2.
        dropout: the dropout rate before the dense layer.
        labels: the names of the classes, in order; an exported folder contains them.
    """

    num_classes: Classes
    dropout: Rate = 0.0
    labels: tuple[str, ...] | None = None

    takes_sample: ClassVar[bool] = True
    task: ClassVar[str | None] = contract.TEXT_CLASSIFICATION

    def __call__(self, features: Any) -> Any:
        return project(features, self.num_classes, contract.LOGITS, self.dropout)

    def loss(self) -> Any:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def metrics(self) -> Any:
        return ["accuracy"]


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class DistilledClassifierHead(ClassifierHead):
    """The classifier of a distilled DeiT: a dense layer on each of two tokens.

    The logits are the mean of both, as in Touvron et al., "Training data-efficient image transformers &
    distillation through attention". The model needs `distillation=True`.

    Args:
        separate: whether the output is a dict of the mean, `logits`, and the logits of both layers,
            `cls_logits` and `distillation_logits`. Targets are then {"cls_logits": labels,
            "distillation_logits": labels of a teacher}, and the loss is the sum of both.
    """

    separate: bool = False

    def __call__(self, features: Any) -> Any:
        if self.dropout:
            features = keras.layers.Dropout(self.dropout, dtype="float32", name="head_dropout")(features)
        both = [
            project(features[:, index], self.num_classes, name)
            for index, name in enumerate(("class_logits", "distillation_logits"))
        ]
        mean = keras.layers.Average(dtype="float32", name=contract.LOGITS)(both)
        return dict(zip(DISTILLED_OUTPUTS, (mean, *both), strict=True)) if self.separate else mean

    def loss(self) -> Any:
        if not self.separate:
            return super().loss()
        return {name: ClassifierHead.loss(self) for name in DISTILLED_OUTPUTS[1:]}

    def metrics(self) -> Any:
        # With metrics, Keras requires a target for each output.
        return None if self.separate else super().metrics()


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class MultiLabelHead(Head):
    """Any number of classes per sample: independent logits (batch, classes).

    Targets are 0 or 1 for each class.

    Args:
        num_classes, dropout, labels: as for `ClassifierHead`; one class is enough.
    """

    num_classes: Size
    dropout: Rate = 0.0
    labels: tuple[str, ...] | None = None

    takes_sample: ClassVar[bool] = True
    task: ClassVar[str | None] = contract.TEXT_CLASSIFICATION

    def __call__(self, features: Any) -> Any:
        return project(features, self.num_classes, contract.LOGITS, self.dropout)

    def loss(self) -> keras.losses.Loss:
        return keras.losses.BinaryCrossentropy(from_logits=True)

    def metrics(self) -> list[Any]:
        return [MultiLabelF1(self.num_classes)]


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class RegressionHead(Head):
    """Numbers for each sample (batch, outputs), such as the similarity of two sentences.

    Args:
        outputs: how many numbers.
        dropout: the dropout rate before the dense layer.
        labels: the names of the numbers, in order.
    """

    outputs: Size = 1
    dropout: Rate = 0.0
    labels: tuple[str, ...] | None = None

    takes_sample: ClassVar[bool] = True
    task: ClassVar[str | None] = contract.TEXT_CLASSIFICATION  # with one label, as in Hugging Face's configs

    def __call__(self, features: Any) -> Any:
        return project(features, self.outputs, contract.LOGITS, self.dropout)

    def loss(self) -> keras.losses.Loss:
        return keras.losses.MeanSquaredError()

    def metrics(self) -> list[Any]:
        return [Spearman()] if self.outputs == 1 else ["mean_absolute_error"]


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class NextSentenceHead(Head):
    """Whether the second text follows the first (class 0) or is a random one (class 1)."""

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
