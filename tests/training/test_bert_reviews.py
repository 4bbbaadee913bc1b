"""examples/bert_reviews.py at a small size: on Python's manual, and on a CSV."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import keras_tx
from keras_tx.runtime import load

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parents[2] / "examples" / "bert_reviews.py"
SMALL = ["--variant", "L-2_H-128", "--max-length", "32", "--vocabulary", "600", "--pretrain-epochs", "1"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    pytest.importorskip("tensorflow", reason='pip install "keras-tx[cpu]"')
    spec = importlib.util.spec_from_file_location("bert_reviews", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_manual_has_both_classes_and_no_duplicates(script):
    texts, labels = script.read_manual()
    assert len(texts) == len(set(texts)) == len(labels) > 500
    assert 0.3 < labels.count("types") / len(labels) < 0.7


def test_csv_training_saves_a_model(script, tmp_path, capsys):
    path, random = tmp_path / "reviews.csv", np.random.default_rng(0)
    words = {"good": ["lovely", "great", "superb"], "bad": ["awful", "boring", "poor"]}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "sentiment"])
        for index in range(125):
            label = ("good", "bad")[index % 2]
            writer.writerow(
                [f"A {random.choice(words[label])} film, {random.choice(['long', 'short'])}.", label]
            )
        writer.writerow(["  ", "good"])
    options = ["--csv", str(path), "--text", "review", "--label", "sentiment", "--epochs", "15"]
    places = ["--save", str(tmp_path / "model.keras"), "--out", str(tmp_path / "folder")]
    accuracy = script.main([*SMALL, *options, "--vocabulary", "120", *places])
    printed = capsys.readouterr().out
    assert "1 of 126 rows have no text" in printed
    assert accuracy > 0.9
    assert f"test accuracy {accuracy:.3f} from" in printed
    assert load(tmp_path / "folder")("A superb film", top_k=1)[0]["label"] == "good"
    model = keras_tx.load_model(tmp_path / "model.keras")
    assert np.argmax(model(model.processing(["A superb film", "an awful film"])), axis=-1).tolist() == [1, 0]
    with pytest.raises(SystemExit, match="has no column 'stars'; it has"):
        script.main([*SMALL, "--csv", str(path), "--text", "stars"])
