"""keras-tx run: labels, embeddings, JSON, and images that cannot be read."""

from __future__ import annotations

import io
import json
import shutil
import sys

import numpy as np
import pytest

from keras_tx.commands import terminal
from keras_tx.runtime import load

LABELS = {"daisy", "rose", "tulip"}


def test_labels_and_scores(tx, exports, picture):
    ran = tx("run", exports / "flowers", picture)
    first, second, *rows = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, "")
    assert first == f"{exports / 'flowers'}: image-classification on cpu"
    assert second == str(picture)
    assert {row.split()[0] for row in rows} == LABELS
    assert all(row.endswith("%") for row in rows)  # no bar: not a terminal


def test_bar_in_terminal(tx, exports, picture, monkeypatch):
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True)
    assert "█" in tx("run", exports / "flowers", picture, "--top-k", 1).out.splitlines()[-1]


def test_json_equals_python(tx, exports, picture):
    ran = tx("run", exports / "flowers", picture, picture, "--json", "--top-k", 2)
    lines = [json.loads(line) for line in ran.out.splitlines()]
    with load(exports / "flowers") as model:
        expected = model([picture, picture], top_k=2)
    assert lines == [{"image": str(picture), "predictions": one} for one in expected]


def test_embedding(tx, exports, picture):
    ran = tx("run", exports / "features", picture)
    assert ran.out.splitlines()[-1] == "  embedding of shape (32,); --json prints its numbers"
    answer = json.loads(tx("run", exports / "features", picture, "--json").out)
    with load(exports / "features") as model:
        expected = model.embed(picture)
    assert answer["shape"] == [32]
    np.testing.assert_array_equal(np.array(answer["embedding"], "float32"), expected)


def test_invalid_images_are_reported(tx, exports, picture, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"not a picture")
    ran = tx("run", exports / "flowers", bad, tmp_path / "none.png", picture)
    assert ran.code == 2
    assert ran.out.splitlines()[1] == str(picture)
    assert len(ran.out.splitlines()) == 2 + len(LABELS)
    first, second = ran.err.splitlines()
    assert first.startswith(f"keras-tx: error: {str(bad)!r} is not an image")
    assert second.startswith(f"keras-tx: error: {str(tmp_path / 'none.png')!r} does not exist")


def test_image_sources(tx, exports, picture, tmp_path, monkeypatch):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("b.png", "a.png"):
        shutil.copyfile(picture, folder / name)
    (folder / "notes.txt").touch()
    (folder / "list.csv").write_text("name,file\nfirst,b.png\nsecond,none.png\nthird\n", encoding="utf-8")
    alone = json.loads(tx("run", exports / "flowers", picture, "--json").out)["predictions"]

    def images(*arguments: object) -> list[str]:
        ran = tx("run", exports / "flowers", *arguments, "--json")
        answers = [json.loads(line) for line in ran.out.splitlines()]
        for answer in answers:
            assert [one["label"] for one in answer["predictions"]] == [one["label"] for one in alone]
            np.testing.assert_allclose(
                [x["score"] for x in answer["predictions"]], [x["score"] for x in alone], 1e-5
            )
        return [answer["image"] for answer in answers]

    assert images(folder, picture) == [str(folder / "a.png"), str(folder / "b.png"), str(picture)]
    assert images(folder / "list.csv", "--column", "file") == ["b.png"]
    error = tx("run", exports / "flowers", folder / "list.csv", "--column", "file").err
    assert "none.png' does not exist" in error and "list.csv, line 4, has 1 columns, expected 2" in error
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(picture.read_bytes())))
    assert images("-") == ["-"]
    assert "--whole-files" in tx("run", exports / "flowers", picture, "--whole-files").err
    assert "a directory without images" in tx("run", exports / "flowers", exports).err


@pytest.mark.parametrize(
    ("folder", "more", "expected"),
    [
        ("none", [], "none"),
        ("generic", [], "generic model"),
        (
            "flowers",
            ["--provider", "cuda"],
            "provider is 'cuda'",
        ),
    ],
)
def test_errors(tx, exports, picture, folder, more, expected):
    ran = tx("run", exports / folder, picture, *more)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("keras-tx: error: ")
    assert expected in ran.err
    assert ran.err.count("\n") == 1


def test_generic_model_error_names_inputs(tx, exports, picture):
    error = tx("run", exports / "generic", picture).err
    assert "'a': float32 ['batch_size', 3]" in error
    assert "'b': float32 ['batch_size', 3]" in error


class Ascii:
    encoding = "ascii"


def test_ascii_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Ascii())
    assert terminal.bar(0.5, 4) == "##"
    assert terminal.picture(np.array([[0, 255]])) == ["  ##"]
    assert terminal.printable("r\x1b[2Jösé") == r"r\x1b[2J\xf6s\xe9"


def test_utf8_terminal():
    assert terminal.bar(1.0, 3) == "███"
    assert terminal.bar(0.0) == ""
    assert terminal.picture(np.array([[0, 128, 255]])) == ["  ▒▒██"]
    assert terminal.beside([["ab", "c"], ["d"]], gap=1) == "ab d\nc"
    assert terminal.printable("rosé\x07") == r"rosé\x07"
