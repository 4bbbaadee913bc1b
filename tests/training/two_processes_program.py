"""One of two processes that train a ViT together on JAX, each with half of every batch."""

from __future__ import annotations

import os
import sys

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np

import keras_tx

address, processes, index = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if processes > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    keras.distribution.initialize(address, processes, index)
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))

BATCH = 8
images = np.tanh(np.random.default_rng(0).standard_normal((16, 8, 8, 3))).astype("float32")
part = BATCH // processes
rows = np.arange(16).reshape(-1, BATCH)[:, index * part : (index + 1) * part].ravel()
keras.utils.set_random_seed(0)
model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
model.compile(keras_tx.AdamW(1e-2, epsilon=1e-2))
history = model.fit(images[rows], rows % 3, batch_size=part, epochs=3, shuffle=False, verbose=0)
print(history.history["loss"])
