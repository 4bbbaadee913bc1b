"""Position tables in NumPy: sine-cosine, Fourier features, and resized learned tables."""

from __future__ import annotations

import math

import numpy as np


def sine_cosine(grid: tuple[int, ...], width: int, halves: bool = False) -> np.ndarray:
    """Fixed positions (tokens, width) of a sequence or a grid.

    For a sequence, sines and cosines alternate, PE(p, 2i) = sin(p / 10000^(2i/width)), as in Vaswani et al.;
    with `halves`, all sines come before all cosines.
    For a grid, each axis has the same share of the width, with the sines first. The last axis is the first
    share: column, row, as in Beyer et al., "Better plain ViT baselines"; column, row, time for a video.
    """
    if len(grid) == 1:
        angles = np.outer(np.arange(grid[0]), 10000.0 ** (-np.arange(0, width, 2) / width))
        waves = np.stack([np.sin(angles), np.cos(angles)], axis=1 if halves else -1)
        return waves.reshape(grid[0], width).astype("float32")
    count = width // (2 * len(grid))
    frequencies = 10000.0 ** (-np.arange(count) / max(count - 1, 1))
    angles = [np.outer(axis.ravel(), frequencies) for axis in np.indices(grid)[::-1]]
    waves = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
    return np.concatenate(waves, axis=-1).astype("float32")


def fourier_features(grid: tuple[int, ...], bands: int) -> np.ndarray:
    """Coordinates from -1 to 1 with their sines and cosines, (tokens, axes * (2 * bands + 1)).

    The frequencies are evenly spaced from 1 to half the resolution (the Nyquist frequency), as in Jaegle et
    al., "Perceiver".
    """
    features = []
    for size, index in zip(grid, np.indices(grid), strict=True):
        coordinate = np.linspace(-1.0, 1.0, size)[index.ravel()] if size > 1 else np.zeros(index.size)
        angles = math.pi * np.outer(coordinate, np.linspace(1.0, max(size / 2, 1.0), bands))
        features += [coordinate[:, None], np.sin(angles), np.cos(angles)]
    return np.concatenate(features, axis=-1).astype("float32")


def resize_grid(
    table: np.ndarray, old: tuple[int, ...], new: tuple[int, ...], kind: str = "plain"
) -> np.ndarray:
    """Resizes a table (prod(old), width) to (prod(new), width), bicubically on each axis.

    The kinds are those of PyTorch, which published checkpoints use: "plain" (a = -0.75, half-pixel centers,
    repeated edges), "aligned" (the same with aligned corners), and "antialiased" (a = -0.5, a kernel as wide
    as a new cell, cropped at the edges).
    """
    values = table.reshape(*old, -1).astype("float64")
    for axis, (before, after) in enumerate(zip(old, new, strict=True)):
        if before != after:
            matrix = _antialiased(before, after) if kind == "antialiased" else _cubic(before, after, kind)
            values = np.moveaxis(np.tensordot(matrix, values, axes=(1, axis)), 0, axis)
    return values.reshape(math.prod(new), -1).astype(table.dtype)


def _antialiased(before: int, after: int) -> np.ndarray:
    """The matrix (after, before) that resizes one axis with Pillow's kernel."""
    a = -0.5
    scale = before / after
    widened = max(scale, 1.0)
    centre = (np.arange(after)[:, None] + 0.5) * scale
    distance = np.abs(np.arange(before) + 0.5 - centre) / widened
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    matrix = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
    return matrix / matrix.sum(axis=1, keepdims=True)


def _cubic(before: int, after: int, kind: str) -> np.ndarray:
    """The matrix (after, before) that resizes one axis."""
    a = -0.75
    centre = (np.arange(after) + 0.5) * before / after - 0.5
    if kind == "aligned":
        centre = np.arange(after) * (before - 1) / max(after - 1, 1)
    left = np.floor(centre).astype(int)
    matrix = np.zeros((after, before))
    for offset in range(-1, 3):
        distance = np.abs(centre - (left + offset))
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((distance - 5) * distance + 8) * distance * a - 4 * a
        weight = np.where(distance <= 1, near, far)
        np.add.at(matrix, (np.arange(after), np.clip(left + offset, 0, before - 1)), weight)
    return matrix
