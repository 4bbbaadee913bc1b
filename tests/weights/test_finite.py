"""NaN and infinite weights raise with the name of the tensor, in loading, saving and exporting."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_tx
from keras_tx.errors import ConfigError, ExportError
from keras_tx.weights.safetensors_file import write_tensors
from keras_tx.weights.weight_values import check_values
from tests.drawing import as_numpy, redraw
from tests.weights.test_vit_state_dicts import GOLDEN, load

KERNEL = "block_0/feed_forward/up/kernel"
HUGGING_FACE = "bert.encoder.layer.0.intermediate.dense.weight"


def bert(**options: Any) -> Any:
    return keras_tx.bert("tiny", head=keras_tx.ClassifierHead(2), vocabulary_size=30, depth=1, **options)


def spoil(model: Any, value: float = np.nan, path: str = KERNEL) -> Any:
    """Puts one value that is no finite number into a weight."""
    weight = next(weight for weight in model.weights if weight.path == path)
    values = as_numpy(weight).copy()
    values.flat[5] = value
    weight.assign(values)
    return model


def spoil_file(path: Path, name: str, value: float = np.nan) -> Path:
    state = {key: x.copy() for key, x in load_file(path).items()}
    state[name].flat[5] = value
    write_tensors(path, {key: (x.dtype, x.shape) for key, x in state.items()}, state.__getitem__)
    return path


def folder_of(tmp_path: Path) -> Path:
    folder = keras_tx.save_checkpoint(redraw(bert()), tmp_path / "folder")
    spoil_file(folder / "model.safetensors", HUGGING_FACE)
    return folder


def shards(tmp_path: Path) -> Any:
    folder = folder_of(tmp_path)
    names = list(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = {"weight_map": dict.fromkeys(names, "model-1.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return keras_tx.from_checkpoint(folder)


def state_dict(kind: str, name: str) -> Callable[[Path], Any]:
    def make(tmp_path: Path) -> Any:
        shutil.copy(GOLDEN / kind / "model.safetensors", tmp_path)
        return load(kind, spoil_file(tmp_path / "model.safetensors", name))

    return make


def keras_file(tmp_path: Path) -> Path:
    keras.Model.save(spoil(bert()), tmp_path / "model.keras")
    return tmp_path / "model.keras"


def weights_file(tmp_path: Path) -> Path:
    keras.Model.save_weights(spoil(bert()), tmp_path / "model.weights.h5")
    return tmp_path / "model.weights.h5"


def keras_hub_model() -> Any:
    theirs = keras_tx.to_keras_hub(redraw(keras_tx.gpt("pico")))
    return spoil(theirs, path="transformer_layer_0/feedforward_intermediate_dense/kernel")


def preset(tmp_path: Path) -> Any:
    keras_hub_model().save_to_preset(str(tmp_path / "preset"))
    return keras_tx.from_checkpoint(tmp_path / "preset")


WAYS_IN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "folder": (lambda path: keras_tx.from_checkpoint(folder_of(path)), HUGGING_FACE),
    "shards": (shards, HUGGING_FACE),
    "lone file": (
        lambda path: bert(weights=folder_of(path) / "model.safetensors", segments=2),
        HUGGING_FACE,
    ),
    "timm": (state_dict("timm_plain", "blocks.0.mlp.fc1.weight"), "blocks.0.mlp.fc1.weight"),
    "torchvision": (
        state_dict("torchvision", "encoder.layers.encoder_layer_0.mlp.0.weight"),
        "encoder.layers.encoder_layer_0.mlp.0.weight",
    ),
    ".keras": (lambda path: keras_tx.from_checkpoint(keras_file(path)), "block_0/feed_forward/up/0"),
    "load_model": (lambda path: keras_tx.load_model(keras_file(path)), KERNEL),
    ".weights.h5": (lambda path: bert(weights=weights_file(path)), "block_0/feed_forward/up/0"),
    "live model": (lambda path: keras_tx.from_checkpoint(spoil(bert())), KERNEL),
    "keras-hub model": (
        lambda path: keras_tx.from_checkpoint(keras_hub_model()),
        "transformer_layer_0/feedforward_intermediate_dense/kernel",
    ),
    "keras-hub preset": (preset, "transformer_layer_0/feedforward_intermediate_dense/kernel"),
}


@pytest.mark.parametrize("way", WAYS_IN)
def test_loading_names_the_tensor(way: str, tmp_path: Path):
    make, name = WAYS_IN[way]
    with pytest.raises(ConfigError, match=rf"{name}.* nan \(1 of \d+ values"):
        make(tmp_path)


def test_load_weights_changes_nothing(tmp_path: Path):
    path, model = weights_file(tmp_path), redraw(bert())
    before = model.get_weights()
    with pytest.raises(ConfigError, match=f"{KERNEL}.*nan"):
        model.load_weights(path)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("way", ["save", "save_weights", "save_checkpoint"])
def test_saving_keeps_the_former_file(way: str, value: float, tmp_path: Path):
    model = redraw(bert())
    name = {"save": "model.keras", "save_weights": "model.weights.h5", "save_checkpoint": "folder"}[way]
    options: dict[str, Any] = {"overwrite": True}

    def write() -> None:
        if way == "save_checkpoint":
            keras_tx.save_checkpoint(model, tmp_path / name, **options)
        else:
            getattr(model, way)(tmp_path / name, **options)

    write()
    path = tmp_path / name / "model.safetensors" if way == "save_checkpoint" else tmp_path / name
    before = path.read_bytes()
    spoil(model, value)
    with pytest.raises(ConfigError, match=f"{KERNEL}.* {value} "):
        write()
    assert path.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_conversion_to_keras_hub_raises():
    with pytest.raises(ConfigError, match="block_0/feed_forward/up/kernel.*nan"):
        keras_tx.to_keras_hub(spoil(keras_tx.gpt("pico")))


def test_export_raises(tmp_path: Path):
    with pytest.raises(ExportError, match=f"{KERNEL}.*nan"):
        keras_tx.export_onnx(spoil(bert()), tmp_path / "folder")
    inputs = keras.Input((4,))
    foreign = keras.Model(inputs, keras.layers.BatchNormalization(name="norm")(inputs))
    spoil_one = foreign.get_layer("norm").moving_variance
    spoil_one.assign([1.0, np.inf, 1.0, 1.0])
    with pytest.raises(ExportError, match=r"norm/moving_variance.* inf \(1 of 4"):
        keras_tx.export_onnx(foreign, tmp_path / "folder")
    assert not any(tmp_path.iterdir())


def test_values_that_the_dtype_cannot_hold(tmp_path: Path):
    folder = keras_tx.save_checkpoint(redraw(bert()), tmp_path / "folder")
    spoil_file(folder / "model.safetensors", HUGGING_FACE, 1e5)
    keras_tx.from_checkpoint(folder)
    with pytest.raises(ConfigError, match=f"{HUGGING_FACE}.*float16.* inf"):
        keras_tx.from_checkpoint(folder, dtype="float16")
    state = {name: x.astype("float64") for name, x in load_file(folder / "model.safetensors").items()}
    state[HUGGING_FACE].flat[3] = 1e39
    dtypes = {name: (x.dtype, x.shape) for name, x in state.items()}
    write_tensors(folder / "model.safetensors", dtypes, state.__getitem__)
    with pytest.raises(ConfigError, match=f"{HUGGING_FACE}.*float32.* inf"):
        keras_tx.from_checkpoint(folder)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_large_finite_values_pass(dtype: Any):
    largest = float(ml_dtypes.finfo(dtype).max) if dtype is ml_dtypes.bfloat16 else np.finfo(dtype).max
    values = np.array([largest, largest, -largest, 0], dtype)
    check_values(values, "x", "")
    check_values(np.empty((0, 3), dtype), "x", "")
    with pytest.raises(ConfigError, match="x holds inf"):
        check_values(np.append(values, np.array(np.inf, dtype)), "x", "")
