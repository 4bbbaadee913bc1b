"""Encoders refuse padding on the left, on which their outputs would depend."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.errors import ConfigError, FolderError
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.export.small_bert import ROBERTA, tiny
from tests.wordpiece import wordpiece

RIGHT = keras_tx.TextTransform.of(wordpiece())
LEFT = dataclasses.replace(RIGHT, padding_side="left")


@pytest.mark.parametrize("options", [{}, {**ROBERTA, "pad_id": 0}], ids=["bert", "roberta"])
def test_model_and_export(options: dict, tmp_path):
    with pytest.raises(ConfigError, match="processing has padding_side='left'.*padding_side='right'"):
        tiny(processing=LEFT, **options)
    model = tiny(**options)
    with pytest.raises(ConfigError, match="tokenizer has padding_side='left'"):
        export_onnx(model, tmp_path / "x", tokenizer=LEFT, verify=False)
    assert not (tmp_path / "x").exists()


def test_a_checkpoint(tmp_path):
    keras_tx.save_checkpoint(tiny(processing=RIGHT), tmp_path / "x")
    path = tmp_path / "x" / contract.TOKENIZER_CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), "padding_side": "left"}))
    with pytest.raises(ConfigError, match="padding_side='left'.*tokenizer_config.json"):
        keras_tx.from_checkpoint(tmp_path / "x")
    transform = keras_tx.TextTransform.load(tmp_path / "x", padding_side="right")
    assert keras_tx.from_checkpoint(tmp_path / "x", processing=transform).processing.padding_side == "right"


def test_a_folder(tmp_path):
    export_onnx(tiny(keras_tx.ClassifierHead(2), processing=RIGHT), tmp_path / "x", verify=False)
    manifest = contract.Manifest.from_json((tmp_path / "x" / contract.MANIFEST).read_text())
    path = tmp_path / "x" / contract.TOKENIZER_CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), "padding_side": "left"}))
    files = {**manifest.files, contract.TOKENIZER_CONFIG: contract.describe_file(path)}
    dataclasses.replace(manifest, files=files).save(tmp_path / "x")
    with pytest.raises(FolderError, match="tokenizer_config.json: padding_side='left'"):
        load(tmp_path / "x")


def test_transformers_depends_on_left_padding():
    """BERT numbers positions by column, so its outputs depend on left padding."""
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model = transformers.BertModel(
        transformers.BertConfig(vocab_size=39, initializer_range=0.5, **sizes)
    ).eval()

    def last(left: int, right: int) -> np.ndarray:
        ids = torch.tensor([[0] * left + [2, 7, 8, 3] + [0] * right])
        with torch.no_grad():
            hidden = model(ids, attention_mask=(ids > 0).long()).last_hidden_state
        return hidden[0, left : left + 4].numpy()

    np.testing.assert_allclose(last(0, 3), last(0, 0), atol=1e-5)
    assert np.abs(last(3, 0) - last(0, 0)).max() > 0.1
