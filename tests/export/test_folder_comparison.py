"""A folder is compared with its model again, in every precision and family; another model is found out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError, ExportError
from keras_tx_onnx import compare, export_onnx
from tests.drawing import redraw

BERT = {"vocabulary_size": 60, "depth": 1, "max_length": 64}
MODELS: dict[str, Any] = {
    "vit": lambda: keras_tx.vit("Mu/2", image_size=8, num_classes=3),
    "bert": lambda: keras_tx.bert("tiny", head=keras_tx.TokenClassifierHead(3), **BERT),
    "embedder": lambda: keras_tx.bert("tiny", head=keras_tx.SentenceEmbeddingHead(), **BERT),
    "gpt": lambda: keras_tx.gpt("pico"),
    "generic": lambda: keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dense(2)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_what_the_export_measured(name: str, tmp_path: Path):
    model = redraw(MODELS[name]())
    report = export_onnx(model, tmp_path / "x", precision=["fp32", "int8"])
    fp32, int8 = compare(model, tmp_path / "x")
    assert (fp32.precision, int8.precision) == ("fp32", "int8")
    assert report.manifest.parity is not None
    assert fp32.found == pytest.approx(report.manifest.parity.max_difference, rel=0.5, abs=1e-7)
    assert fp32.passed and int8.passed
    assert fp32.found < int8.found


@pytest.mark.parametrize("options", [{"unpad": False}, {"opset": 17}])
def test_the_ways_to_export_a_bert(options: dict[str, Any], tmp_path: Path):
    model = redraw(MODELS["bert"]())
    export_onnx(model, tmp_path / "x", verify=False, **options)
    (again,) = compare(model, tmp_path / "x")
    assert again.passed


def test_raw_pixels_and_a_gpt_without_a_cache(tmp_path: Path):
    vit, gpt = redraw(MODELS["vit"]()), redraw(MODELS["gpt"]())
    export_onnx(vit, tmp_path / "vit", raw_pixels=True, verify=False)
    export_onnx(gpt, tmp_path / "gpt", cache=False, verify=False)
    assert all(again.passed for again in (*compare(vit, tmp_path / "vit"), *compare(gpt, tmp_path / "gpt")))


def test_another_model_is_found_out(tmp_path: Path):
    model = redraw(MODELS["vit"]())
    export_onnx(model, tmp_path / "x", verify=False)
    weights = model.get_layer("norm").gamma
    weights.assign(weights + 0.01)
    (again,) = compare(model, tmp_path / "x")
    assert not again.passed and np.isfinite(again.found)
    with pytest.raises(
        ExportError, match=r"gives 'logits' with the shape \('batch_size', 3\).*not the model"
    ):
        compare(keras_tx.vit("Mu/2", image_size=8, num_classes=4), tmp_path / "x")
    with pytest.raises(ExportError, match=r"gives logits, but model 'vit' gives image_embeds"):
        compare(keras_tx.vit("Mu/2", image_size=8), tmp_path / "x")
    with pytest.raises(ConfigError, match="model is a str, expected a Keras model"):
        compare("x", tmp_path / "x")  # type: ignore[arg-type]


class WithOptional(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, a, b=None):
        return self.dense(a) if b is None else self.dense(a) + b


@pytest.mark.parametrize("inputs", [1, 2])
def test_a_model_with_a_signature(inputs: int, tmp_path: Path):
    model = WithOptional()
    signature = [keras.InputSpec(shape=(None, n), dtype="float32") for n in (4, 3)][:inputs]
    export_onnx(model, tmp_path / "x", input_signature=signature, verify=False)
    (again,) = compare(model, tmp_path / "x", input_signature=signature)
    assert again.passed
    model.dense.kernel.assign(model.dense.kernel + 0.1)
    (again,) = compare(model, tmp_path / "x", input_signature=signature)
    assert not again.passed
