"""The benchmark of training options prints a row for each option."""

from __future__ import annotations

import sys

import pytest

from tests.benchmarks import training_options


def test_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    sizes = ["--batch=8", "--tokens=8", "--chunk=4", "--steps=2", "--small"]
    monkeypatch.setattr(sys, "argv", ["training_options", *sizes, "--only", "chunk_size"])
    training_options.main()
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert header.startswith("8 x 8 tokens, chunk_size=4")
    cells = [row.strip("| ").split(" | ") for row in rows[2:]]
    assert [row[0] for row in cells] == ["`chunk_size`"]
    assert all(float(row[1]) >= 0 for row in cells)
