"""Second-order rounding (GPTQ, Frantar et al. 2022): later rows of a kernel compensate for earlier errors.

The kernel is rounded row by row. The error of a row is spread over the rows that are not rounded yet, so that
the product's results on calibration data change the least.

The implementation of onnxruntime has no offsets, only integer zero points, and returns floats without their
scales. That of Keras, which a test compares, would make Keras a requirement of `quantize`, and copies the
kernel for each row.
"""

from __future__ import annotations

import numpy as np

from keras_tx_onnx.quantizing.block_ranges import searched, steps_of

DAMPING = 0.01  # of the mean square of the inputs, added to each, as in the paper


def rounded(kernel: np.ndarray, moments: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps of a kernel (inner, outer), and scale and smallest number of each block.

    Args:
        kernel: whose number of rows is a multiple of the block.
        moments: the second moments of the product's input, (inner, inner).
        block: inputs that share a scale.

    Returns:
        Steps (outer, inner) of uint8, and scales and smallest numbers (outer, blocks) of float32.
    """
    inner, outer = kernel.shape
    count = inner // block
    importance = _damped(moments)
    spread = _inverse_factor(importance)
    importance = np.diagonal(importance).copy()  # which frees the moments
    rest = np.array(kernel, "float32")  # what is not rounded yet, with the errors of what is
    steps = np.empty((inner, outer), "uint8")
    scales, least = np.empty((count, outer), "float32"), np.empty((count, outer), "float32")
    for index in range(count):
        start, end = index * block, (index + 1) * block
        own = rest[start:end]
        scale, low = searched(own.T, importance[start:end])
        scales[index], least[index] = scale, low
        errors = np.empty_like(own)
        for row in range(block):
            at = start + row
            step = steps_of(own[row], scale, low)
            steps[at] = step
            errors[row] = (own[row] - (low + scale * step)) / spread[at, at]
            own[row + 1 :] -= np.outer(spread[at, at + 1 : end], errors[row])
        rest[end:] -= spread[start:end, end:].T @ errors
    return steps.T, scales.T, least.T


def _damped(moments: np.ndarray) -> np.ndarray:
    """The moments with a small multiple of the identity: an input that is always 0 has an inverse, too."""
    moments = np.array(moments, "float64")
    mean = float(np.diagonal(moments).mean())
    moments[np.diag_indices(len(moments))] += DAMPING * mean if mean > 0 else 1.0
    return moments


def _inverse_factor(moments: np.ndarray) -> np.ndarray:
    """The upper triangular factor of the inverse: each row spreads an error over the rows behind it."""
    return np.linalg.cholesky(np.linalg.inv(moments)).T.astype("float32")
