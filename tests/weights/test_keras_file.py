"""Weights of .keras and .weights.h5 files and of models in memory; damaged files raise."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.models.keras_file import OF_HEADS
from keras_tx.weights.weightless import build_weightless
from tests.drawing import as_numpy, redraw
from tests.weights.small_models import HEADS, MODELS, assert_same_weights, bert


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> tuple[Any, Path]:
    """A classifier in Keras's formats, saved once."""
    folder = tmp_path_factory.mktemp("saved")
    model = redraw(bert(HEADS["classes"]))
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    return model, folder


@pytest.mark.parametrize("name", ["bert, classes", "bert, masked", "gpt", "llama", "vit"])
def test_keras_files_and_live_models_are_read(name, tmp_path):
    model = redraw(MODELS[name]())
    model.save(tmp_path / "model.keras")
    for source in (tmp_path / "model.keras", model):
        back = keras_tx.from_checkpoint(source)
        assert (type(back), back.config, back.head) == (type(model), model.config, model.head)
        assert back.processing == model.processing
        assert_same_weights(model, back)


def test_weights_need_their_variant(saved):
    model, folder = saved
    sizes = {"vocabulary_size": 40, "max_length": 16}
    path = folder / "model.weights.h5"
    assert_same_weights(model, keras_tx.bert("tiny", weights=path, head=model.head, **sizes))
    with pytest.raises(ConfigError, match="no config"):
        keras_tx.from_checkpoint(path)
    with pytest.raises(ConfigError, match=r"shape: token_embedding/0 is 40 x 128, but token_embedding/table"):
        keras_tx.bert("tiny", weights=path, head=model.head, max_length=16)
    with pytest.raises(ConfigError, match=r"not expected: block_1/.*\n.*and \d+ more"):
        keras_tx.bert("tiny", weights=path, head=model.head, depth=1, **sizes)


@pytest.mark.parametrize("name", MODELS)
def test_the_layers_of_every_head_are_known(name):
    """What a head of the file has, and the model's not, is left out and not an error."""
    model = MODELS[name]()
    body = {x.path for x in build_weightless(model.assemble, model.config).weights}
    layers = {x.path.split("/")[0] for x in model.weights if x.path not in body}
    assert layers <= set(OF_HEADS)


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_another_head_on_the_same_layers(name, saved):
    model, folder = saved
    sizes = {} if name == "model.keras" else {"vocabulary_size": 40, "max_length": 16}
    with pytest.warns(UserWarning, match="prediction_dense/kernel.*; .*pooler/0"):
        back = keras_tx.bert("tiny", weights=folder / name, head=keras_tx.MaskedLMHead(), **sizes)
    body = {x.path: as_numpy(x) for x in model.weights}
    for variable in back.weights:
        if not variable.path.startswith(("prediction", "logits")):
            np.testing.assert_array_equal(as_numpy(variable), body[variable.path])


def test_bfloat16_is_read(tmp_path):
    model = redraw(bert(HEADS["classes"], dtype="bfloat16"))
    model.save(tmp_path / "model.keras")
    back = keras_tx.from_checkpoint(tmp_path / "model.keras")
    assert back.get_layer("token_embedding").weights[0].dtype == "float32"
    assert_same_weights(model, back)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"registered_name": "Functional", "class_name": "Functional"},
            "contains a Functional",
        ),
        ({"config": {}}, "Bert: KeyError"),
        ({"config": {"config": {"width": 3}}}, "Bert: |not a valid .keras file"),
        ({"config": None}, "Bert: TypeError"),
        (
            {"config": {"head": {"registered_name": None, "module": "os", "class_name": "system"}}},
            "head None",
        ),
    ],
)
def test_invalid_configs_raise(change, message, saved, tmp_path):
    path = changed(saved[1], tmp_path, lambda config: {**config, **change})
    with pytest.raises(ConfigError, match=message):
        keras_tx.from_checkpoint(path)


@pytest.mark.parametrize("field", ["width", "depth", "mlp_dim", "vocabulary_size", "max_length", "num_heads"])
def test_sizes_beyond_the_weights_raise(field, saved, tmp_path):
    def claims(config: dict[str, Any]) -> dict[str, Any]:
        config["config"]["config"][field] = 64 * 10**12
        return config

    with pytest.raises(ConfigError, match=f"{field}=64000000000000|not divisible"):
        keras_tx.from_checkpoint(changed(saved[1], tmp_path, claims))


def changed(folder: Path, place: Path, change: Any, compression: int = zipfile.ZIP_STORED) -> Path:
    path = place / "changed.keras"
    with zipfile.ZipFile(folder / "model.keras") as old, zipfile.ZipFile(path, "w", compression) as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "config.json":
                content = json.dumps(change(json.loads(content))).encode()
            new.writestr(name, content)
    return path


def test_a_compressed_or_damaged_archive_raises(saved, tmp_path):
    path = changed(saved[1], tmp_path, dict, zipfile.ZIP_DEFLATED)
    with pytest.raises(ConfigError, match="changed.keras is compressed"):
        keras_tx.from_checkpoint(path)
    whole = (saved[1] / "model.keras").read_bytes()
    for content in (b"", b"x" * 99, whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="not a valid .keras file"):
            keras_tx.from_checkpoint(path)


def test_a_damaged_weights_file_raises(saved, tmp_path):
    path = tmp_path / "lying.weights.h5"
    whole = (saved[1] / "model.weights.h5").read_bytes()
    for content in (b"", b"x" * 99, whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(
            ConfigError, match=r"lying.weights.h5( cannot be read|: the data of .* is compressed,)"
        ):
            read(path)

    def lie(what: Any) -> None:
        path.write_bytes(whole)
        with h5py.File(path, "a") as file:
            place = file["layers/token_embedding/vars"]
            del place["0"]
            what(place)

    def chunked(place: Any) -> None:
        place.create_dataset("0", shape=(10**6, 10**6), chunks=(8, 8), dtype="float32")

    def elsewhere(place: Any) -> None:
        place.create_dataset("0", (40, 128), "float32", external=[("/etc/passwd", 0, 40 * 128 * 4)])

    def linked(place: Any) -> None:
        place["0"] = h5py.ExternalLink("other.h5", "/0")

    def softly(place: Any) -> None:
        place["0"] = h5py.SoftLink("/layers/dense/vars/0")

    for what in (chunked, elsewhere):
        lie(what)
        with pytest.raises(ConfigError, match="token_embedding/0 is compressed, in chunks, or outside"):
            read(path)
    for what in (linked, softly):
        lie(what)
        with pytest.raises(ConfigError, match="has a link at /layers/token_embedding/vars/0"):
            read(path)


def read(path: Path) -> Any:
    return keras_tx.bert("tiny", weights=path, head=HEADS["classes"], vocabulary_size=40, max_length=16)
