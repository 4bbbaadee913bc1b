"""The head of a distilled DeiT, which answers from two tokens."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from keras_tx import contract
from keras_tx.heads.base import project
from keras_tx.heads.classification import ClassifierHead

OUTPUTS = (contract.LOGITS, "cls_logits", "distillation_logits")  # as transformers names them


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class DistilledClassifierHead(ClassifierHead):
    """One label for each image, by a dense layer on the class token and one on the distillation token.

    The logits are the mean of the two, as in Touvron et al., "DeiT"; the model needs `distillation=True`.

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
        return dict(zip(OUTPUTS, (mean, *both), strict=True)) if self.separate else mean

    def loss(self) -> Any:
        if not self.separate:
            return super().loss()
        return {name: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in OUTPUTS[1:]}

    def metrics(self) -> Any:
        # With metrics, Keras requires a target for each output.
        return None if self.separate else super().metrics()
