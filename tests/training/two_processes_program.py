"""One of two processes that train a ViT together on JAX, each with half of every batch.

    python -m tests.training.two_processes_program ADDRESS PROCESSES INDEX [STATE [STEP]]

With STATE, the training can be resumed; at STEP, the process kills itself. Prints the losses and the sum of
each weight.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np

import keras_tx

address, processes, index = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
state, last_step = [*sys.argv[4:], None, None][:2]
if processes > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    keras.distribution.initialize(address, processes, index)
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))


class Kill(keras.callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if str(self.steps) == last_step:
            os.kill(os.getpid(), signal.SIGKILL)


BATCH = 8
images = np.tanh(np.random.default_rng(0).standard_normal((32, 8, 8, 3))).astype("float32")
part = BATCH // processes
rows = np.arange(32).reshape(-1, BATCH)[:, index * part : (index + 1) * part].ravel()
keras.utils.set_random_seed(0)
model = keras_tx.vit("Mu/2", image_size=8, num_classes=3, dropout=0.1 if state else 0.0)
model.compile(keras_tx.AdamW(1e-2, epsilon=1e-2))
data = (images[rows], rows % 3)
if state:
    history = keras_tx.fit_resumable(
        model, data, state, epochs=3, every=3, batch_size=part, callbacks=[Kill()], verbose=0
    )
else:
    history = model.fit(*data, batch_size=part, epochs=3, shuffle=False, verbose=0)
sums = [float(np.asarray(weight.value, "float64").sum()) for weight in model.weights]
print(json.dumps({"losses": history.history["loss"], "sums": sums}))
