"""Metrics of texts: exact match by hand, BLEU and chrF by sacrebleu's command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keras_tx import metrics
from keras_tx.errors import ConfigError, TextError

GENERATED = ["the cat is on the mat", "he reads the book", "Hello , world!", "it rains"]
FIRST = ["the cat sat on the mat", "he is reading a book", "Hello, world!", "it is raining"]
SECOND = ["there is a cat on the mat", "he reads the book", "Hi, world!", "it rains today"]


@pytest.mark.parametrize("count", [1, 2])
def test_bleu_and_chrf_equal_the_command_line_of_sacrebleu(count: int, tmp_path: Path):
    pytest.importorskip("sacrebleu", reason='pip install "keras-tx[metrics]"')
    references = [FIRST, SECOND][:count]
    files = []
    for index, lines in enumerate([GENERATED, *references]):
        path = tmp_path / f"{index}.txt"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        files.append(str(path))
    command = [sys.executable, "-m", "sacrebleu", *files[1:], "-i", files[0], "-m", "bleu", "chrf", "-w", "6"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    bleu, chrf = (result["score"] for result in json.loads(done.stdout))
    expected: Any = FIRST if count == 1 else list(zip(FIRST, SECOND, strict=True))
    assert metrics.bleu(GENERATED, expected) == pytest.approx(bleu, abs=1e-5)
    assert metrics.chrf(GENERATED, expected) == pytest.approx(chrf, abs=1e-5)
    assert 20 < bleu < 90 and 20 < chrf < 90


def test_texts_may_have_different_numbers_of_references():
    pytest.importorskip("sacrebleu", reason='pip install "keras-tx[metrics]"')
    mixed = [["the cat sat on the mat", "the cat is on the mat"], "he reads the book"]
    assert metrics.bleu(GENERATED[:2], mixed) == pytest.approx(100)
    assert metrics.chrf(GENERATED[:2], mixed) == pytest.approx(100)
    assert metrics.exact_match(GENERATED[:2], mixed) == 1


def test_languages_without_spaces():
    pytest.importorskip("sacrebleu", reason='pip install "keras-tx[metrics]"')
    assert metrics.bleu(["今天天气很好"], ["今天天气不好"]) == 0
    assert metrics.bleu(["今天天气很好"], ["今天天气不好"], tokenize="zh") > 40
    with pytest.raises(ConfigError, match="tokenize='chinese'"):
        metrics.bleu(["a"], ["a"], tokenize="chinese")


def test_exact_match():
    assert metrics.exact_match([" a b\n", "c", "d", "E"], ["a b", "c d", ["x", "d"], "e"]) == 0.5


@pytest.mark.parametrize("metric", [metrics.exact_match, metrics.bleu, metrics.chrf])
def test_invalid_texts_raise(metric: Any):
    for predictions, references, message in (
        ([], [], "0 predictions and 0 references"),
        (["a"], ["a", "b"], "1 predictions and 2 references"),
        ("a", ["a"], "expected lists"),
        (["a"], "a", "expected lists"),
        (["a", 3], ["a", "b"], r"predictions\[1\] is 3"),
        (["a", "b"], ["a", []], r"references\[1\] is \[\]"),
        (["a"], [["a", None]], r"references\[0\]"),
    ):
        with pytest.raises(TextError, match=message):
            metric(predictions, references)


def test_missing_sacrebleu_raises_with_the_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ModuleNotFoundError, match=r"sacrebleu.*keras-tx\[metrics\]"):
        metrics.bleu(["a"], ["a"])
    assert metrics.exact_match(["a"], ["a"]) == 1
