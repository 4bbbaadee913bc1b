"""Compares a ViT with the outputs of a reference implementation for the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors.numpy import load_file

from tests.drawing import as_numpy
from tests.tolerances import FP32, assert_close

RESIZED = 1e-4  # positions for another image size, which the reference resizes in float32


def expected_of(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "expected.safetensors")


def compare(model: Any, expected: dict[str, np.ndarray]) -> None:
    """Every hidden state, the normalized tokens and the output."""
    blocks = [model.get_layer(f"block_{index}") for index in range(model.config.depth)]
    parts = [blocks[0].input, *(block.output for block in blocks)]
    for mine, theirs in zip(
        as_numpy(keras.Model(model.input, parts)(expected["images"])), expected["hidden"], strict=True
    ):
        assert_close(mine, theirs)
    if "tokens" in expected:
        tokens = keras.Model(model.input, model.get_layer("norm").output)
        assert_close(as_numpy(tokens(expected["images"])), expected["tokens"])
    assert_close(as_numpy(model(expected["images"])), expected["output"], FP32)


def compare_resized(load: Callable[..., Any], expected: dict[str, np.ndarray]) -> None:
    for name in ("larger", "smaller"):
        images = expected[f"{name}/images"]
        model = load(image_size=images.shape[1:3])
        assert_close(as_numpy(model(images)), expected[f"{name}/output"], RESIZED)
