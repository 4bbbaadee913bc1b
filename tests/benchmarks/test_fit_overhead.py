"""The benchmark of the time that `fit` adds to a step; its figures are for quiet machines."""

from __future__ import annotations

import keras
import pytest

from tests.benchmarks import fit_overhead


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="The compiled step is TensorFlow's.")
def test_row():
    name, *times, _ = fit_overhead.row("tiny", steps=2, rounds=1).split("|")[1:-1]
    assert name.strip() == "tiny"
    assert all(float(cell) > 0 for cell in times)
