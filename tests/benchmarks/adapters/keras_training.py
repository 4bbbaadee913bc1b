"""A step of Keras's `train_on_batch`, on the backend that KERAS_BACKEND names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def prepare(place: Path, precision: str) -> None:
    """The subjects are saved by the parent."""


def load(place: Path, precision: str) -> _Loaded:
    import keras

    import keras_tx

    saved = keras_tx.load_model(place / "model.keras", compile=False)
    policy = keras.dtype_policies.serialize(keras.DTypePolicy(precision))
    model = type(saved).from_config(saved.get_config() | {"dtype": policy})
    model.set_weights(saved.get_weights())
    return _Loaded(model)


class _Loaded:
    def __init__(self, model: Any) -> None:
        import keras

        self._model = model
        # "auto" leaves XLA out on a CPU, where it is faster; PyTorch would be given to torch.compile.
        jit = keras.backend.backend() != "torch"
        model.compile(keras.optimizers.AdamW(1e-4), metrics=[], jit_compile=jit)

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        return float(self._model.train_on_batch(x, y))
