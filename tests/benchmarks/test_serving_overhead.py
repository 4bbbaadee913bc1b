"""The measurement of the server's own time runs; its numbers are for a quiet machine."""

from __future__ import annotations

import math

import pytest

from tests.benchmarks.serving_overhead import measure


@pytest.mark.thorough
def test_measurement_runs(exported_folders):
    folder = exported_folders["bert, classifier"].path
    differences = measure(folder, text="The cat sat on the mat.", requests=5, rounds=2)
    assert len(differences) == 2 and all(map(math.isfinite, differences))
