"""How far onnxruntime may be from Keras. The one place where tolerances of the export are declared."""

from __future__ import annotations

import numpy as np

# Both sides compute in float32 and sum in another order. Against float64, Keras's float32 is off by 0.2 to 3
# millionths of the output's scale on our models (tests/export/test_tolerances.py measures it anew); the
# two sides together by at most twice that. 1e-4 leaves room for deep models and is far below any mistake.
FLOAT32 = 1e-4


def difference(reference: np.ndarray, got: np.ndarray) -> float:
    """The largest difference, in units of the reference's scale."""
    if reference.shape != got.shape or not np.isfinite(got).all():
        return float("inf")
    if reference.size == 0:
        return 0.0
    scale = max(float(np.abs(reference).max()), 1e-6)
    return float(np.abs(got.astype("float64") - reference).max()) / scale
