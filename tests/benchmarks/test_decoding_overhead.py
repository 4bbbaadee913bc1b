"""The benchmark of the share of Python in a decode step; its figures are for quiet machines."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks import decoding_overhead
from tests.runtime.counting_decoder import make


def test_steps(tmp_path: Path):
    steps = decoding_overhead.steps(str(make(tmp_path / "counter")), tokens=8).splitlines()
    assert "CachedDecoder" in steps[0]
    assert [line.split("|")[1].strip() for line in steps[4:]] == ["16"]  # its context is 40
    assert all(float(cell) >= 0 for cell in steps[4].split("|")[2:-1])
