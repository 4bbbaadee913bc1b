"""keras-tx run on texts: every task, as a table and as JSON."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from keras_tx.runtime import load
from tests.exported_folders import ExportedFolders

TEXT = "Ada lives in London."
TASKS = {
    "reviews": ("classifier", TEXT, []),
    "scores": ("regression", TEXT, ["--pair", "a cat"]),
    "names": ("tags", TEXT, []),
    "squad": ("span", TEXT, ["--question", "Who lives in London?"]),
    "masked": ("masked", "the [MASK] sat on [MASK]", []),
    "pretrained": ("pretraining", "the [MASK] sat on [MASK]", []),
    "pairs": ("pretraining", TEXT, ["--pair", "a cat"]),
    "minilm": ("sentence", TEXT, []),
}


@pytest.fixture
def folders(exported_folders: ExportedFolders) -> dict[str, Path]:
    return {name: exported_folders[f"bert, {head}"].path for name, (head, _, _) in TASKS.items()}


@pytest.mark.parametrize("name", TASKS)
def test_tasks(name: str, tx, folders):
    _, text, options = TASKS[name]
    ran = tx("run", folders[name], text, *options)
    assert (ran.code, ran.err) == (0, "")
    first, second, *rows = ran.out.splitlines()
    assert first.endswith(" on cpu") and second == text and rows
    answer = json.loads(tx("run", folders[name], text, *options, "--json").out)
    with load(folders[name]) as model:
        expected = {
            "reviews": lambda: model.classify(text),
            "scores": lambda: model.classify(text, "a cat"),
            "names": lambda: model.tag(text),
            "squad": lambda: model.answer(options[-1], text, top_k=5),
            "masked": lambda: model.fill(text),
            "pretrained": lambda: model.fill(text),
            "pairs": lambda: model.classify(text, "a cat"),
            "minilm": lambda: model.embed(text).tolist(),
        }[name]()
    assert expected in list(answer.values())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("squad", [], "--question"),
        ("reviews", ["--question", "who?"], "--question"),
        ("names", ["--pair", "a"], "--pair"),
    ],
)
def test_unsupported_options_raise(name: str, options: list[str], message: str, tx, folders):
    ran = tx("run", folders[name], TEXT, *options)
    assert (ran.code, ran.out) == (2, "") and message in ran.err


def test_invalid_texts_are_reported(tx, folders):
    ran = tx("run", folders["masked"], "no mask", f"{TEXT} [MASK]")
    assert ran.code == 2
    assert "has no [MASK]" in ran.err and TEXT in ran.out


def test_text_sources(tx, folders, tmp_path, monkeypatch):
    texts = ["the cat", "", "Ada lives in London.", "a very good film"]
    lines = tmp_path / "lines.txt"
    lines.write_bytes("\ufeff".encode() + "\r\n".join(texts).encode())
    (tmp_path / "table.csv").write_text(
        'id;text\n1;the cat\n2;""\n3;"Ada lives\nin; London."\n', encoding="utf-8"
    )
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.txt").write_text("the mat\n", encoding="utf-8")
    (tmp_path / "more" / "a.txt").write_text("the cat\nthe mat\n", encoding="utf-8")

    def run(*arguments: object) -> list[str]:
        ran = tx("run", folders["reviews"], *arguments, "--json", "--top-k", 1)
        assert (ran.code, ran.err) == (0, "")
        answers = [json.loads(line) for line in ran.out.splitlines()]
        assert all(answer["predictions"] for answer in answers)
        return [answer["text"] for answer in answers]

    assert run("the cat", lines) == ["the cat", *texts]
    assert run(tmp_path / "table.csv", "--column", "text") == ["the cat", "", "Ada lives\nin; London."]
    assert run(tmp_path / "more") == ["the cat", "the mat", "the mat"]
    assert run(tmp_path / "more", "--whole-files") == ["the cat\nthe mat\n", "the mat\n"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\nthe mat\n"))
    assert run("-") == ["the cat", "the mat"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\nthe mat\n"))
    assert run("-", "--whole-files") == ["the cat\nthe mat\n"]
    many = tmp_path / "many.txt"
    many.write_text("".join(f"the cat {n}\n" for n in range(70)), encoding="utf-8")
    assert run(many) == [f"the cat {n}" for n in range(70)]


def test_unreadable_text_files(tx, folders, tmp_path):
    table, binary = tmp_path / "table.tsv", tmp_path / "binary.txt"
    table.write_text("id\ttext\n1\tthe cat\n", encoding="utf-8")
    binary.write_bytes(b"\xff\xfe")
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        ([table], "'id', 'text'"),
        ([table, "--column", "texts"], "column 'texts'"),
        (["the cat", "--column", "text"], "--column is 'text'"),
    ):
        ran = tx("run", folders["reviews"], *arguments)
        assert (ran.code, ran.out) == (2, "") and message in ran.err
    ran = tx("run", folders["reviews"], "none.txt", binary, tmp_path / "empty", "the cat", "--json")
    assert ran.code == 2 and [json.loads(line)["text"] for line in ran.out.splitlines()] == ["the cat"]
    first, second, third = ran.err.splitlines()
    assert "none.txt does not exist" in first
    assert "binary.txt cannot be read" in second and "UTF-8" in second
    assert "empty has no .txt files" in third
