"""examples/vit_photographs.py at a small size."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "examples" / "vit_photographs.py"


@pytest.mark.thorough
def test_reports_and_figures(tmp_path: Path):
    spec = importlib.util.spec_from_file_location("vit_photographs", SCRIPT)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    accuracy = example.main(["--out", str(tmp_path), "--count", "40", "--epochs", "1"])
    assert np.isfinite(accuracy)
    for name in ("china", "flower"):
        assert "dahlia" in (tmp_path / f"{name}.html").read_text("utf-8")
        with (
            Image.open(tmp_path / f"{name}_rollout.png") as rollout,
            Image.open(tmp_path / f"{name}.png") as own,
        ):
            assert rollout.size == own.size
        for figure in ("heads", "points"):
            assert (tmp_path / f"{name}_{figure}.png").stat().st_size > 10_000
