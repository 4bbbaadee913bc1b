"""Products on Keras's NumPy backend, which an export computes without copies of their arguments."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

from keras_tx_onnx.reading import keras_patches

SCRIPT = """
import keras
import numpy as np
from keras_tx_onnx.reading.keras_patches import patched

random = np.random.default_rng(0)

def drawn(*shape, dtype="float32"):
    return (4 * random.standard_normal(shape)).astype(dtype)

def computed():
    return [keras.ops.matmul(a, b) for a, b in PAIRS]

PAIRS = (
    (drawn(6, 16), drawn(16, 48)),
    (drawn(2, 6, 16), drawn(48, 16).T),
    (drawn(2, 4, 6, 8), drawn(2, 4, 6, 8).swapaxes(2, 3)),
    (drawn(5, 16)[::2], drawn(16)),
    (drawn(6, 16), keras.Variable(drawn(16, 48))),
    (drawn(6, 16), drawn(16, 48, dtype="float16")),
    (drawn(6, 16, dtype="float64"), drawn(16, 48)),
    (drawn(6, 16, dtype="int8"), drawn(16, 48, dtype="int8")),
    (drawn(2, 2), [[1.0, 2.0], [3.0, 4.0]]),
)
usual = computed()
with patched():
    own = computed()
for x, y in zip(usual, own, strict=True):
    assert x.dtype == y.dtype and np.array_equal(x, y), (x.dtype, y.dtype)
"""


def test_products_are_those_of_keras():
    if importlib.util.find_spec("jax") is None:
        pytest.skip('pip install "keras-tx[jax]"')  # which Keras imports for some operations on NumPy
    variables = {"KERAS_BACKEND": "numpy", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", SCRIPT], env={**os.environ, **variables}, check=True)


def test_float32_arguments_are_not_copied():
    x, table = np.ones((6, 16), "float32"), np.ones((48, 16), "float32").T

    def usual(x1, x2):
        raise AssertionError("Keras's own product copies its arguments")

    np.testing.assert_array_equal(keras_patches._matmul_of_numpy(usual)(x, table), np.full((6, 48), 16))
