"""Several devices on TensorFlow: MirroredStrategy trains, keras.distribution warns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.distribute"),
]

PROGRAM = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "export")!r}]
import contextlib, warnings
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras, keras_tx

images = np.tanh(np.random.default_rng(0).standard_normal((16, 8, 8, 3))).astype("float32")
labels = np.arange(16) % 3


def trained(scope):
    keras.utils.set_random_seed(0)
    with scope:
        model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
        # A large epsilon: Adam divides by the gradient's scale, which blows up rounding where it is near 0.
        optimizer = keras_tx.AdamW(
            1e-2, epsilon=1e-2, global_clipnorm=None, rate_factors={{"block_0": 0.5}}
        )
        model.compile(optimizer)
    before = model.get_weights()
    model.fit(images, labels, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return before, model.get_weights()


strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.num_replicas_in_sync == 2
before, one = trained(contextlib.nullcontext())
_, two = trained(strategy.scope())
moved = max(float(np.abs(a - b).max()) for a, b in zip(before, one))
apart = max(float(np.abs(a - b).max()) for a, b in zip(one, two))
print("moved", moved, "apart", apart)
assert moved > 1e-3 and apart < 1e-2 * moved

keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    trained(contextlib.nullcontext())
[warning] = [w for w in caught if "DataParallel is set" in str(w.message)]
assert "tf.distribute.MirroredStrategy" in str(warning.message)
assert warning.filename == "<string>", warning.filename
"""


def test_two_mirrored_devices_train_as_one_does_and_data_parallel_is_warned_of():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
