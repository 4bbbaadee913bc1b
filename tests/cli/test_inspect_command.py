"""keras-tx inspect: one page of an image or a text, and errors that write none."""

from __future__ import annotations

import io
import sys

import pytest


@pytest.fixture
def out(tmp_path):
    return tmp_path / "report.html"


def test_image_from_file_and_standard_input(tx, exports, picture, out, monkeypatch):
    ran = tx("inspect", exports / "flowers", picture, "--out", out)
    assert (ran.code, ran.out, ran.err) == (0, f"{out} is written. Open it in a browser.\n", "")
    from_file = out.read_text("utf-8")
    assert "flowers: image rose.png" in from_file

    ran = tx("inspect", exports / "flowers", picture, "--out", out)
    assert (ran.code, out.read_text("utf-8")) == (2, from_file)
    assert "--overwrite" in ran.err

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(picture.read_bytes())))
    assert tx("inspect", exports / "flowers", "-", "--out", out, "--overwrite").code == 0
    assert out.read_text("utf-8") == from_file.replace("image rose.png", "image")


def test_text_from_argument_file_and_standard_input(tx, exported_folders, tmp_path, monkeypatch):
    folder, file = exported_folders["gpt"].path, tmp_path / "prompt.txt"
    file.write_text("the cat\n", encoding="utf-8")
    assert tx("inspect", folder, "the cat", "--out", tmp_path / "1.html").code == 0
    assert tx("inspect", folder, file, "--out", tmp_path / "2.html").code == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\n"))
    assert tx("inspect", folder, "-", "--out", tmp_path / "3.html").code == 0
    pages = [(tmp_path / f"{i}.html").read_text("utf-8") for i in (1, 2, 3)]
    assert pages[0] == pages[1] == pages[2]


def test_question(tx, exported_folders, out):
    folder = exported_folders["bert, span"].path
    ran = tx("inspect", folder, "the cat sat", "--question", "who sat", "--out", out)
    assert (ran.code, ran.err) == (0, "")
    assert "who sat" in out.read_text("utf-8")


@pytest.mark.parametrize(
    ("folder", "source", "options", "message"),
    [
        ("flowers", "{tmp}", [], "a directory or table"),
        ("flowers", "none.png", [], "'none.png'"),
        ("flowers", "{picture}", ["--pair", "b"], "does not support pair"),
        ("flowers", "{picture}", ["--out", "{tmp}/page.pdf"], r"page.pdf"),
        ("generic", "text", [], "no Attention nodes"),
        ("none", "text", [], "none does not exist"),
    ],
)
def test_errors(tx, exports, picture, tmp_path, folder, source, options, message):
    values = {"tmp": tmp_path, "picture": picture}
    before = set(tmp_path.iterdir())
    arguments = ["--out", tmp_path / "report.html", *(one.format(**values) for one in options)]
    ran = tx("inspect", exports / folder, source.format(**values), *arguments)
    assert ran.code == 2
    assert message in ran.err
    assert set(tmp_path.iterdir()) == before


def test_missing_matplotlib(tx, exports, picture, out, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = tx("inspect", exports / "flowers", picture, "--out", out)
    assert (ran.code, out.exists()) == (2, False)
    assert 'pip install "keras-tx[inspect]"' in ran.err
