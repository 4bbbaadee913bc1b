"""Learning rate schedules with a warmup."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_tx.errors import ConfigError, true_or_false, whole_number


class _Warmup(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, peak: float, steps: int, warmup: int | float = 0.1, floor: float = 0.0):
        super().__init__()
        self.peak = positive("peak", peak)
        self.steps = whole_number("steps", steps)
        is_fraction = isinstance(warmup, float) and 0 <= warmup < 1
        if not is_fraction and (type(warmup) is not int or not 0 <= warmup < self.steps):
            raise ConfigError(
                f"warmup={warmup!r} is out of range. Pass a fraction of the steps such as 0.1, or a number "
                f"of steps below {steps}."
            )
        if isinstance(floor, bool) or not isinstance(floor, int | float) or not 0 <= floor <= 1:
            raise ConfigError(f"floor={floor!r} is out of range. Pass a fraction of the peak, from 0 to 1.")
        self.warmup = warmup
        self.floor = float(floor)
        self.warmup_steps = warmup if type(warmup) is int else math.ceil(warmup * self.steps)

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32")
        rising = step / max(1, self.warmup_steps)
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        falling = self.fall(ops.clip(done, 0.0, 1.0))
        falling = self.floor + (1.0 - self.floor) * falling
        return self.peak * ops.where(step < self.warmup_steps, rising, falling)

    def fall(self, done: Any) -> Any:
        """Returns the fraction of the peak after this fraction of the steps that follow the warmup."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return {"peak": self.peak, "steps": self.steps, "warmup": self.warmup, "floor": self.floor}


@keras.saving.register_keras_serializable("keras_tx")
class WarmupLinear(_Warmup):
    """Linear warmup to `peak`, then linear decay, as for BERT.

    Args:
        peak: the largest learning rate.
        steps: steps of the whole training: batches per epoch times epochs.
        warmup: steps of the warmup, or their fraction of all steps, such as 0.1.
        floor: the last learning rate, also beyond `steps`, as a fraction of the peak.

    Raises:
        ConfigError: an argument is out of range.

    Example:

    >>> schedule = WarmupLinear(1.0, steps=10, warmup=2)
    >>> [float(schedule(step)) for step in (0, 1, 2, 6, 10)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    def fall(self, done: Any) -> Any:
        return 1.0 - done


@keras.saving.register_keras_serializable("keras_tx")
class WarmupCosine(_Warmup):
    """Linear warmup to `peak`, then cosine decay, as for GPT.

    Args:
        peak: the largest learning rate.
        steps: steps of the whole training: batches per epoch times epochs.
        warmup: steps of the warmup, or their fraction of all steps, such as 0.1.
        floor: the last learning rate, also beyond `steps`, as a fraction of the peak.

    Raises:
        ConfigError: an argument is out of range.

    Example:

    >>> schedule = WarmupCosine(1.0, steps=10, warmup=2)
    >>> [round(float(schedule(step)), 3) for step in (0, 2, 4, 10)]
    [0.0, 1.0, 0.854, 0.0]
    """

    def fall(self, done: Any) -> Any:
        return 0.5 * (1.0 + ops.cos(math.pi * done))


@keras.saving.register_keras_serializable("keras_tx")
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warmup to `peak`, then decay with the inverse square root of the step, as for the Transformer.

    Vaswani et al. (2017) have `peak=(width * warmup) ** -0.5`. With `constant=True` the learning rate is
    `peak` during the warmup, as for T5 (Raffel et al., 2020), which has `peak=0.01` and `warmup=10_000`:
    the rate is then `max(step, 10_000) ** -0.5`.

    Args:
        peak: the largest learning rate.
        warmup: steps of the warmup.
        constant: whether the learning rate is constant during the warmup.

    Raises:
        ConfigError: an argument is out of range.

    Example:

    >>> schedule = InverseSquareRoot(1.0, warmup=4)
    >>> [float(schedule(step)) for step in (0, 2, 4, 16, 64)]
    [0.0, 0.5, 1.0, 0.5, 0.25]
    """

    def __init__(self, peak: float, warmup: int, constant: bool = False):
        super().__init__()
        self.peak = positive("peak", peak)
        self.warmup = whole_number("warmup", warmup)
        self.constant = true_or_false("constant", constant)

    def __call__(self, step: Any) -> Any:
        step = ops.cast(step, "float32")
        falling = ops.sqrt(self.warmup / ops.maximum(step, float(self.warmup)))
        rising = 1.0 if self.constant else ops.minimum(step / self.warmup, 1.0)
        return self.peak * falling * rising

    def get_config(self) -> dict[str, Any]:
        return {"peak": self.peak, "warmup": self.warmup, "constant": self.constant}


def positive(name: str, rate: Any) -> float:
    """Returns a learning rate as a float; raises a ConfigError unless it is a number above 0."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise ConfigError(f"{name}={rate!r} is out of range. Pass a number above 0.")
    return float(rate)
