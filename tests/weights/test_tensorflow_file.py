"""tf_model.h5 files are equal to the TensorFlow classes of transformers 4 that wrote them."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.weights.checkpoint import open_checkpoint
from keras_tx.weights.tensorflow_file import open_tensorflow_weights
from tests.drawing import as_numpy
from tests.tolerances import assert_close

GOLDEN = Path(__file__).parents[1] / "golden" / "tensorflow"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.zip"))


def unpacked(name: str, folder: Path) -> Path:
    with zipfile.ZipFile(GOLDEN / f"{name}.zip") as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("error")
def test_outputs_are_those_of_the_class(name, tmp_path):
    model = keras_tx.from_checkpoint(unpacked(name, tmp_path))
    with np.load(tmp_path / "example.npz") as example:
        feed = {key.removeprefix("input "): example[key] for key in example if key.startswith("input ")}
        expected = {key: example[key] for key in example if not key.startswith("input ")}
    images = feed.pop("pixel_values", None)
    outputs = model(model.complete(feed)) if images is None else model(images.transpose(0, 2, 3, 1))
    outputs = outputs if isinstance(outputs, dict) else {"logits": outputs}
    for key, output in outputs.items():
        rows = feed["attention_mask"].astype(bool) if expected[key].shape[1:2] == (4,) else slice(None)
        assert_close(as_numpy(output)[rows], expected[key][rows])


def test_weights_are_saved_as_safetensors(tmp_path):
    """All tensors of the file are there, under the names that transformers 5 reads."""
    model = keras_tx.from_checkpoint(unpacked("TFGPT2LMHeadModel", tmp_path / "old"))
    keras_tx.save_checkpoint(model, tmp_path / "new")
    old, new = (open_checkpoint(tmp_path / name).tensors for name in ("old", "new"))
    assert set(new.shapes) == set(old.shapes)
    for name in new.shapes:
        np.testing.assert_array_equal(new.read(name), old.read(name))


def test_file_as_weights_of_a_factory(tmp_path):
    folder = unpacked("TFViTForImageClassification", tmp_path)
    sizes = {"width": 8, "depth": 2, "num_heads": 2, "mlp_dim": 12, "patch_size": 4, "norm_epsilon": 1e-12}
    options = {"image_size": 8, "head": keras_tx.ClassifierHead(3), "weights": folder / "tf_model.h5"}
    model = keras_tx.vit("Ti/16", **sizes, **options)
    expected = keras_tx.from_checkpoint(folder)
    for mine, theirs in zip(model.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(as_numpy(mine), as_numpy(theirs))


def test_copies_that_differ_raise(tmp_path):
    path = unpacked("TFBertForPreTraining", tmp_path) / "tf_model.h5"
    place = "tf_bert_for_pre_training/bert/embeddings/word_embeddings/weight:0"
    with h5py.File(path, "r+") as file:
        groups = [group for group in file if place in file[group]]
        assert len(groups) == 2
        file[groups[1]][place][0, 0] += 1
    with pytest.raises(ConfigError, match=f"has other values in .*{re.escape(place)}"):
        keras_tx.from_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as HDF5"),
        (b"version https://git-lfs.github.com/spec/v1", "cannot be read as HDF5"),
    ],
)
def test_other_files_raise(content, message, tmp_path):
    path = tmp_path / "tf_model.h5"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{re.escape(str(path))} {message}"):
        open_tensorflow_weights(path)


def test_file_of_another_program_raises(tmp_path):
    path = tmp_path / "tf_model.h5"
    with h5py.File(path, "w") as file:
        file["kernel:0"] = np.zeros((2, 3))
    with pytest.raises(ConfigError, match="was not written by a TensorFlow class of transformers"):
        open_tensorflow_weights(path)


def test_compressed_file_raises(tmp_path):
    path = unpacked("TFBertForPreTraining", tmp_path) / "tf_model.h5"
    place = "bert/tf_bert_for_pre_training/bert/embeddings/word_embeddings/weight:0"
    with h5py.File(path, "r+") as file:
        values = file[place][()]
        del file[place]
        file.create_dataset(place, data=values, compression="gzip")
    with pytest.raises(ConfigError, match="is compressed, .* as Keras or transformers wrote it"):
        keras_tx.from_checkpoint(tmp_path)


def test_links_raise(tmp_path):
    path = unpacked("TFBertForPreTraining", tmp_path) / "tf_model.h5"
    with h5py.File(path, "r+") as file:
        file["bert"]["stolen:0"] = h5py.ExternalLink("/etc/hostname", "/")
    with pytest.raises(ConfigError, match="has a link at /bert/stolen:0"):
        keras_tx.from_checkpoint(tmp_path)
