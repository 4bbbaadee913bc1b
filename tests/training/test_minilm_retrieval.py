"""examples/minilm_retrieval.py at a small size, with generated weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import keras_tx
from keras_tx.processing import train_wordpiece

SCRIPT = Path(__file__).parents[2] / "examples" / "minilm_retrieval.py"


def test_small_size(tmp_path: Path):
    pytest.importorskip("babel", reason="pip install babel==2.18.0")
    spec = importlib.util.spec_from_file_location("minilm_retrieval", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    pairs = script.name_pairs("it", "en")
    texts = [text for pair in pairs for text in pair]
    assert len(pairs) > 500 and len({first for first, _ in pairs}) == len({x for _, x in pairs}) == len(pairs)
    model = keras_tx.bert(
        "tiny",
        head=keras_tx.SentenceEmbeddingHead(),
        processing=train_wordpiece(texts, 200),
        **{"width": 16, "depth": 1, "num_heads": 2, "max_length": 32},
    )
    folder = keras_tx.save_checkpoint(model, tmp_path / "weights")
    out = tmp_path / "names"
    result = script.main([f"--weights={folder}", f"--out={out}", "--pairs=60", "--epochs=2", "--rate=1e-2"])
    assert result["folder"] == pytest.approx(result["after"], abs=0.1)


def test_scores():
    spec = importlib.util.spec_from_file_location("minilm_retrieval", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    documents = np.eye(3)
    queries = np.array([[1.0, 0, 0], [0, 0, 1], [0, 0.5, 1]])  # ranks 0, 1 or 2, and 0
    accuracy, gain = script.scores(queries, documents)
    assert accuracy == pytest.approx(2 / 3)
    assert gain == pytest.approx((1 + 1 / np.log2(3) + 1) / 3)
