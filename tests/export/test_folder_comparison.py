"""compare(): every precision and family, the recorded options, and another model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx import contract
from keras_tx.errors import ConfigError, ExportError
from keras_tx.runtime.folder import open_folder
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
def test_difference_equals_that_of_the_export(name: str, tmp_path: Path):
    model = redraw(MODELS[name]())
    report = export_onnx(model, tmp_path / "x", precision=["fp32", "int8"])
    fp32, int8 = compare(model, tmp_path / "x")
    assert (fp32.precision, int8.precision) == ("fp32", "int8")
    assert report.manifest.parity is not None
    assert fp32.difference == pytest.approx(report.manifest.parity.max_difference, rel=0.5, abs=1e-7)
    assert fp32.passed and int8.passed
    assert fp32.difference < int8.difference


@pytest.mark.parametrize("options", [{"unpad": False}, {"opset": 17}])
def test_options_of_a_bert(options: dict[str, Any], tmp_path: Path):
    model = redraw(MODELS["bert"]())
    export_onnx(model, tmp_path / "x", verify=False, **options)
    (result,) = compare(model, tmp_path / "x")
    assert result.passed


def test_recorded_options_are_restored(tmp_path: Path):
    vit, gpt = redraw(MODELS["vit"]()), redraw(MODELS["gpt"]())
    image = keras_tx.ImageTransform(8, mean=0.3, std=0.2)
    export_onnx(vit, tmp_path / "vit", raw_pixels=True, image=image, verify=False)
    export_onnx(gpt, tmp_path / "gpt", cache=False, verify=False)
    assert open_folder(tmp_path / "vit").manifest.export_options == {"raw_pixels": True}
    assert open_folder(tmp_path / "gpt").manifest.export_options == {"cache": False}
    assert all(result.passed for result in (*compare(vit, tmp_path / "vit"), *compare(gpt, tmp_path / "gpt")))


def test_bounds_of_the_folder_limit_the_cases(tmp_path: Path):
    class Doubled(keras.layers.Layer):
        def compute_output_shape(self, shape):
            return shape

        def call(self, x):
            return x if x.shape[1] is not None and x.shape[1] <= 8 else x * 2

    inputs = keras.Input((None, 4), name="x")
    model = keras.Model(inputs, Doubled()(inputs))
    export_onnx(model, tmp_path / "x", verify=False)
    (result,) = compare(model, tmp_path / "x")
    assert result.passed


def test_folder_without_recorded_options_raises(tmp_path: Path):
    model = MODELS["vit"]()
    export_onnx(model, tmp_path / "x", verify=False)
    path = tmp_path / "x" / contract.MANIFEST
    manifest = json.loads(path.read_text())
    del manifest["export_options"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(ExportError, match="export options"):
        compare(model, tmp_path / "x")


def test_different_model_fails_or_raises(tmp_path: Path):
    model = redraw(MODELS["vit"]())
    export_onnx(model, tmp_path / "x", verify=False)
    weights = model.get_layer("norm").gamma
    weights.assign(weights + 0.01)
    (result,) = compare(model, tmp_path / "x")
    assert not result.passed and np.isfinite(result.difference)
    with pytest.raises(ExportError, match=r"'logits'.*\('batch_size', 3\).*\(None, 4\)"):
        compare(keras_tx.vit("Mu/2", image_size=8, num_classes=4), tmp_path / "x")
    with pytest.raises(ExportError, match=r"logits.*'vit'.*image_embeds"):
        compare(keras_tx.vit("Mu/2", image_size=8), tmp_path / "x")
    with pytest.raises(ExportError, match="'gpt'.*a decoder"):
        compare(MODELS["gpt"](), tmp_path / "x")
    with pytest.raises(ConfigError, match="model is a str"):
        compare("x", tmp_path / "x")  # type: ignore[arg-type]


class WithOptional(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(3)

    def call(self, a, b=None):
        x = self.dense(a["x"] if isinstance(a, dict) else a)
        return x if b is None else x + b


SIGNATURES = {
    "one": [keras.InputSpec(shape=(None, None, 4), dtype="float32", name="an input")],
    "two": [keras.InputSpec(shape=(None, n), dtype="float32") for n in (4, 3)],
    "dict": [{"x": keras.InputSpec(shape=(None, 4), dtype="float32")}],
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_recorded_signature_is_restored(name: str, tmp_path: Path):
    model = WithOptional()
    export_onnx(model, tmp_path / "x", input_signature=SIGNATURES[name], verify=False)
    (result,) = compare(model, tmp_path / "x")
    assert result.passed
    model.dense.kernel.assign(model.dense.kernel + 0.1)
    (result,) = compare(model, tmp_path / "x")
    assert not result.passed


def test_signature_of_another_model_raises(tmp_path: Path):
    class Other(keras.Model):
        def call(self, c):
            return c

    export_onnx(WithOptional(), tmp_path / "x", input_signature=SIGNATURES["one"], verify=False)
    with pytest.raises(ExportError, match="'other' .*'a'"):
        compare(Other(name="other"), tmp_path / "x")
