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

TOLERANCES = {"fp32": FLOAT32, "int8": INT8}  # by the precision of a graph, as the manifest names it


def difference(reference: np.ndarray, got: np.ndarray) -> float:
    """The largest difference, in units of the reference's scale."""
    if reference.shape != got.shape or not np.isfinite(got).all():
        return float("inf")
    if reference.size == 0:
        return 0.0
    scale = max(float(np.abs(reference).max()), 1e-6)
    return float(np.abs(got.astype("float64") - reference).max()) / scale
