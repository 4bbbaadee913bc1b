"""Rotary positions: pairs of channels of a head are rotated by an angle proportional to the position."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_tx.errors import ConfigError, nearest

# The parameters of each kind of scaling beyond the trained length, as named by Hugging Face.
SCALINGS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def check_scaling(scaling: Any) -> dict[str, Any] | None:
    """Returns the scaling as a dict; raises a ConfigError if it is invalid."""
    if scaling is None:
        return None
    kind = scaling.get("rope_type") if isinstance(scaling, Mapping) else None
    if kind not in SCALINGS:
        raise ConfigError(
            f"rotary_scaling={scaling!r}, expected a dict with 'rope_type'. {nearest(str(kind), SCALINGS)}"
        )
    if set(scaling) != {"rope_type", *SCALINGS[kind]}:
        raise ConfigError(
            f"rotary_scaling={dict(scaling)!r}: {kind!r} requires exactly {', '.join(SCALINGS[kind])}."
        )
    for name in SCALINGS[kind]:
        value = scaling[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ConfigError(f"rotary_scaling has {name}={value!r}, expected a positive number.")
    if kind == "llama3" and scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
        raise ConfigError(
            f"rotary_scaling has low_freq_factor={scaling['low_freq_factor']}, expected less than "
            f"high_freq_factor={scaling['high_freq_factor']}."
        )
    return dict(scaling)


def inverse_frequencies(size: int, base: float, scaling: Mapping[str, Any] | None = None) -> np.ndarray:
    """The angle per position for each of the size / 2 pairs of channels."""
    frequencies = 1.0 / base ** (np.arange(0, size, 2) / size)
    if scaling is not None:
        slow = frequencies / scaling["factor"]
        # Pairs with many rotations over the trained length stay as they are, those with few are scaled.
        unscaled = 0.0
        if scaling["rope_type"] == "llama3":
            turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
            low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
            unscaled = np.clip((turns - low) / (high - low), 0.0, 1.0)
        frequencies = (1 - unscaled) * slow + unscaled * frequencies
    return frequencies.astype("float32")


def grid_angles(grid: tuple[int, int], size: int, base: float, prefix_tokens: int = 0) -> np.ndarray:
    """The angles (tokens, size / 2) of the patches of a grid, as in DINOv3, after those of the prefix, 0.

    Half of the pairs of channels turn with the row of a patch, the others with its column. Both are between
    -1 and 1, whatever the number of patches.
    """
    frequencies = 2 * math.pi / base ** (np.arange(0, size, 4) / size)
    rows, columns = ((2 * np.arange(count) + 1) / count - 1 for count in grid)
    places = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2, 1)
    angles = (places * frequencies).reshape(-1, size // 2)
    return np.pad(angles, ((prefix_tokens, 0), (0, 0))).astype("float32")


def rotate(x: Any, positions: Any, base: float, scaling: Mapping[str, Any] | None = None) -> Any:
    """Rotates `x` (batch, heads, tokens, size) by angles proportional to the positions (batch, tokens)."""
    positions = ops.cast(positions, "float32")[:, None, :, None]  # (b, 1, s, 1)
    return turn(x, ops.multiply(positions, inverse_frequencies(x.shape[-1], base, scaling)))


def turn(x: Any, angles: Any) -> Any:
    """Rotates `x` (batch, heads, tokens, size) by angles that broadcast to (batch, heads, tokens, size / 2).

    Channel i pairs with channel i + size / 2, as in Llama.
    """
    half = x.shape[-1] // 2
    # Half precision does not resolve angles as large as the context length.
    cosine, sine = ops.cos(angles), ops.sin(angles)
    first, second = ops.cast(x[..., :half], "float32"), ops.cast(x[..., half:], "float32")
    rotated = ops.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return ops.cast(rotated, x.dtype)
