"""How far onnxruntime may be from Keras. The one place where tolerances of the export are declared."""

from __future__ import annotations

import numpy as np

# Both sides compute in float32 and sum in another order. Against float64, Keras's float32 is off by 0.2 to 3
# millionths of the output's scale on our models (tests/export/test_tolerances.py measures it anew); the
# two sides together by at most twice that. 1e-4 leaves room for deep models and is far below any mistake.
FLOAT32 = 1e-4

# Layers that Keras quantized to int8 round what they take to 255 steps. A number on the border of two steps
# may fall to either side: one step is 1/127 of the largest number of a row, and one of many that are summed.
# A wrong scale or kernel is off by the whole output.
INT8 = 2e-2

# Half precision keeps 11 bits: one rounding is off by at most 2**-11 of a number. A tensor is rounded sixteen
# times on the longest path through a transformer block (norm, kernel, query, scores, weights, attended,
# output, sum; norm, kernel, widened, activation, narrowed, sum and two casts), each time by the scale of
# the tensor where nothing cancels. What later blocks add is rounded anew, but the stream that they add to
# grows as well. Measured with random weights at full size: 7e-4 to 9e-4.
HALF = 16 * 2.0**-11

# What a quantized product may lose, in units of what rounding its weights and its input to their steps costs
# if errors are independent and spread evenly over a step (a variance of a twelfth of it, squared). Measured
# with random weights: 0.3 to 1.05. A wrong scale, axis or zero point loses the output itself, which is 10
# times as much with 4 bits and 80 times with 8.
ROUNDING = 2.0

TOLERANCES = {
    "fp32": FLOAT32,
    "fp16": HALF,
    "int8": INT8,
}  # by the precision of a graph, as the manifest names it


# Logits at or below it belong to masked places (-1e4, -1e9, the lowest number of a type). They do not count
# towards an output's scale: beside -10,000 a logit could be off by 1 within a tolerance of 1e-4.
MASKED = -1e4


def difference(reference: np.ndarray, got: np.ndarray) -> float:
    """The largest difference, in units of the reference's scale; of masked logits, in units of each."""
    if reference.shape != got.shape or not np.isfinite(got).all():
        return float("inf")
    gaps, sizes = np.abs(got.astype("float64") - reference), np.abs(reference.astype("float64"))
    masked = reference <= MASKED
    scale = max(float(sizes.max(where=~masked, initial=0.0)), 1e-6)
    return float((gaps / np.where(masked, sizes, scale)).max(initial=0.0))
