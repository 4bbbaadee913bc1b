"""The scale and the offset of blocks of 4 bits, searched for the least squared error."""

from __future__ import annotations

import numpy as np

LARGEST = 15  # step of 4 bits
# Shares of a block's range that are cut off at either end. Few numbers are near the ends, and with a smaller
# range all others have finer steps.
CUTS = (0.0, 0.03, 0.06, 0.1, 0.15)


def searched(blocks: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The scale and the smallest number of each block.

    For each candidate of a range, the numbers are rounded to its steps, and scale and offset are fitted to
    these steps by least squares. A block that was rounded to 16 equal steps before keeps its values if it
    uses the smallest and the largest of them, as in Q4_1 of llama.cpp.

    Args:
        blocks: (blocks, numbers of a block).
        weights: of the squared errors, (numbers of a block); by default all are equal.

    Returns:
        Two arrays of float32, (blocks,). The numbers of a block are `least + scale * step`.
    """
    blocks = blocks.astype("float32", copy=False)
    equal = np.ones(blocks.shape[1])
    weights = equal if weights is None or not np.any(weights) else weights
    shares = np.asarray(weights / np.sum(weights), "float32")
    low_end = blocks.min(axis=1)
    size = blocks.max(axis=1) - low_end
    scale, least = size / np.float32(LARGEST), low_end
    error = _error(blocks, shares, _steps(blocks, scale, least), scale, least)
    for low in CUTS:
        for high in CUTS:
            step = np.float32((1 - low - high) / LARGEST) * size
            steps = _steps(blocks, step, low_end + np.float32(low) * size)
            fitted = _fitted(blocks, shares, steps, step)
            candidate = _error(blocks, shares, steps, *fitted)
            better = candidate < error
            error = np.where(better, candidate, error)
            scale, least = np.where(better, fitted[0], scale), np.where(better, fitted[1], least)
    return scale, least


def steps_of(numbers: np.ndarray, scale: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Numbers rounded to the steps 0 to 15, as floats."""
    steps = np.rint((numbers - least) / np.where(scale == 0, np.float32(1), scale))
    return np.clip(steps, 0, LARGEST, out=steps)


def _steps(blocks: np.ndarray, scale: np.ndarray, least: np.ndarray) -> np.ndarray:
    return steps_of(blocks, scale[:, None], least[:, None])


def _fitted(
    blocks: np.ndarray, weights: np.ndarray, steps: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The scale and the offset with the least squared error; `scale` if all steps are equal."""
    mean, middle = blocks @ weights, steps @ weights
    centered = steps - middle[:, None]
    variance = np.square(centered) @ weights
    covariance = (centered * (blocks - mean[:, None])) @ weights
    fitted = np.divide(covariance, variance, out=scale.copy(), where=variance > 0)
    return fitted, mean - fitted * middle


def _error(
    blocks: np.ndarray, weights: np.ndarray, steps: np.ndarray, scale: np.ndarray, least: np.ndarray
) -> np.ndarray:
    return np.square(least[:, None] + scale[:, None] * steps - blocks) @ weights
