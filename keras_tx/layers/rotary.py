"""Rotary positions: pairs of a head's channels are turned by an angle that grows with the position."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops


def inverse_frequencies(size: int, base: float) -> np.ndarray:
    """The angle for one step of position, for each of the size / 2 pairs of channels."""
    return (1.0 / base ** (np.arange(0, size, 2) / size)).astype("float32")


def rotate(x: Any, positions: Any, base: float) -> Any:
    """Turns `x` (batch, heads, tokens, size); channel i is paired with channel i + size / 2, as in Llama."""
    half = x.shape[-1] // 2
    positions = ops.cast(positions, "float32")[:, None, :, None]  # (b, 1, s, 1)
    angles = ops.multiply(positions, inverse_frequencies(x.shape[-1], base))  # (b, 1, s, size / 2)
    # Angles reach the context length, far beyond what half precision resolves: turn in float32.
    cosine, sine = ops.cos(angles), ops.sin(angles)
    first, second = ops.cast(x[..., :half], "float32"), ops.cast(x[..., half:], "float32")
    turned = ops.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return ops.cast(turned, x.dtype)
