"""The README's snippets run, in order, in one namespace, and its tables are what scripts wrote."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import keras

from tests.benchmarks.readme_table import BEGIN, END

README = Path(__file__).parents[1] / "README.md"


def test_the_snippets_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()  # the demo was here before
    keras.utils.set_random_seed(0)
    snippets = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) == 3
    namespace: dict = {}
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec", dont_inherit=True), namespace)
    printed = capsys.readouterr().out
    assert "4 Attention" in printed
    assert "within" in printed
    assert namespace["model"].history.history["val_accuracy"][-1] > 0.75
    answer = ast.literal_eval(printed.splitlines()[-1])
    assert answer[0]["label"] == str(namespace["labels"][0])
    assert answer == namespace["reader"](namespace["images"][0], top_k=2)


def test_its_first_part_is_one_screen():
    """What it is, install, fit, export, run: a newcomer reads no more before something works."""
    text = README.read_text(encoding="utf-8")
    first, follows, _ = text.partition("\n## Go on\n")
    assert follows and len(first.splitlines()) <= 64
    headings = [line for line in first.splitlines() if line.startswith("#")]
    assert headings == ["# keras-tx", "## Install, and see it work", "## Fit", "## Export", "## Run"]


def test_its_table_of_the_peers_is_filled():
    table = README.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert "medians on" in table
    assert re.search(r"^\| keras-tx fp32 \|( [\d.]+ \|){4}$", table, re.MULTILINE)


def test_its_commands_are_the_ones_that_ci_runs():
    text = README.read_text(encoding="utf-8")
    assert '.venv/bin/pip install ".[cpu]" && .venv/bin/keras-tx demo' in text
    assert (
        '.venv/bin/pip install -e ".[cpu,test]" && .venv/bin/python -m pytest -n 2 --dist loadfile\n' in text
    )


def test_its_lines_for_clients_are_those_that_were_run():
    text = README.read_text(encoding="utf-8")
    table = text.partition("| | opens a folder by |\n| --- | --- |\n")[2].partition("\n\n")[0].splitlines()
    page = (README.parent / "docs/clients.md").read_text(encoding="utf-8")
    run = re.findall(r"```(?:py|js)\n(.*?)```", page, re.DOTALL)
    for row in table:
        (line,) = re.findall(r"`([^`]+)` \|$", row)
        assert any(line in block for block in run), line
    clients = [name for name in re.findall(r"^## (.+)$", page, re.MULTILINE) if not name.startswith("Files ")]
    assert len(table) == len(clients)
