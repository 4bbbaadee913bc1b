"""Bounds of a graph are parsed and evaluated; other expressions raise."""

from __future__ import annotations

import pytest

from keras_tx.errors import FolderError
from keras_tx.runtime.axis_bounds import axes_of, read_bounds, violated_bound


@pytest.mark.parametrize(
    ("bound", "holds"),
    [
        ("rows <= 5", True),
        ("rows + 2 * columns == 19", True),
        ("(rows * columns) % 8 != 3", False),
        ("min(rows, columns) // 2 >= 3", False),
        ("-rows < max(columns, 4) - 7", True),
    ],
)
def test_violated_bound(bound: str, holds: bool):
    assert (violated_bound([bound], {"rows": 5, "columns": 7}) is None) == holds
    assert axes_of(bound)[0] == "rows"


@pytest.mark.parametrize(
    "bound", ["__import__('os')", "rows.real < 3", "depth < 3", "rows ** 9 < 3", "'a' < 3"]
)
def test_other_expressions_raise(bound: str):
    with pytest.raises(FolderError, match="bound"):
        violated_bound([bound], {"rows": 5, "columns": 7})


@pytest.mark.parametrize("text", ['{"rows": 3}', "[3]"])
def test_invalid_metadata_raises(text: str):
    with pytest.raises(FolderError, match="bounds"):
        read_bounds(text)
