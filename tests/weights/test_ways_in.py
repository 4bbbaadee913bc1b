"""Loading, for all families: shards, half precision and `weights=`; the size of the golden files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.models.families import families
from keras_tx.models.keras_hub_models import OTHERS
from keras_tx.weights.safetensors_file import write_tensors
from tests.drawing import as_numpy, redraw

GOLDEN = Path(__file__).parents[1] / "golden"
FAMILIES: dict[str, Any] = {
    "bert": lambda **more: keras_tx.bert("tiny", **{"vocabulary_size": 30, "depth": 1, **more}),
    "gpt": lambda **more: keras_tx.gpt("pico", **more),
    "vit": lambda **more: keras_tx.vit("Mu/2", **{"image_size": 8, **more}),
}


@pytest.fixture(params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any, Path]:
    make = FAMILIES[request.param]
    model = redraw(make())
    return make, model, keras_tx.save_checkpoint(model, tmp_path / "whole")


def same(ours: Any, theirs: Any, kind: Any = np.float32) -> None:
    for mine, other in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_array_equal(as_numpy(mine), as_numpy(other).astype(kind).astype("float32"))


def write(path: Path, state: dict[str, np.ndarray]) -> None:
    write_tensors(path, {name: (x.dtype, x.shape) for name, x in state.items()}, state.__getitem__)


def test_weights_of_each_family(saved):
    make, model, folder = saved
    same(make(weights=folder), model)


def test_a_folder_in_shards(saved, tmp_path: Path):
    _, model, folder = saved
    state = load_file(folder / "model.safetensors")
    shards = tmp_path / "shards"
    shards.mkdir()
    shutil.copy(folder / "config.json", shards)
    names = sorted(state)
    halves = (names[::2], names[1::2])
    files = [f"model-0000{index}-of-00002.safetensors" for index in (1, 2)]
    for file, half in zip(files, halves, strict=True):
        write(shards / file, {name: state[name] for name in half})
    places = {name: file for file, half in zip(files, halves, strict=True) for name in half}
    (shards / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    same(keras_tx.from_checkpoint(shards), model)


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.float16], ids=["bf16", "fp16"])
def test_a_folder_in_half_precision(kind: Any, saved, tmp_path: Path):
    _, model, folder = saved
    half = tmp_path / "half"
    shutil.copytree(folder, half)
    state = load_file(folder / "model.safetensors")
    (half / "model.safetensors").unlink()
    write(half / "model.safetensors", {name: x.astype(kind) for name, x in state.items()})
    same(keras_tx.from_checkpoint(half), model, kind)


def test_the_golden_files_stay_small():
    files = [path for path in GOLDEN.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) <= 1_000_000


@pytest.mark.parametrize(
    ("model_type", "name", "preset"),
    [
        ("whisper", "WhisperBackbone", "whisper_tiny_en"),
        ("clip", "CLIPBackbone", "clip_vit_base_patch32"),
        ("albert", "AlbertBackbone", None),
    ],
)
def test_a_family_of_keras_hub_raises_with_export_advice(
    model_type: str, name: str, preset: str | None, tmp_path: Path
):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    write(tmp_path / "model.safetensors", {"x": np.zeros(1, "float32")})
    with pytest.raises(ConfigError) as error:
        keras_tx.from_checkpoint(tmp_path)
    message = str(error.value)
    assert f"model_type={model_type!r}" in message
    assert f"export_onnx(keras_hub.models.{name}.from_preset({preset or str(tmp_path)!r})" in message
    assert "Did you mean" not in message
    for family in families():
        known = family.huggingface().model_types if family.huggingface else ()
        assert all(f"{name!r}" in message for name in known)


def test_keras_hub_has_these_families():
    keras_hub = pytest.importorskip("keras_hub")
    from keras_hub.src.utils.transformers.preset_loader import TransformersPresetLoader

    for model_type, (name, preset) in OTHERS.items():
        kind = getattr(keras_hub.models, name)
        if preset is None:
            converted = TransformersPresetLoader("nowhere", {"model_type": model_type})
            assert converted.check_backbone_class() is kind, model_type
        else:
            assert preset in kind.presets, preset
