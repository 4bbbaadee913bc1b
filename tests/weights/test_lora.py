"""Keras's LoRA matrices are merged into the weights that are saved, converted or exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, draw, redraw
from tests.tolerances import assert_close

IDS = np.array([[2, 15, 27, 3], [2, 9, 3, 4]])
MODELS: dict[str, Any] = {
    "bert": lambda: keras_tx.bert("tiny", vocabulary_size=30, depth=1, head=keras_tx.ClassifierHead(2)),
    "gpt": lambda: keras_tx.gpt("pico"),
    "llama": lambda: keras_tx.gpt("llama-tiny"),
    "vit": lambda: keras_tx.vit("Mu/2", image_size=8, num_classes=3),
}


def adapted(name: str) -> Any:
    """A model all of whose dense layers have LoRA, with redrawn matrices."""
    model = MODELS[name]()
    layers = [layer for layer in model._flatten_layers() if hasattr(layer, "enable_lora")]
    assert len(layers) >= 6
    for layer in layers:
        layer.enable_lora(2, lora_alpha=3)
    return redraw(model)


def inputs_of(model: Any) -> np.ndarray:
    return draw(2, 8, 8, 3) if isinstance(model, keras_tx.ViT) else IDS


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return adapted(request.param)


def compare(copy: Any, model: Any) -> None:
    inputs = inputs_of(model)
    assert_close(as_numpy(copy(inputs)), as_numpy(model(inputs)))


def test_save_checkpoint(model, tmp_path: Path):
    compare(keras_tx.from_checkpoint(keras_tx.save_checkpoint(model, tmp_path / "folder")), model)


@pytest.mark.parametrize("name", ["bert", "gpt"])
def test_transformers_opens_it(name: str, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model = adapted(name)
    folder = keras_tx.save_checkpoint(model, tmp_path / "folder")
    kind = {"bert": "AutoModelForSequenceClassification", "gpt": "AutoModelForCausalLM"}[name]
    theirs = getattr(transformers, kind).from_pretrained(folder).eval()
    with torch.no_grad():
        expected = theirs(torch.tensor(IDS)).logits.numpy()
    assert_close(as_numpy(model(IDS)), expected)


def test_copies(model):
    compare(keras_tx.from_checkpoint(model), model)
    compare(keras_tx.from_checkpoint(model, dtype="float32"), model)
    if isinstance(model, keras_tx.ViT):
        compare(model.at_image_size(8), model)
    elif isinstance(model, keras_tx.GPT):
        compare(keras_tx.from_checkpoint(keras_tx.to_keras_hub(model)), model)


def test_keras_files(model, tmp_path: Path):
    model.save(tmp_path / "model.keras")
    compare(keras_tx.load_model(tmp_path / "model.keras"), model)
    model.save_weights(tmp_path / "model.weights.h5")
    plain = keras_tx.from_checkpoint(model, dtype="float32")
    redraw(plain, seed=2)
    plain.load_weights(tmp_path / "model.weights.h5")
    compare(plain, model)
    expected = as_numpy(model(inputs_of(model)))
    model.load_weights(tmp_path / "model.weights.h5")
    assert_close(as_numpy(model(inputs_of(model))), expected)


def test_the_exported_folder(model, tmp_path: Path):
    report = export_onnx(model, tmp_path / "folder")
    assert report.manifest.parity is not None and report.manifest.parity.max_difference < 1e-4


def test_the_runtime(tmp_path: Path):
    model = adapted("vit")
    export_onnx(model, tmp_path / "folder", labels=list("abc"))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), "uint8")
    expected = as_numpy(keras.ops.softmax(model(model.processing(pixels))))
    answers = load(tmp_path / "folder")(list(pixels), top_k=3)
    got = [[next(x["score"] for x in a if x["label"] == label) for label in "abc"] for a in answers]
    assert_close(np.asarray(got, "float32"), expected)


def test_fit_with_lora_then_save(tmp_path: Path):
    model = MODELS["bert"]()
    for layer in model._flatten_layers():
        layer.trainable = layer.name in ("query", "value") or layer is model
    model.get_layer("block_0").attention.query.enable_lora(2)
    model.compile()
    before = as_numpy(model(IDS))
    model.fit(IDS, np.array([0, 1]), epochs=2, verbose=0)
    assert np.abs(as_numpy(model(IDS)) - before).max() > 1e-6
    compare(keras_tx.from_checkpoint(keras_tx.save_checkpoint(model, tmp_path / "folder")), model)


@pytest.mark.thorough
def test_quantized_weights_have_no_tensor(tmp_path: Path):
    model = MODELS["bert"]()
    model.get_layer("block_0").feed_forward.up.quantize("int8")
    with pytest.raises(ConfigError, match="block_0/.*kernel_scale.*model.save"):
        keras_tx.save_checkpoint(model, tmp_path / "folder")
    assert not any(tmp_path.iterdir())
