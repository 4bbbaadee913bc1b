"""The README's snippets run, in order, in one namespace, on photographs that the test draws."""

from __future__ import annotations

import re
from pathlib import Path

import keras
import numpy as np
from PIL import Image

README = Path(__file__).parents[1] / "README.md"


def test_the_snippets_run(tmp_path, monkeypatch, capsys):
    random = np.random.default_rng(0)
    for name, colour in (("daisy", 220), ("rose", 60)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(3):
            pixels = np.clip(random.normal(colour, 20, (240, 320, 3)), 0, 255).astype("uint8")
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.jpg")
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    snippets = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(snippets) == 3
    namespace: dict = {}
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), namespace)
    printed = capsys.readouterr().out
    assert "12 Attention" in printed
    assert "within" in printed
    answer = namespace["flowers"]("photos/rose/1.jpg")
    assert {entry["label"] for entry in answer} == {"daisy", "rose"}


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
    assert len(table) == page.count("\n## ")
