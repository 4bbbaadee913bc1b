"""Random inputs and random weights for tests, and results as NumPy."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def redraw(layer: Any, seed: int = 1) -> Any:
    """Draws every weight anew: biases at 0 and norms at 1 would hide swapped ones. Outputs stay near 1."""
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_weights:
        if len(weight.shape) == 1:
            weight.assign(rng.uniform(0.5, 1.5, weight.shape) * rng.choice((-1, 1), weight.shape))
        else:
            weight.assign(rng.standard_normal(weight.shape) / math.sqrt(math.prod(weight.shape[:-1])))
    return layer


def redraw_torch(module: Any, seed: int = 1) -> Any:
    """`redraw` for a PyTorch module, whose new weights depend on an unseeded generator."""
    import torch

    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.ndim == 1:
                value = rng.uniform(0.5, 1.5, weight.shape) * rng.choice((-1, 1), weight.shape)
            else:
                value = rng.standard_normal(weight.shape) / math.sqrt(math.prod(weight.shape[1:]))
            weight.copy_(torch.from_numpy(value))
    return module


def built(layer: Any, *inputs: np.ndarray, **more: Any) -> Any:
    """The layer, built by a call on the inputs and redrawn."""
    layer(*inputs, **more)
    return redraw(layer)


def as_numpy(x: Any) -> Any:
    """The float32 (or integer) array of a tensor or weight; a structure of them keeps its structure."""

    def convert(x: Any) -> np.ndarray:
        x = keras.ops.convert_to_tensor(x)
        half = keras.backend.standardize_dtype(x.dtype) in ("bfloat16", "float16")
        return keras.ops.convert_to_numpy(keras.ops.cast(x, "float32") if half else x)

    return keras.tree.map_structure(convert, x)
