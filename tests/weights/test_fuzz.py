"""Checkpoints that lie: any config.json, header or index gives a model or a ConfigError, in little memory.

The plain run takes a few of each kind; -m slow takes thousands.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.weights.checkpoint import INDEX, WEIGHTS, open_checkpoint
from keras_tx.weights.safetensors_file import open_tensors
from tests.drawing import redraw
from tests.memory import begin_peak, peak, resident

BERT = {"width": 8, "depth": 2, "num_heads": 2, "vocabulary_size": 20, "max_length": 8}
MODELS: dict[str, Any] = {
    "bert": lambda: keras_tx.bert("tiny", head=keras_tx.MaskedLMHead(), **BERT),
    "num_classes": lambda: keras_tx.bert("tiny", head=keras_tx.ClassifierHead(3), **BERT),
    "distilbert": lambda: keras_tx.bert("tiny", segments=0, pooler=None, **BERT),
    "gpt": lambda: keras_tx.gpt("nano", width=8, num_heads=2, depth=1, vocabulary_size=20, max_length=8),
    "llama": lambda: keras_tx.gpt("llama-tiny", width=8, num_heads=2, kv_heads=1, depth=1, mlp_dim=16),
    "vit": lambda: keras_tx.vit("Mu/2", width=8, num_heads=2, mlp_dim=16, image_size=8, num_classes=3),
}
MEMORY = 300 * 2**20  # bytes that a whole test may take at its peak; the files have some kilobytes

COUNTS = st.sampled_from([0, 1, 2, 3, 4, 7, 8, 16, 64, 10**4, 10**6, 10**9, 10**12, 2**31, 2**63, 10**30])
NUMBERS = st.one_of(
    COUNTS, COUNTS.map(lambda x: -x), st.floats(), st.sampled_from([1e-12, 0.1, 1.0, 1.5, 1e300])
)
WORDS = st.sampled_from(["", "gelu", "relu", "silu", "bert", "gpt2", "llama", "vit", "absolute", "../x", "0"])
SIMPLE = st.one_of(st.none(), st.booleans(), NUMBERS, WORDS, st.text(max_size=5))
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(WORDS | st.just("1"), inner, max_size=3)
    ),
    max_leaves=5,
)
FEW = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("sound")
    return {name: keras_tx.save_checkpoint(redraw(make()), place / name) for name, make in MODELS.items()}


@pytest.fixture
def bounded():
    """Fails where the peak of the process's memory, from here on, is MEMORY above what it is now."""
    if sys.platform != "linux":
        yield  # nobody tells
        return
    before = resident()
    begin_peak()
    yield
    assert peak() - before < MEMORY


def tried(path: Path) -> None:
    """A model, or a ConfigError of a length that can be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = keras_tx.from_checkpoint(path)
        except ConfigError as error:
            assert 20 < len(str(error)) < 5000
        else:
            assert model.count_params() < 10**5


def put(folder: Path, sound: Path, config: Any, weights: bytes | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / WEIGHTS).write_bytes((sound / WEIGHTS).read_bytes() if weights is None else weights)
    return folder


def configs(sound: Path, place: Path, data: st.DataObject) -> None:
    """Some fields of a sound config.json get other values, or go."""
    config = json.loads((sound / "config.json").read_text())
    for name in data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3, unique=True)):
        if data.draw(st.integers(0, 5)) == 0:
            del config[name]
        else:
            config[name] = data.draw(VALUES, name)
    tried(put(place, sound, config))


def headers(sound: Path, place: Path, data: st.DataObject) -> None:
    """Some entries of a sound header say something else, with the length of the header set right."""
    whole = (sound / WEIGHTS).read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:end])
    for name in data.draw(st.lists(st.sampled_from(sorted(header)), min_size=1, max_size=3, unique=True)):
        what = data.draw(st.sampled_from(["gone", "anything", "dtype", "shape", "data_offsets", "renamed"]))
        if what == "gone":
            del header[name]
        elif what == "renamed":
            header[data.draw(st.text(max_size=8))] = header.pop(name)
        elif what == "anything" or name == "__metadata__":
            header[name] = data.draw(VALUES)
        elif what == "dtype":
            header[name][what] = data.draw(
                st.sampled_from(["F16", "F64", "I8", "BOOL", "F32 ", "x", None, 4])
            )
        else:
            values = list(header[name][what])
            if values:
                values[data.draw(st.integers(0, len(values) - 1))] = data.draw(SIMPLE)
            header[name][what] = data.draw(st.sampled_from([values, values[::-1], [*values, 1], values[1:]]))
    text = json.dumps(header).encode()
    weights = len(text).to_bytes(8, "little") + text + whole[end:]
    tried(put(place, sound, json.loads((sound / "config.json").read_text()), weights))


def indices(sound: Path, place: Path, data: st.DataObject) -> None:
    """A sound index, with places and names of anything."""
    place.mkdir(exist_ok=True)
    (place / "config.json").write_bytes((sound / "config.json").read_bytes())
    shard = "model-00001-of-00001.safetensors"
    (place / shard).write_bytes((sound / WEIGHTS).read_bytes())
    names = dict.fromkeys(open_tensors(sound / WEIGHTS).shapes, shard)
    index: dict[str, Any] = {"metadata": {}, "weight_map": names}
    for name in data.draw(st.lists(st.sampled_from(sorted(names)), max_size=3, unique=True)):
        names[name] = data.draw(VALUES | st.sampled_from([f"../{shard}", f"./{shard}", "/dev/zero", shard]))
    if data.draw(st.booleans()):
        names[data.draw(st.text(max_size=5))] = data.draw(VALUES | st.just(shard))
    index = data.draw(st.sampled_from([index, names, {"weight_map": [names]}, index, index]))
    (place / INDEX).write_text(json.dumps(index))
    tried(place)


KINDS = {"configs": configs, "headers": headers, "indices": indices}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@FEW
@given(data=st.data())
def test_few_damaged_files_raise(kind, folders, tmp_path_factory, bounded, data):
    name = data.draw(st.sampled_from(sorted(MODELS)))
    kind(folders[name], tmp_path_factory.mktemp("fuzzed"), data)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@MANY
@given(data=st.data())
def test_many(kind, name, folders, tmp_path, bounded, data):
    kind(folders[name], tmp_path / "fuzzed", data)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_bytes(folders, tmp_path, bounded, data):
    """A sound file cut, with bytes changed, or with other bytes in its place."""
    whole = bytearray((folders["gpt"] / WEIGHTS).read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        near = data.draw(st.sampled_from([16, 400, len(whole)]))
        whole[data.draw(st.integers(0, near - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([len(whole), 0, 5, 8, 9, 100, len(whole) - 1]))
    path = tmp_path / "any.safetensors"
    path.write_bytes(bytes(whole[:cut]) + data.draw(st.binary(max_size=3)))
    try:
        tensors = open_tensors(path)
    except ConfigError:
        return
    for name, shape in tensors.shapes.items():
        assert tensors.read(name).shape == shape


def test_undamaged_files_load(folders):
    for name, folder in folders.items():
        assert np.isfinite(keras_tx.from_checkpoint(folder).get_weights()[0]).all(), name
        assert open_checkpoint(folder).config
