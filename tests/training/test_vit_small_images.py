"""examples/vit_small_images.py at a small size."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_tx.runtime import load

SCRIPT = Path(__file__).parents[2] / "examples" / "vit_small_images.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("vit_small_images", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look up their types
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module


def test_drawings_depend_on_the_seed(example: Any):
    images, labels = example.draw_shapes(6, 0)
    assert images.shape == (6, 48, 48, 3) and images.dtype == np.uint8
    assert labels.tolist() == [0, 1, 2, 0, 1, 2]
    np.testing.assert_array_equal(images, example.draw_shapes(6, 0)[0])
    assert not np.array_equal(images, example.draw_shapes(6, 1)[0])


@pytest.mark.thorough
def test_digits_are_trained_and_exported(example: Any, tmp_path, capsys):
    pytest.importorskip("sklearn")
    accuracy = example.main(["digits", "--epochs", "2", "--out", str(tmp_path / "digits")])
    assert accuracy > 0.15
    printed = capsys.readouterr().out
    assert "digits, recipe, seed 0: test accuracy" in printed and "CPU minutes" in printed
    assert list(load(tmp_path / "digits").labels) == list(map(str, range(10)))
