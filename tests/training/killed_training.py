"""A training for tests/training/test_kill.py, which kills itself with SIGKILL at a random moment.

    python -m tests.training.killed_training SOURCE STATE RESULT [MOMENT SEED]

MOMENT is "batch", "validation", "write" (in the middle of the file) or "rename" (before the file gets its
name). The weights are written to RESULT when the training is complete.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Any

import keras
import numpy as np

from keras_tx.training import fit_resumable
from tests.training.dropout_network import OrderedRows, dropout_network

EPOCHS, EVERY = 6, 3
X = np.random.default_rng(0).normal(size=(31, 4)).astype("float32")
Y = X[:, :1] * 2 - X[:, 1:2]


def pipeline(epoch: int) -> Any:
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(12, seed=epoch)
    return data.batch(4).prefetch(2)


def network() -> keras.Model:
    model = dropout_network()
    adam = keras.optimizers.Adam(0.01, use_ema=True, gradient_accumulation_steps=3)
    model.compile(adam, "mse", metrics=["mae"], jit_compile=False)
    return model


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Kill(keras.callbacks.Callback):
    """Kills the process between two batches, or in the validation."""

    def __init__(self, moment: str, count: int) -> None:
        super().__init__()
        self.moment, self.left = moment, count

    def count(self, moment: str) -> None:
        self.left -= moment == self.moment
        if self.left < 0:
            kill()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.count("batch")

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.count("validation")


def kill_in_save(moment: str, count: int, chance: random.Random) -> None:
    savez, replace, left = np.savez, os.replace, [count]

    def write(file: Any, **arrays: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            savez(file, **arrays)
            file.flush()
            file.truncate(chance.randrange(file.tell()))
            kill()
        savez(file, **arrays)

    def rename(*paths: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            kill()
        replace(*paths)

    if moment == "write":
        np.savez = write  # type: ignore[assignment]
    else:
        os.replace = rename  # type: ignore[assignment]


def main(source: str, state: str, result: str, moment: str = "", seed: str = "0") -> None:
    chance = random.Random(int(seed))
    callbacks: list[Any] = []
    if moment in ("batch", "validation"):
        callbacks = [Kill(moment, chance.randrange(1, 6))]
    elif moment:
        kill_in_save(moment, chance.randrange(3), chance)
    model = network()
    data: Any = {"arrays": (X, Y), "PyDataset": OrderedRows(X, Y), "tf.data": pipeline}[source]
    options = {"batch_size": 4} if source == "arrays" else {}
    history = fit_resumable(
        model,
        data,
        state,
        epochs=EPOCHS,
        every=EVERY,
        validation_data=(X[:12], Y[:12]),
        validation_batch_size=4,
        callbacks=callbacks,
        verbose=0,
        **options,
    ).history
    variables = [*model.variables, *model.optimizer.variables]
    arrays: dict[str, Any] = {f"variable {i}": keras.ops.convert_to_numpy(v) for i, v in enumerate(variables)}
    arrays |= {name: np.array(values) for name, values in history.items()}
    np.savez(result, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
