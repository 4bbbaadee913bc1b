"""Learning rate schedules with a linear warmup."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops

from keras_tx.errors import ConfigError, whole_number


class _Warmup(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, peak: float, steps: int, warmup: int | float = 0.1, floor: float = 0.0):
        super().__init__()
        if isinstance(peak, bool) or not isinstance(peak, int | float) or not 0 < peak < math.inf:
            raise ConfigError(f"peak={peak!r} is out of range. Pass a number above 0.")
        self.peak = float(peak)
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
