"""How far two results may lie apart, and why. Every test takes its tolerance from here.

A difference is measured against the scale of the expected result, its largest magnitude: rounding errors
are proportional to the numbers that went into a sum, not to an element that happens to cancel to zero.
"""

from __future__ import annotations

import numpy as np

# Two float32 programs of the same formula, whatever their order of summation.
FP32 = 1e-5

# The relative error of rounding once to nearest: half of the distance from 1 to the next number.
UNIT_ROUNDOFF = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}

# A tensor is rounded sixteen times on the longest path through a transformer block: input; norm, kernel,
# query, its scaling, scores, attention weights, attended, output, sum; norm, kernel, widened, activation,
# narrowed, sum. Each adds at most one unit roundoff of its scale, where no sum cancels.
ROUNDINGS = 16
HALF = {
    policy: ROUNDINGS * UNIT_ROUNDOFF[policy.removeprefix("mixed_")]
    for policy in ("mixed_bfloat16", "mixed_float16")
}

# A graph that takes another branch than Keras is off by the whole output. int4, the coarsest precision,
# rounds each weight by at most 1/16 of the largest in its block; few products lose less than this together.
ANOTHER_BRANCH = 0.25


def difference(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the scale of `expected`."""
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    assert np.isfinite(actual).all(), "not finite"
    gap = np.abs(actual.astype("float64") - expected.astype("float64"))
    return float(gap.max(initial=0) / max(np.abs(expected).max(initial=0), np.finfo("float32").tiny))


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float = FP32) -> None:
    error = difference(actual, expected)
    assert error <= tolerance, f"differs by {error:.2e} of the scale, more than {tolerance:.2e}"
