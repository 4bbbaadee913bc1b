"""AdamW as transformers are trained: no decay on biases, norms and tables, gradients clipped."""

from __future__ import annotations

from typing import Any

import keras

WITHOUT_DECAY = ("bias", "gamma", "beta", "scale", "tokens", "table", "prefix", "rows", "columns")


@keras.saving.register_keras_serializable("keras_tx")
class AdamW(keras.optimizers.AdamW):
    """AdamW that decays matrices only and clips the global norm of the gradients.

    Keras's own forgets which variables do not decay when a model is saved; this one does not.

    >>> optimizer = AdamW(1e-3)

    Args:
        learning_rate, weight_decay, global_clipnorm: as in Keras, with the defaults that small
            transformers train well with.
        without_decay: parts of the names of variables that do not decay.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 5e-4,
        weight_decay: float = 0.05,
        global_clipnorm: float | None = 1.0,
        without_decay: tuple[str, ...] = WITHOUT_DECAY,
        **options: Any,
    ):
        super().__init__(
            learning_rate=learning_rate, weight_decay=weight_decay, global_clipnorm=global_clipnorm, **options
        )
        self.without_decay = tuple(without_decay)
        self.exclude_from_weight_decay(var_names=list(without_decay))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "without_decay": self.without_decay}
