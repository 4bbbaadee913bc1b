"""Heads with one output per sample: classes, numbers, and whether a sentence follows another."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import keras

from keras_tx import contract
from keras_tx.arguments import Classes, Rate, Size
from keras_tx.errors import ConfigError
from keras_tx.heads.base import Head, check_pooling, project
from keras_tx.losses import ClassCrossentropy
from keras_tx.metrics import ClassAccuracy, MultiLabelF1, Spearman

POOLINGS = ("average",)
DISTILLED_LAYERS = ("class_logits", "distillation_logits")
# The outputs of a separate DistilledClassifierHead, as transformers names them.
DISTILLED_OUTPUTS = (contract.LOGITS, "cls_logits", "distillation_logits")


@dataclasses.dataclass(frozen=True)
class SampleHead(Head):
    """Base class of the heads with a dense layer on one vector per sample.

    Subclasses have the fields `dropout` and `pooling`.
    """

    takes_sample: ClassVar[bool] = True
    task: ClassVar[str | None] = contract.TEXT_CLASSIFICATION
    class_layers: ClassVar[tuple[str, ...]] = (contract.LOGITS,)

    def __post_init__(self) -> None:
        super().__post_init__()
        pooling = getattr(self, "pooling", None)
        if pooling is not None:
            check_pooling(pooling, POOLINGS)

    @property
    def units(self) -> int:
        """The number of logits."""
        raise NotImplementedError

    def __call__(self, features: Any, use_bias: bool = True) -> Any:
        return project(features, self.units, contract.LOGITS, getattr(self, "dropout", 0.0), use_bias)


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class ClassifierHead(SampleHead):
    """One class per sample, for images, texts and pairs of texts: logits (batch, classes).

    Targets are integers from 0 to `num_classes` - 1, or class probabilities (batch, classes), as MixUp and
    CutMix return.

    >>> import keras_tx
    >>> head = ClassifierHead(3, labels=("daisy", "rose", "tulip"))
    >>> keras_tx.bert("tiny", vocabulary_size=100, head=head).output_shape
    (None, 3)

    Args:
        num_classes: the number of classes, at least 2.
        dropout: the dropout rate before the dense layer.
        labels: the names of the classes, in order; an exported folder contains them.
        pooling: "average" for the mean of the real tokens, or of the patches of an image. None means the
            vector of the family: BERT's pooled class token, GPT's last token, or the `pooling` of a ViT.
        label_smoothing: the fraction of the target that is spread evenly over all classes.
    """

    num_classes: Classes
    dropout: Rate = 0.0
    labels: tuple[str, ...] | None = None
    pooling: str | None = None
    label_smoothing: Rate = 0.0

    @property
    def units(self) -> int:
        return self.num_classes

    def loss(self) -> Any:
        return ClassCrossentropy(self.label_smoothing)

    def metrics(self) -> Any:
        return [ClassAccuracy()]


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

    class_layers: ClassVar[tuple[str, ...]] = DISTILLED_LAYERS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooling is not None:
            raise ConfigError(
                f"pooling={self.pooling!r} is not supported by DistilledClassifierHead, which reads the "
                "class token and the distillation token. Omit it."
            )

    def __call__(self, features: Any, use_bias: bool = True) -> Any:
        if self.dropout:
            features = keras.layers.Dropout(self.dropout, dtype="float32", name="head_dropout")(features)
        both = [
            project(features[:, index], self.num_classes, name, use_bias=use_bias)
            for index, name in enumerate(DISTILLED_LAYERS)
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
class MultiLabelHead(SampleHead):
    """Any number of classes per sample: independent logits (batch, classes).

    Targets are 0 or 1 for each class.

    Args:
        num_classes, dropout, labels, pooling: as for `ClassifierHead`; one class is enough.
        label_smoothing: the targets 0 and 1 move toward 0.5 by half of this value.
    """

    num_classes: Size
    dropout: Rate = 0.0
    labels: tuple[str, ...] | None = None
    pooling: str | None = None
    label_smoothing: Rate = 0.0

    @property
    def units(self) -> int:
        return self.num_classes

    def loss(self) -> keras.losses.Loss:
        return keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=self.label_smoothing)

    def metrics(self) -> list[Any]:
        return [MultiLabelF1(self.num_classes)]


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class RegressionHead(SampleHead):
    """Numbers for each sample (batch, outputs), such as the similarity of two sentences.

    Args:
        outputs: how many numbers.
        dropout: the dropout rate before the dense layer.
        labels: the names of the numbers, in order.
        pooling: as for `ClassifierHead`.
    """

    outputs: Size = 1
    dropout: Rate = 0.0
    labels: tuple[str, ...] | None = None
    pooling: str | None = None

    @property
    def units(self) -> int:
        return self.outputs

    def loss(self) -> keras.losses.Loss:
        return keras.losses.MeanSquaredError()

    def metrics(self) -> list[Any]:
        return [Spearman()] if self.outputs == 1 else ["mean_absolute_error"]


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class NextSentenceHead(SampleHead):
    """Whether the second text follows the first (class 0) or is a random one (class 1)."""

    @property
    def units(self) -> int:
        return 2

    def default_labels(self) -> list[str]:
        return list(contract.NEXT_SENTENCE_LABELS)

    def loss(self) -> keras.losses.Loss:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def metrics(self) -> list[Any]:
        return ["accuracy"]
