"""Optimizers of Keras with the settings that are usual for transformers."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_tx.errors import ConfigError

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
class ScheduleFreeAdamW(keras.optimizers.ScheduleFreeAdamW):
    """ScheduleFreeAdamW (Defazio et al., 2024), which needs no learning rate schedule.

    During training, the model has weights between the last ones and their average. Keras leaves these in the
    model, and its average is wrong on TensorFlow and PyTorch. This class assigns the average at the end of
    `fit`, as `use_ema=True` does, so that `evaluate`, `save` and an export use it. Another `fit` continues
    from the average. Biases, norms and embeddings have no weight decay; a saved model keeps their list.

    Args:
        learning_rate: a number.
        weight_decay: the factor of the weight decay.
        without_decay: substrings of the names of variables without weight decay.
        options: other options of keras.optimizers.ScheduleFreeAdamW, such as `warmup_steps`.

    Example:

    >>> optimizer = ScheduleFreeAdamW(2.5e-3, warmup_steps=100)
    """

    def __init__(
        self,
        learning_rate: float = 2.5e-3,
        weight_decay: float = 0.05,
        without_decay: tuple[str, ...] = WITHOUT_DECAY,
        **options: Any,
    ):
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, **options)
        self.without_decay = tuple(without_decay)
        self.exclude_from_weight_decay(var_names=list(without_decay))

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        # In that of Keras 3.15, the average is computed from the next weights on TensorFlow and PyTorch.
        rate, gradient = ops.cast(learning_rate, variable.dtype), ops.cast(gradient, variable.dtype)
        step = ops.cast(self.iterations + 1, variable.dtype)
        if self.warmup_steps:
            rate = rate * ops.minimum(step / self.warmup_steps, 1.0)
        index = self._get_variable_index(variable)
        last, square = self._momentums[index], self._velocities[index]
        average = (variable - (1 - self.beta_1) * last) / self.beta_1
        self.assign_add(square, (ops.square(gradient) - square) * (1 - self.beta_2))
        correction = 1 - ops.power(ops.cast(self.beta_2, variable.dtype), step)
        update = gradient / (ops.sqrt(square / correction) + self.epsilon)
        if self.weight_decay and self._use_weight_decay(variable):
            update = update + self.weight_decay * variable
        self.assign_sub(last, rate * update)
        average = average + (last - average) / step
        self.assign(variable, (1 - self.beta_1) * last + self.beta_1 * average)

    def _apply_weight_decay(self, variables: list[Any]) -> None:
        """Does nothing: `update_step` applies it."""

    def finalize_variable_values(self, var_list: list[Any]) -> None:
        for variable in var_list if self.built else ():
            last = self._momentums[self._get_variable_index(variable)]
            average = (variable - (1 - self.beta_1) * last) / self.beta_1
            variable.assign(average)
            last.assign(average)
        super().finalize_variable_values(var_list)

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


def check_averages(optimizer: Any) -> None:
    """Raises a ConfigError for an optimizer that leaves other weights than their average in the model."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if isinstance(inner, keras.optimizers.ScheduleFreeAdamW) and not isinstance(inner, ScheduleFreeAdamW):
        raise ConfigError(
            "optimizer=keras.optimizers.ScheduleFreeAdamW does not assign the averaged weights after fit, so "
            "evaluate, save and export would use others. Pass keras_tx.ScheduleFreeAdamW."
        )
