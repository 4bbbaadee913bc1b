"""Windows and linear biases are recognized by the row of the last token."""

from __future__ import annotations

import numpy as np
import pytest

from keras_tx_onnx.graph.mask_distances import is_linear, window_of


@pytest.mark.parametrize(
    ("row", "window"),
    [
        ([[1, 1, 1]], 3),
        ([[0, 1, 1]], 2),
        ([[0, 0, 0]], None),
        ([[1, 0, 1]], None),
        ([[1, 1, 0]], None),
        ([[0, 1, 1], [0, 0, 1]], None),  # of each head
    ],
)
def test_windows(row, window):
    assert window_of(np.array(row, bool)) == window


@pytest.mark.parametrize("context", [2, 48, 2048, 131072])
@pytest.mark.parametrize("first", [0, -1])
def test_linear_biases_have_rounding_errors(context: int, first: int):
    places = np.arange(context, dtype="float32") + np.float32(first * (context - 1))
    slopes = np.float32(2.0) ** -np.arange(0.5, 4, dtype="float32")[:, None]
    assert is_linear(slopes * places)


@pytest.mark.parametrize("power", [0.99, 1.01, 2])
def test_other_biases_are_not_linear(power: float):
    assert not is_linear(np.arange(48, dtype="float32")[None] ** power)
    assert not is_linear(np.where(np.arange(48) < 8, -16000.0, 0.0)[None])
