"""The progress bar: what it prints, and that it prints nothing when it is not shown."""

from __future__ import annotations

import pytest

from keras_tx import progress_bar
from keras_tx.progress_bar import ProgressBar


def test_line_with_total(capsys):
    with ProgressBar(20, "texts") as bar:
        bar.advance(20)
    assert capsys.readouterr().err.endswith(f"\r[{'#' * 30}] 20 of 20 texts, 0 s left \n")


def test_line_without_total(capsys):
    with ProgressBar(None, "texts") as bar:
        bar.advance(5)
        bar.advance(5)
    assert "\r10 texts, " in capsys.readouterr().err


def test_scale(capsys):
    with ProgressBar(4_000_000, "MB", scale=10**6) as bar:
        bar.update(1_500_000)
    assert "1.5 of 4.0 MB" in capsys.readouterr().err


def test_redraws_are_limited(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress_bar, "INTERVAL", 3600)
    with ProgressBar(1000, "texts") as bar:
        for _ in range(1000):
            bar.advance()
    assert capsys.readouterr().err.count("\r") <= 2


@pytest.mark.parametrize(("total", "shown"), [(3, False), (0, True)])
def test_nothing_is_printed(capsys, total: int, shown: bool):
    with ProgressBar(total, "texts", shown=shown) as bar:
        bar.advance(total)
    assert capsys.readouterr().err == ""
