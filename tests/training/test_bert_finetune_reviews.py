"""examples/bert_finetune_reviews.py at a small size, with generated weights and a generated CSV file."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import keras_tx
from keras_tx.processing import train_wordpiece
from keras_tx.runtime import load

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parents[2] / "examples" / "bert_finetune_reviews.py"
WORDS = {"good": ["lovely", "great", "superb"], "bad": ["awful", "boring", "poor"]}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    pytest.importorskip("tensorflow", reason='pip install "keras-tx[cpu]"')
    spec = importlib.util.spec_from_file_location("bert_finetune_reviews", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_reviews(path: Path) -> list[str]:
    random = np.random.default_rng(0)
    labels = [("good", "bad")[index % 2] for index in range(150)]
    lines = [f"{index} a {random.choice(WORDS[label])} film." for index, label in enumerate(labels)]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["review", "stars"], *zip(lines, labels, strict=True), [" ", "good"]])
    return lines


@pytest.mark.filterwarnings("ignore:.*newly initialized. logits/kernel, logits/bias:UserWarning")
def test_csv_training_and_folder_agree(script, tmp_path, capsys):
    lines = write_reviews(tmp_path / "reviews.csv")
    transform = train_wordpiece(lines, 120, max_length=32)
    body = keras_tx.bert("tiny", processing=transform, max_length=32, depth=1)
    keras_tx.save_checkpoint(body, tmp_path / "weights")
    options = ["--weights", str(tmp_path / "weights"), "--csv", str(tmp_path / "reviews.csv")]
    options += ["--text", "review", "--label", "stars", "--out", str(tmp_path / "folder")]
    result = script.main([*options, "--epochs", "6", "--learning-rate", "1e-3"])
    assert result["accuracy"] > 0.9
    assert abs(result["accuracy"] - result["exported"]) < 0.005
    assert load(tmp_path / "folder")("a superb film", top_k=1)[0]["label"] == "good"
    printed = capsys.readouterr().out
    assert "1 of 151 rows have no text" in printed
    assert "120 texts to learn from, 30 to test on, labels bad, good" in printed
    with pytest.raises(SystemExit, match="has no column 'text'; it has"):
        script.main(options[:4])


def test_missing_package_exits_with_the_install_command(script):
    with pytest.raises(SystemExit, match=r"(?s)no_such_package is not installed.*pip install"):
        script.inside("no_such_package", "model")
