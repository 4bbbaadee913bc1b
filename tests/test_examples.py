"""Every example runs: notebooks here, at a small size; scripts in a test of their own, which names them."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path

import matplotlib
import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
SMALL = "EPOCHS = 1"  # in place of a notebook's cell of parameters


def cells_of(notebook: Path) -> list[dict]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def code_of(notebook: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in cells_of(notebook) if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_the_notebook_runs(notebook, tmp_path, monkeypatch):
    """Without Jupyter: its cells are plain Python, executed in one namespace, and draw into memory."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": "__main__"}
    cells = [SMALL if code.startswith("EPOCHS = ") else code for code in code_of(notebook)]
    assert cells.count(SMALL) == 1, "expected one cell of parameters"
    for index, code in enumerate(cells):
        exec(compile(code, f"{notebook.name}, code cell {index}", "exec"), namespace)
    assert pyplot.get_fignums(), "it drew nothing"
    pyplot.close("all")
    assert namespace["agreement"] == 1  # the last cell: Keras and onnxruntime gave the same answers
    assert namespace["onnx_accuracy"] > 0.3  # one epoch; a tenth would be guessing


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_the_notebook_is_stored_without_outputs_and_says_what_it_reached(notebook):
    cells = cells_of(notebook)
    for cell in cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
    for row in ("command", "hardware", "minutes", "reached"):
        assert f"| {row} | " in "".join(cells[0]["source"])


def test_every_script_is_executed_by_a_test():
    scripts = [path for path in EXAMPLES.iterdir() if path.is_file() and path not in NOTEBOOKS]
    tests = {path: path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py")}
    del tests[Path(__file__)]
    for script in scripts:
        found = [path.name for path, text in tests.items() if script.name in text]
        assert found, f"no test names examples/{script.name}: write one that executes it at a small size"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
@pytest.mark.parametrize("loaded", [None, "0.1"])
def test_on_colab_it_installs_and_asks_for_a_restart_where_one_is_needed(notebook, loaded, monkeypatch):
    ran = []
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append(command))
    first = compile(code_of(notebook)[0], f"{notebook.name}, first cell", "exec")
    if loaded is None:
        exec(first, {})
    else:
        monkeypatch.setattr(np, "__version__", loaded)
        with pytest.raises(RuntimeError, match="numpy 0.1 was replaced: Runtime > Restart session"):
            exec(first, {})
    assert "keras-tx[cpu]" in ran[0]
