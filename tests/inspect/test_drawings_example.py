"""examples/vit_drawings.py at a small size."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "examples" / "vit_drawings.py"


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("vit_drawings", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_object_changes_its_place_only(example: Any):
    objects = [("snail", 0.25, 0.5, 0.2)]
    with_object, without = (
        np.asarray(example.Garden(3).image(120, 80, drawn), "int32") for drawn in (objects, [])
    )
    changed = np.abs(with_object - without).max(axis=2) > 60
    assert changed[:, :60].mean() > 0.05
    assert not changed[:, 60:].any()


def test_labels_and_images_depend_on_the_seed(example: Any):
    images, labels = example.Garden(0).images(12)
    again, _ = example.Garden(0).images(12)
    other, _ = example.Garden(1).images(12)
    assert images.shape == (12, example.HEIGHT, example.WIDTH, 3) and images.dtype == np.uint8
    assert set(labels) == set(range(len(example.LABELS)))
    np.testing.assert_array_equal(images, again)
    assert (images != other).mean() > 0.5


@pytest.mark.thorough
def test_reports_and_figures(example: Any, tmp_path: Path):
    accuracy = example.main(["--out", str(tmp_path), "--count", "40", "--epochs", "1"])
    assert np.isfinite(accuracy)
    for name in example.DRAWINGS:
        assert "butterfly" in (tmp_path / f"{name}.html").read_text("utf-8")
        with (
            Image.open(tmp_path / f"{name}_rollout.png") as rollout,
            Image.open(tmp_path / f"{name}.png") as own,
        ):
            assert rollout.size == own.size
        for figure in ("heads", "points"):
            assert (tmp_path / f"{name}_{figure}.png").stat().st_size > 10_000
    assert (tmp_path / "garden_relevance.png").stat().st_size > 10_000
