"""Learning rates that rise from 0 to their peak and then fall, as transformers are trained."""

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
            raise ConfigError(f"The learning rate is {peak!r}, expected a number above 0.")
        self.peak = float(peak)
        self.steps = whole_number("steps", steps)
        share = isinstance(warmup, float) and 0 <= warmup < 1
        if not share and (type(warmup) is not int or not 0 <= warmup < self.steps):
            raise ConfigError(
                f"warmup={warmup!r}, expected a share of the steps such as 0.1, or a number below {steps}."
            )
        if isinstance(floor, bool) or not isinstance(floor, int | float) or not 0 <= floor <= 1:
            raise ConfigError(f"floor={floor!r}, expected a share of the peak, from 0 to 1.")
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
        """The share of the peak when this share of the steps after the warm-up is done."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        return {"peak": self.peak, "steps": self.steps, "warmup": self.warmup, "floor": self.floor}


@keras.saving.register_keras_serializable("keras_tx")
class WarmupLinear(_Warmup):
    """Rises to `peak` in a line, then falls in a line, to 0 unless there is a floor: BERT's.

    >>> schedule = WarmupLinear(1.0, steps=10, warmup=2)
    >>> [float(schedule(step)) for step in (0, 1, 2, 6, 10)]
    [0.0, 0.5, 1.0, 0.5, 0.0]

    Args:
        steps: of the whole training: batches of an epoch times epochs.
        warmup: how many of them the rate rises; a number, or a share such as 0.1.
        floor: the share of the peak that the rate ends with, and stays at beyond `steps`.
    """

    def fall(self, done: Any) -> Any:
        return 1.0 - done


@keras.saving.register_keras_serializable("keras_tx")
class WarmupCosine(_Warmup):
    """Rises to `peak` in a line, then falls along half a wave of a cosine: GPT's.

    >>> schedule = WarmupCosine(1.0, steps=10, warmup=2)
    >>> [round(float(schedule(step)), 3) for step in (0, 2, 4, 10)]
    [0.0, 1.0, 0.854, 0.0]

    Args:
        steps, warmup, floor: as in WarmupLinear.
    """

    def fall(self, done: Any) -> Any:
        return 0.5 * (1.0 + ops.cos(math.pi * done))
