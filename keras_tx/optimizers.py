"""Optimizers of Keras with the settings that are usual for transformers."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

WITHOUT_DECAY = ("bias", "gamma", "beta", "scale", "tokens", "table", "prefix", "rows", "columns")
LAST_LAYERS = ("logits", "^span/")  # of all heads, in paths of variables


@keras.saving.register_keras_serializable("keras_tx")
class AdamW(keras.optimizers.AdamW):
    """AdamW without weight decay of biases, norms and embeddings, and with clipped gradients.

    Unlike Keras's AdamW, a saved model keeps the list of variables without weight decay.

    Args:
        learning_rate: a number or a schedule.
        weight_decay: the factor of the weight decay.
        global_clipnorm: the largest global norm of the gradients; None for no limit.
        without_decay: substrings of the names of variables without weight decay.
        rate_factors: factors of the learning rate, and so of the weight decay, by layer name:
            {"block_0": 0.5}. All other layers have the factor 1.
        options: other options of keras.optimizers.AdamW.

    Example:

    >>> optimizer = AdamW(1e-3, rate_factors={"block_0": 0.5})
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 5e-4,
        weight_decay: float = 0.05,
        global_clipnorm: float | None = 1.0,
        without_decay: tuple[str, ...] = WITHOUT_DECAY,
        rate_factors: dict[str, float] | None = None,
        **options: Any,
    ):
        super().__init__(
            learning_rate=learning_rate, weight_decay=weight_decay, global_clipnorm=global_clipnorm, **options
        )
        self.without_decay = tuple(without_decay)
        self.rate_factors = dict(rate_factors or {})
        self.exclude_from_weight_decay(var_names=list(without_decay))

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self._factors = [self._factor_at(variable.path) for variable in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate * self._factor(variable))

    def _apply_weight_decay(self, variables: list[Any]) -> None:
        # Backends implement weight decay differently, so theirs is called once per factor.
        weight_decay = self.weight_decay
        if weight_decay is None:
            return
        try:
            for factor in dict.fromkeys(map(self._factor, variables)):
                self.weight_decay = weight_decay * factor
                super()._apply_weight_decay([v for v in variables if self._factor(v) == factor])
        finally:
            self.weight_decay = weight_decay

    def _factor(self, variable: Any) -> float:
        return self._factors[self._get_variable_index(variable)]

    def _factor_at(self, path: str) -> float:
        return next((self.rate_factors[part] for part in path.split("/") if part in self.rate_factors), 1.0)

    def get_config(self) -> dict[str, Any]:
        options = {"without_decay": self.without_decay, "rate_factors": self.rate_factors}
        return {**super().get_config(), **options}


@keras.saving.register_keras_serializable("keras_tx")
class Lamb(keras.optimizers.Lamb):
    """LAMB (You et al., 2020) without weight decay of biases, norms and embeddings.

    Keras's Lamb applies weight decay after the update. This class adds it to the update before the trust
    ratio, as in algorithm 2 of the paper. As in the implementation that trained DeiT III, variables without
    weight decay have no trust ratio. A saved model keeps the list of variables without weight decay.

    Args:
        learning_rate: a number or a schedule.
        weight_decay: the factor of the weight decay.
        global_clipnorm: the largest global norm of the gradients; None for no limit.
        without_decay: substrings of the names of variables without weight decay.
        options: other options of keras.optimizers.Lamb.

    Example:

    >>> optimizer = Lamb(3e-3, weight_decay=0.05)
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 3e-3,
        weight_decay: float = 0.05,
        global_clipnorm: float | None = 1.0,
        without_decay: tuple[str, ...] = WITHOUT_DECAY,
        **options: Any,
    ):
        options = {"epsilon": 1e-6, **options}
        super().__init__(
            learning_rate=learning_rate, weight_decay=weight_decay, global_clipnorm=global_clipnorm, **options
        )
        self.without_decay = tuple(without_decay)
        self.exclude_from_weight_decay(var_names=list(without_decay))

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        rate, gradient = ops.cast(learning_rate, variable.dtype), ops.cast(gradient, variable.dtype)
        step = ops.cast(self.iterations + 1, variable.dtype)
        index = self._get_variable_index(variable)
        first, second = self._momentums[index], self._velocities[index]
        self.assign_add(first, (gradient - first) * (1 - self.beta_1))
        self.assign_add(second, (ops.square(gradient) - second) * (1 - self.beta_2))
        mean = first / (1 - ops.power(ops.cast(self.beta_1, variable.dtype), step))
        square = second / (1 - ops.power(ops.cast(self.beta_2, variable.dtype), step))
        update = mean / (ops.sqrt(square) + self.epsilon)
        if self.weight_decay and self._use_weight_decay(variable):
            update = update + self.weight_decay * variable
            norm, size = (ops.sqrt(ops.sum(ops.square(x))) for x in (variable, update))
            update = update * ops.where((norm > 0) & (size > 0), norm / ops.where(size > 0, size, 1), 1)
        self.assign_sub(variable, rate * update)

    def _apply_weight_decay(self, variables: list[Any]) -> None:
        """Does nothing: `update_step` applies it."""

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "without_decay": self.without_decay}


@keras.saving.register_keras_serializable("keras_tx")
class Muon(keras.optimizers.Muon):
    """Muon (Jordan et al., 2024) for the matrices of a transformer, and Adam for all other variables.

    Keras's Muon also updates two-dimensional tables of positions and tokens, and the last layer, unless they
    are excluded by name. This class updates only kernels of dense layers, and none in the layers of
    `exclude_layers`. Only these kernels have weight decay. Updates have the size of those of Adam (Liu et
    al., 2025), so learning rates of AdamW can be used.

    Args:
        learning_rate: a number or a schedule.
        weight_decay: the factor of the weight decay of the matrices.
        adam_weight_decay: the factor of the weight decay of all other variables; None or 0 for none.
        adam_beta_2: decay rate of the second moment of Adam.
        exclude_layers: regular expressions of paths of variables that Adam updates; by default those of
            heads.
        options: other options of keras.optimizers.Muon.

    Example:

    >>> optimizer = Muon(2e-3, weight_decay=0.05)
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 2e-3,
        weight_decay: float = 0.05,
        adam_weight_decay: float | None = 0.0,
        adam_beta_2: float = 0.99,
        exclude_layers: tuple[str, ...] = LAST_LAYERS,
        **options: Any,
    ):
        super().__init__(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            adam_weight_decay=adam_weight_decay,
            adam_beta_2=adam_beta_2,
            exclude_layers=list(exclude_layers),
            **options,
        )

    def _should_use_adamw(self, variable: Any) -> bool:
        return variable.path.split("/")[-1] != "kernel" or super()._should_use_adamw(variable)
