"""Trains a model on one device and on four virtual ones, and prints its losses, layouts and bytes."""

from __future__ import annotations

import json
import os
import sys
import tempfile

os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import keras
import numpy as np

import keras_tx
from keras_tx.training.training_plan import training_plan

TOKENS = np.random.default_rng(0).integers(4, 64, (16, 12))
IMAGES = np.tanh(np.random.default_rng(0).standard_normal((16, 8, 8, 3))).astype("float32")
LABELS = np.arange(16) % 3
CLASSES = keras_tx.ClassifierHead(4)

# The smallest model of each family whose heads and units are divisible by 4.
CASES = {
    "vit": (lambda: keras_tx.vit("Mu/2", image_size=8, num_heads=4, num_classes=4), IMAGES, LABELS),
    "bert": (
        lambda: keras_tx.bert("tiny", vocabulary_size=64, num_heads=4, head=CLASSES),
        {"input_ids": TOKENS, "attention_mask": TOKENS > 8},
        LABELS,
    ),
    "gpt": (lambda: keras_tx.gpt("pico", vocabulary_size=64, num_heads=4), TOKENS, TOKENS),
    "llama": (
        lambda: keras_tx.gpt("llama-tiny", vocabulary_size=62, num_heads=8, kv_heads=4),
        TOKENS % 62,
        TOKENS % 62,
    ),
    "t5": (
        lambda: keras_tx.t5("tiny", vocabulary_size=64, num_heads=4),
        {"input_ids": TOKENS, "decoder_input_ids": TOKENS},
        TOKENS,
    ),
    "transformer": (
        lambda: keras_tx.transformer("tiny", vocabulary_size=64, num_heads=4),
        {"input_ids": TOKENS, "decoder_input_ids": TOKENS},
        TOKENS,
    ),
}


def train(name: str, distribution: object) -> tuple[keras.Model, list[float]]:
    build, inputs, targets = CASES[name]
    keras.distribution.set_distribution(distribution)
    keras.utils.set_random_seed(0)
    model = build()
    # A large epsilon: Adam divides by the scale of the gradient, which enlarges the rounding of small ones.
    model.compile(keras_tx.AdamW(1e-2, epsilon=1e-2))
    history = model.fit(inputs, targets, batch_size=8, epochs=3, shuffle=False, verbose=0)
    return model, history.history["loss"]


def bytes_per_device(model: keras.Model) -> int:
    variables = [*model.variables, *model.optimizer.variables]
    return sum(variable._value.addressable_shards[0].data.nbytes for variable in variables)


def main(name: str) -> None:
    one, losses = train(name, None)
    meshes: list[dict[str, object]] = []
    report: dict[str, object] = {"losses": losses, "bytes": bytes_per_device(one), "meshes": meshes}
    for data, tensor in ((4, 1), (2, 2), (1, 4)):
        model, distributed = train(name, keras_tx.model_parallel(one.config, data=data, tensor=tensor))
        layouts = {}
        for variable in (*model.variables, *model.optimizer.variables):
            layouts[variable.path.split("/", variable.path.startswith("adam_w"))[-1]] = [
                list(variable.shape),
                list(variable._value.sharding.spec),
            ]
        held = bytes_per_device(model)
        plan = training_plan(one.config, 4, tokens=12)
        layout = next(x for x in plan.layouts if x.tensor == tensor)
        meshes.append({"tensor": tensor, "losses": distributed, "bytes": held, "layouts": layouts})
        meshes[-1]["planned"] = layout.weights + layout.optimizer
    # The last model is divided over four devices: its file loads on one.
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/four.keras"
        model.save(path)
        four = [np.asarray(value) for value in model.get_weights()]
        keras.distribution.set_distribution(None)
        loaded = keras.saving.load_model(path)
        report["loaded_devices"] = max(len(v._value.devices()) for v in loaded.variables)
        report["loaded_equal"] = all(map(np.array_equal, four, loaded.get_weights()))
        report["loaded_optimizer_equal"] = all(
            np.array_equal(a._value, b._value)
            for a, b in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True)
        )
    print(json.dumps(report))


main(sys.argv[1])
