"""The README's snippets run in order, in one namespace, and its tables agree with their sources."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import keras
import pytest

from tests.benchmarks.report import README_MARKERS
from tests.documentation_drawings import latencies

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.thorough
def test_snippets_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()  # an earlier demo left this folder
    keras.utils.set_random_seed(0)
    snippets = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
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
    assert [layer.shape for layer in namespace["weights"]] == [(1, 4, 17, 17)] * 4
    assert "Attention rollout" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_numbers_of_the_comparison_are_the_benchmarks():
    """The first table rounds docs/benchmark.md."""
    text = README.read_text(encoding="utf-8")
    page = (README.parent / "docs/benchmark.md").read_text(encoding="utf-8")
    table = text.partition("| two CPU cores, no GPU |")[2].partition("\n\n")[0]
    for section, column, names in (
        ("models: bert-base", "batch 8, lengths 16-128", ["keras-tx fp32", "keras-tx int8", "optimum"]),
        ("models: gpt2-124m", "decode at 16", ["keras-tx fp32", "optimum"]),
    ):
        rows = latencies(page, section, column)
        for name in names:
            number = f"{rows[name]:.0f}" if rows[name] > 20 else f"{rows[name]:.1f}"
            assert re.search(rf"\b{re.escape(number)} ms", table), (section, name)
    export = latencies(page, "export: bert-base", "export")
    assert f"{export['keras-tx fp32']:.1f} s" in table and f"{export['optimum']:.1f} s" in table
    start = latencies(page, "start: bert-mini", "all, s")
    assert f"{start['keras-tx fp32']:.2f} s" in table and f"{start['optimum']:.1f} s" in table


def test_table_of_peers_is_filled():
    table = README.read_text(encoding="utf-8").partition(README_MARKERS[0])[2].partition(README_MARKERS[1])[0]
    assert "medians on" in table
    assert re.search(r"^\| keras-tx fp32 \|( [\d.]+ \|){4}$", table, re.MULTILINE)


def test_commands_are_those_of_ci():
    text = README.read_text(encoding="utf-8")
    assert '.venv/bin/pip install ".[cpu]" && .venv/bin/keras-tx demo' in text
    assert (
        '.venv/bin/pip install -e ".[cpu,test]" && .venv/bin/python -m pytest -n 2 --dist loadfile\n' in text
    )


def test_client_lines_are_those_of_the_clients_page():
    text = README.read_text(encoding="utf-8")
    table = text.partition("| | opens a folder by |\n| --- | --- |\n")[2].partition("\n\n")[0].splitlines()
    page = (README.parent / "docs/clients.md").read_text(encoding="utf-8")
    tested = re.findall(r"```(?:py|js)\n(.*?)```", page, re.DOTALL)
    for row in table:
        (line,) = re.findall(r"`([^`]+)` \|$", row)
        assert any(line in block for block in tested), line
    assert table
