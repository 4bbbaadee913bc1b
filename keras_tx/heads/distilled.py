"""The head of a distilled DeiT, which answers from two tokens."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from keras_tx import contract
from keras_tx.heads.classifying import ClassifierHead
from keras_tx.heads.head import project


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class DistilledClassifierHead(ClassifierHead):
    """One label for each image, by a dense layer on the class token and one on the distillation token.

    The logits are the mean of the two, as in Touvron et al., "DeiT"; the model needs `distillation=True`.
    """

    def __call__(self, features: Any) -> Any:
        if self.dropout:
            features = keras.layers.Dropout(self.dropout, dtype="float32", name="head_dropout")(features)
        both = [
            project(features[:, index], self.classes, name)
            for index, name in enumerate(("class_logits", "distillation_logits"))
        ]
        return keras.layers.Average(dtype="float32", name=contract.LOGITS)(both)
