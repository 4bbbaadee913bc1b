"""Heads with pooling="average": the mean of the real tokens of a text, and of the patches of an image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, redraw
from tests.tolerances import assert_close

IDS = np.array([[5, 6, 7, 8], [9, 4, 0, 0]])
TEXTS = {
    "bert": ("tiny", {"vocabulary_size": 20, "width": 16, "pooler": None}),
    "gpt": ("pico", {"pad_id": 0}),
}
HEADS = [
    keras_tx.ClassifierHead(3, pooling="average"),
    keras_tx.MultiLabelHead(3, pooling="average"),
    keras_tx.RegressionHead(pooling="average"),
]


def with_weights_of(body: Any, model: Any) -> Any:
    """A model without a head, with the weights of one that has one."""
    weights = {weight.path: weight for weight in model.weights}
    for weight in body.weights:
        weight.assign(weights[weight.path])
    return body


def headed(family: str, head: Any) -> Any:
    variant, options = TEXTS[family]
    return getattr(keras_tx, family)(variant, head=head, **options)


@pytest.mark.parametrize("head", HEADS, ids=lambda head: type(head).__name__)
@pytest.mark.parametrize("family", TEXTS)
def test_mean_of_the_real_tokens(family: str, head: Any, tmp_path):
    model = redraw(headed(family, head))
    outputs = with_weights_of(headed(family, None), model)(IDS)
    tokens = as_numpy(outputs["last_hidden_state"] if family == "bert" else outputs)
    dense = model.get_layer("logits")
    expected = np.stack([tokens[0].mean(0), tokens[1, :2].mean(0)]) @ as_numpy(dense.kernel)
    assert_close(as_numpy(model(IDS)), expected + (as_numpy(dense.bias) if family == "bert" else 0))
    model.save(tmp_path / "x.keras")
    assert keras_tx.load_model(tmp_path / "x.keras").head == head


@pytest.mark.exports
@pytest.mark.parametrize("head", HEADS, ids=lambda head: type(head).__name__)
@pytest.mark.parametrize("family", TEXTS)
def test_export_has_the_mean(family: str, head: Any, tmp_path):
    model = redraw(headed(family, head))
    export_onnx(model, tmp_path / "x")  # compares every kind of mask
    inputs = {"input_ids": IDS, "attention_mask": (IDS != 0).astype("int64")}
    if family == "bert":
        inputs["token_type_ids"] = np.zeros_like(IDS)
    with load(tmp_path / "x", provider="cpu") as folder:
        assert_close(folder(inputs)["logits"], as_numpy(model(IDS)))


def test_mean_of_the_patches(tmp_path):
    images = np.random.default_rng(0).standard_normal((2, 8, 8, 3)).astype("float32")
    model = redraw(keras_tx.vit("Mu/2", image_size=8, head=HEADS[0]))
    assert (model.config.pooling, model.config.has_class_token) == ("average", True)
    config = {"image_size": 8, "class_token": True, "pooling": "none"}
    tokens = as_numpy(with_weights_of(keras_tx.vit("Mu/2", **config), model)(images))
    dense = model.get_layer("logits")
    expected = tokens[:, 1:].mean(1) @ as_numpy(dense.kernel) + as_numpy(dense.bias)
    assert_close(as_numpy(model(images)), expected)
    model.save(tmp_path / "x.keras")
    assert keras_tx.load_model(tmp_path / "x.keras").config == model.config
    export_onnx(model, tmp_path / "x")
    with pytest.raises(ConfigError, match="pooling='average'"):
        keras_tx.save_checkpoint(model, tmp_path / "folder")


def test_the_checkpoint_of_a_vit_keeps_its_class_token(tmp_path):
    """The class token stays: the blocks of the checkpoint were trained with it."""
    keras_tx.save_checkpoint(redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3)), tmp_path / "vit")
    model = keras_tx.from_checkpoint(tmp_path / "vit", head=HEADS[0])
    assert model.config.pooling == "average" and model.config.has_class_token


def test_formats_without_average_pooling_refuse_it(tmp_path):
    model = keras_tx.bert("tiny", head=HEADS[0], vocabulary_size=20)
    with pytest.raises(ConfigError, match="a ClassifierHead with pooling='average'"):
        keras_tx.save_checkpoint(model, tmp_path / "x")


def test_unknown_poolings_raise():
    for kind in (keras_tx.ClassifierHead, keras_tx.MultiLabelHead, keras_tx.RegressionHead):
        with pytest.raises(ConfigError, match="pooling='max' is unknown"):
            kind(2, pooling="max")
    with pytest.raises(ConfigError, match="not supported by DistilledClassifierHead"):
        keras_tx.DistilledClassifierHead(2, pooling="average")
