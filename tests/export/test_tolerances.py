"""The tolerance of the export is derived from the rounding error of float32, measured against float64."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx_onnx import tolerances
from tests.drawing import as_numpy, draw, redraw


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has no float64 by default")
@pytest.mark.parametrize(("depth", "width"), [(1, 32), (12, 192)])
def test_derived_from_the_rounding_error_of_the_reference(depth: int, width: int):
    model = redraw(
        keras_tx.vit("Mu/2", image_size=16, num_classes=10, depth=depth, width=width, mlp_dim=4 * width)
    )
    images = draw(2, 16, 16, 3)
    exact = as_numpy(keras_tx.from_checkpoint(model, dtype="float64")(images.astype("float64")))
    error = tolerances.difference(exact, as_numpy(model(images)))
    assert 1e-8 < error < 3e-6
    assert 10 * 2 * error < tolerances.FLOAT32


def test_masked_logits_do_not_count_towards_the_scale():
    reference = np.array([[1.0, -0.5, -1e4, -3e38]], "float32")
    assert tolerances.difference(reference, reference) == 0
    off = np.array([[1.5, -0.5, -1e4, -3e38]], "float32")
    assert tolerances.difference(reference, off) == 0.5
    assert tolerances.difference(reference, np.array([[1.0, -0.5, 0, -3e38]], "float32")) == 1
    assert tolerances.difference(reference[:, 2:], reference[:, 2:]) == 0
    flags = np.array([True, False])
    assert tolerances.difference(flags, ~flags) == 1
    assert tolerances.difference(flags[:0], flags[:0]) == 0
