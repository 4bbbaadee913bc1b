"""What a model answers: a head turns features into logits, and knows the loss and metrics for them."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from keras_tx import contract
from keras_tx.errors import ConfigError, whole_number


@keras.saving.register_keras_serializable("keras_tx")
@dataclasses.dataclass(frozen=True)
class ClassifierHead:
    """One label for each sample: dropout, then a dense layer that gives logits (batch, classes)."""

    classes: int
    dropout: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", whole_number("classes", self.classes))
        if self.classes < 2:
            raise ConfigError(f"classes={self.classes!r}: a classifier tells at least 2 classes apart.")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout={self.dropout!r}: expected a rate from 0 up to, not including, 1.")

    def __call__(self, features: Any) -> Any:
        if self.dropout:
            features = keras.layers.Dropout(self.dropout, dtype="float32", name="head_dropout")(features)
        # Logits stay float32 under mixed precision: the loss takes their exponentials.
        dense = keras.layers.Dense(
            self.classes,
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02),
            dtype="float32",
            name=contract.LOGITS,
        )
        return dense(features)

    def loss(self) -> keras.losses.Loss:
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def metrics(self) -> list[Any]:
        return ["accuracy"]

    def get_config(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ClassifierHead:
        return cls(**config)
