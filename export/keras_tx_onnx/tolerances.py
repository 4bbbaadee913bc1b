"""The largest differences between onnxruntime and Keras that pass, and how a difference is measured."""

from __future__ import annotations

import numpy as np

# Both sides compute in float32 and sum in different orders. Compared with float64, Keras's float32 differs by
# 2e-7 to 3e-6 of the output's scale on the models of keras_tx (tests/export/test_tolerances.py measures it),
# and the two sides together by at most twice that. 1e-4 leaves room for deep models. A wrong graph differs by
# much more.
FLOAT32 = 1e-4

# Layers that Keras quantized to int8 round their inputs to 255 steps. A number between two steps may be
# rounded either way: one step is 1/127 of the largest number of a row, and one of many summands. A wrong
# scale or kernel differs by the whole output.
INT8 = 2e-2

# Layers that Keras quantized to float8 (e4m3fn, with 3 bits of mantissa) round their inputs to steps of an
# eighth of a number at most. As in int8, a number between two steps may be rounded either way.
FLOAT8 = 2.0**-4

# Half precision has 11 bits: one rounding changes a number by at most 2**-11 of it. The longest path through
# a transformer block has sixteen roundings (norm, kernel, query, scores, weights, values, output, residual;
# norm, kernel, hidden layer, activation, output, residual and two casts), each relative to the scale of the
# tensor if nothing cancels. Later blocks round again, but the residual stream grows as well. Measured with
# random weights at full size: 7e-4 to 9e-4.
HALF = 16 * 2.0**-11

# The largest error of a quantized product, in units of the expected error of rounding its weights and inputs,
# if rounding errors are independent and uniform (a variance of a twelfth of a squared step). Measured with
# random weights: 0.3 to 1.05. A wrong scale, axis or zero point has the error of the output itself, which is
# 10 times as large with 4 bits and 80 times with 8.
ROUNDING = 2.0

# Logits at or below this number are masked (-1e4, -1e9, the lowest number of a dtype). They do not count
# towards the scale of an output: relative to -10,000, an error of 1 would be within a tolerance of 1e-4.
MASKED = -1e4


def difference(reference: np.ndarray, computed: np.ndarray) -> float:
    """The largest difference, relative to the scale of the reference; for a masked logit, to itself."""
    if reference.shape != computed.shape or not np.isfinite(computed).all():
        return float("inf")
    masked = reference <= MASKED
    if not masked.any():
        return largest_gap(reference, computed) / max(largest(reference), 1e-6)
    gaps, sizes = np.abs(computed.astype("float64") - reference), np.abs(reference.astype("float64"))
    scale = max(float(sizes.max(where=~masked, initial=0.0)), 1e-6)
    return float((gaps / np.where(masked, sizes, scale)).max(initial=0.0))


def largest_gap(reference: np.ndarray, computed: np.ndarray) -> float:
    """The largest absolute difference. Float32 is not converted: it rounds a difference by 6e-8 of it."""
    kind = "float32" if reference.dtype == computed.dtype == np.float32 else "float64"
    gaps = np.subtract(computed, reference, dtype=kind)
    return float(np.abs(gaps, out=gaps).max(initial=0.0))


def largest(values: np.ndarray) -> float:
    """The largest absolute value."""
    return max(float(values.max(initial=0)), -float(values.min(initial=0)))
