"""Checkpoint folders and files: config, shards, links, pickles, and the Hub with and without a network."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.weights import huggingface_hub
from keras_tx.weights.checkpoint import INDEX, WEIGHTS, open_checkpoint
from keras_tx.weights.safetensors_file import write_tensors

CONFIG = {"model_type": "bert"}


def write(path: Path, **arrays: np.ndarray) -> None:
    write_tensors(path, {name: (x.dtype, x.shape) for name, x in arrays.items()}, arrays.__getitem__)


def one(*shape: int, start: float = 0) -> np.ndarray:
    return (np.arange(np.prod(shape), dtype="float32") + start).reshape(shape)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def sharded(folder: Path) -> Path:
    write(folder / "model-00001-of-00002.safetensors", a=one(2), b=one(3, start=2))
    write(folder / "model-00002-of-00002.safetensors", c=one(4, start=5))
    index(folder, a="model-00001-of-00002.safetensors", b="model-00001-of-00002.safetensors")
    index(folder, c="model-00002-of-00002.safetensors")
    return folder


def index(folder: Path, **places: Any) -> None:
    """Adds to the index of a folder; None takes away."""
    path = folder / INDEX
    known = json.loads(path.read_text())["weight_map"] if path.exists() else {}
    known = {name: place for name, place in {**known, **places}.items() if place is not None}
    path.write_text(json.dumps({"metadata": {"total_size": 36}, "weight_map": known}))


def test_a_folder_with_one_file(folder):
    write(folder / WEIGHTS, a=one(2))
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.config, checkpoint.folder) == (CONFIG, folder)
    assert checkpoint.tensors.read("a").tolist() == [0, 1]


def test_a_folder_with_shards(sharded):
    tensors = open_checkpoint(sharded).tensors
    assert tensors.where == str(sharded)
    assert tensors.shapes == {"a": (2,), "b": (3,), "c": (4,)}
    assert tensors.nbytes == 36 and tensors.numbers == 9
    assert np.concatenate([tensors.read(name) for name in "abc"]).tolist() == list(range(9))
    assert set(tensors.dtypes) == set("abc")


def test_a_lone_file_has_no_config(tmp_path):
    write(tmp_path / "any.safetensors", a=one(2))
    checkpoint = open_checkpoint(tmp_path / "any.safetensors")
    assert (checkpoint.config, checkpoint.folder) == (None, None)


def test_transformers_shards_are_read(tmp_path):
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=30
    )
    theirs = transformers.BertModel(config)
    theirs.save_pretrained(tmp_path, max_shard_size="4KB")
    assert (tmp_path / INDEX).exists()
    tensors = open_checkpoint(tmp_path).tensors
    for name, value in theirs.state_dict().items():
        assert torch.equal(torch.tensor(tensors.read(name)), value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../outside.safetensors", "expected the name of a file inside the folder"),
        ("/etc/outside.safetensors", "expected the name of a file inside the folder"),
        ("sub/model.safetensors", "expected the name of a file inside the folder"),
        ("..\\outside.safetensors", "expected the name of a file inside the folder"),
        ("C:outside.safetensors", "expected the name of a file inside the folder"),
        ("nul\0.safetensors", "expected the name of a file inside the folder"),
        ("..", "expected the name of a file inside the folder"),
        ("", "expected the name of a file inside the folder"),
        ("pytorch_model.bin", "expected names that end in .safetensors"),
        ("none.safetensors", "none.safetensors is missing, but .* names it"),
        (3, "has no weight_map"),
        (["a"], "has no weight_map"),
    ],
)
def test_index_with_invalid_file_names_raises(name, message, sharded):
    write(sharded.parent / "outside.safetensors", a=one(2))
    index(sharded, a=name)
    with pytest.raises(ConfigError, match=message):
        open_checkpoint(sharded)


def test_index_and_shards_that_differ_raise(sharded):
    index(sharded, d="model-00002-of-00002.safetensors")
    with pytest.raises(ConfigError, match="places 'd' in files that do not have them"):
        open_checkpoint(sharded)
    index(sharded, c=None, d=None)
    with pytest.raises(ConfigError, match="places|list") as error:
        write(sharded / "model-00001-of-00002.safetensors", a=one(2), b=one(3), extra=one(1))
        open_checkpoint(sharded)
    assert "'extra', which model.safetensors.index.json does not list there" in str(error.value)


@pytest.mark.parametrize(
    "text", ['{"weight_map": {}}', '{"weight_map": []}', "{}", "[]", "nope", '{"a": NaN}']
)
def test_index_without_weight_map_raises(text, sharded):
    (sharded / INDEX).write_text(text)
    with pytest.raises(ConfigError, match=INDEX):
        open_checkpoint(sharded)


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "model-00001-of-00002.safetensors"])
def test_links_out_of_the_folder_raise(name, sharded):
    if name == WEIGHTS:
        write(sharded / WEIGHTS, a=one(2))
    outside = sharded.parent / "outside"
    (sharded / name).rename(outside)
    (sharded / name).symlink_to(outside)
    with pytest.raises(ConfigError, match="is a link to .*outside, outside the folder, and is not followed"):
        open_checkpoint(sharded)


def test_links_of_the_hubs_cache_are_followed(folder):
    """models--owner--name/snapshots/REVISION/FILE is a link to models--owner--name/blobs/HASH."""
    write(folder / WEIGHTS, a=one(2))
    blobs, snapshot = folder.parent / "blobs", folder.parent / "snapshots" / "0123abc"
    folder.rename(blobs)
    snapshot.mkdir(parents=True)
    for name in (WEIGHTS, "config.json"):
        (snapshot / name).symlink_to(Path("..", "..", "blobs", name))
    assert open_checkpoint(snapshot).tensors.read("a").tolist() == [0, 1]


CONFIGS = {
    "no JSON": ("nope", "is not JSON"),
    "a list": ("[1]", "holds a list, expected a JSON object"),
    "NaN": ('{"layer_norm_eps": NaN}', "NaN is not a JSON number"),
    "infinity": ('{"layer_norm_eps": -Infinity}', "-Infinity is not a JSON number"),
    "beyond floats": ('{"layer_norm_eps": 1e999}', "1e999 is too large"),
    "nested": ("[" * 100_000, "is not JSON"),
    "digits": ('{"n": ' + "9" * 5000 + "}", "is not JSON"),
    "bytes": (b"\xff\xfe", "is not JSON"),
}


@pytest.mark.parametrize(("text", "message"), CONFIGS.values(), ids=CONFIGS)
def test_damaged_config_raises(text, message, folder):
    write(folder / WEIGHTS, a=one(2))
    (folder / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=message):
        open_checkpoint(folder)


def test_missing_files_raise(folder):
    with pytest.raises(
        ConfigError, match="has no weights: expected model.safetensors, .*json and its shards, or tf_"
    ):
        open_checkpoint(folder)
    write(folder / "weights.safetensors", a=one(2))
    with pytest.raises(ConfigError, match="has 'weights.safetensors', but neither "):
        open_checkpoint(folder)
    (folder / "weights.safetensors").rename(folder / WEIGHTS)
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match="has no config.json"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "model.pkl"])
def test_pickles_raise_unopened(name, folder):
    path = folder / name
    path.write_bytes(b"not even a pickle")
    os.chmod(path, 0)
    for source in (path, folder):
        with pytest.raises(ConfigError, match="is a pickle, which can execute any code") as error:
            open_checkpoint(source)
        assert f"torch.load({str(path)!r}" in str(error.value)


def test_conversion_of_a_pickle_works(folder):
    torch = pytest.importorskip("torch", reason='pip install "keras-tx[parity]"')
    pytest.importorskip("safetensors", reason='pip install "keras-tx[parity]"')
    table = torch.arange(6.0).reshape(2, 3)
    torch.save({"a": table, "tied": table, "turned": table.T}, folder / "pytorch_model.bin")
    with pytest.raises(ConfigError) as error:
        open_checkpoint(folder)
    code = "\n".join(line.strip() for line in str(error.value).splitlines()[2:])
    exec(compile(code, "message", "exec"), {})
    tensors = open_checkpoint(folder).tensors
    assert tensors.shapes == {"a": (2, 3), "tied": (2, 3), "turned": (3, 2)}
    assert tensors.read("turned").tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tf_model.h5", "cannot be read as HDF5"),
        ("tf_model-00001-of-00002.h5", "TensorFlow's or an older Keras's weights"),
        ("flax_model.msgpack", "is Flax's weights"),
        ("model.gguf", "is llama.cpp's weights"),
        ("model.npz", "is NumPy arrays"),
        ("model.npy", "is a NumPy array"),
        ("model.onnx", "is an ONNX graph"),
        ("model.txt", "model.txt is not a supported file"),
    ],
)
def test_other_formats_raise(name, message, tmp_path):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ConfigError, match=message):
        open_checkpoint(tmp_path / name)


class TestHub:
    @pytest.fixture(autouse=True)
    def package(self, monkeypatch, tmp_path):
        self.package = pytest.importorskip("huggingface_hub")
        self.requests: list[Any] = []
        self.patch = monkeypatch
        self.error: Exception | None = None

        def snapshot_download(name, *, revision, allow_patterns):
            self.requests.append((name, revision, allow_patterns))
            if self.error is not None:
                raise self.error
            for pattern in allow_patterns:
                for path in (tmp_path / "repository").glob(pattern):
                    (tmp_path / path.name).touch()
            return str(tmp_path)

        monkeypatch.setattr(self.package, "snapshot_download", snapshot_download)

    def test_a_repository_is_a_folder(self, tmp_path):
        (tmp_path / "model.safetensors").touch()
        assert huggingface_hub.download("hf://owner/name") == tmp_path
        assert huggingface_hub.download("hf://owner/na.me-2@refs/pr/1") == tmp_path
        assert [x[:2] for x in self.requests] == [("owner/name", None), ("owner/na.me-2", "refs/pr/1")]
        assert not [x for x in self.requests[0][2] if x.endswith((".bin", ".pt", ".h5", ".msgpack"))]

    @pytest.mark.parametrize("weights", ["model.safetensors", "model-00001-of-00002.safetensors"])
    def test_the_files_that_readers_open(self, tmp_path, weights):
        needed = {weights, "config.json", "tokenizer.model", "source.spm", "chat_template.jinja"}
        (tmp_path / "repository").mkdir()
        for name in (*needed, "tf_model.h5", "pytorch_model.bin"):
            (tmp_path / "repository" / name).touch()
        huggingface_hub.download("hf://owner/name")
        assert {path.name for path in tmp_path.iterdir() if path.is_file()} == needed

    def test_weights_of_tensorflow_if_there_are_no_others(self, tmp_path):
        (tmp_path / "repository").mkdir()
        for name in ("config.json", "tf_model.h5", "pytorch_model.bin"):
            (tmp_path / "repository" / name).touch()
        huggingface_hub.download("hf://owner/name@main")
        assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"config.json", "tf_model.h5"}
        assert [x[:2] for x in self.requests] == [("owner/name", "main")] * 2

    @pytest.mark.parametrize("name", ["hf://name", "hf://a/b/c", "hf://a/b@", "hf://a b/c", "hf://../../x"])
    def test_unknown_source_raises(self, name):
        with pytest.raises(ConfigError, match="expected hf://owner/name or hf://owner/name@revision"):
            huggingface_hub.download(name)
        assert not self.requests

    def test_errors_of_the_hub(self):
        errors = self.package.errors
        cases = {
            "LocalEntryNotFoundError": r"reached \(LocalEntryNot.* `hf download owner/name --local-dir",
            "OfflineModeIsEnabled": "is not in the local cache, and huggingface.co cannot be reached",
            "RepositoryNotFoundError": "was not found on huggingface.co",
            "GatedRepoError": "https://huggingface.co/owner/name",
            "RevisionNotFoundError": "the repository has no revision 'main'",
            "HfHubHTTPError": "cannot be reached",
            "HFValidationError": "is not a valid repository name",
        }
        for name, message in cases.items():
            kind = getattr(errors, name)
            self.error = kind.__new__(kind)
            with pytest.raises(ConfigError, match=message):
                huggingface_hub.download("hf://owner/name@main")

    def test_without_the_package(self):
        self.patch.setitem(__import__("sys").modules, "huggingface_hub", None)
        with pytest.raises(ConfigError, match="pip install huggingface_hub"):
            huggingface_hub.download("hf://owner/name")


def test_offline_the_package_itself_is_understood(monkeypatch, tmp_path):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConfigError, match="is not in the local cache"):
        huggingface_hub.download("hf://owner/name")
