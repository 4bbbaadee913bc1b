"""Opens checkpoints: a folder or a file with safetensors, or tf_model.h5. Pickles are never opened."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.weights import tensorflow_file
from keras_tx.weights.safetensors_file import open_tensors
from keras_tx.weights.tensor_source import Checkpoint, Tensors

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"
LONGEST_JSON = 64 * 2**20  # bytes
NAMED = 12  # of a long list

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
HOW_TO_CONVERT = """\
Convert it once, where PyTorch and safetensors are installed:
    import torch, safetensors.torch
    state = torch.load({path!r}, map_location="cpu", weights_only=True)
    safetensors.torch.save_file({{name: x.clone().contiguous() for name, x in state.items()}}, {target!r})"""
OTHER_FORMATS = {
    ".npz": "NumPy arrays",
    ".npy": "a NumPy array",
    ".h5": "TensorFlow's or an older Keras's weights",
    ".hdf5": "TensorFlow's or an older Keras's weights",
    ".msgpack": "Flax's weights",
    ".gguf": "llama.cpp's weights",
    ".onnx": "an ONNX graph",
}


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a folder with config.json and weights, or one file of weights.

    Weights are safetensors (one file, or shards with an index), or else tf_model.h5.

    Raises:
        ConfigError: the files are missing, invalid, or of another format.
    """
    if not path.is_dir():
        return Checkpoint(_lone_file(path))
    tensors = _weights(path)
    if not (path / contract.CONFIG).is_file():
        raise ConfigError(
            f"{path} has no {contract.CONFIG}, which defines the model. If you know the model, pass the "
            "safetensors file as weights= to its factory, such as keras_tx.bert."
        )
    return Checkpoint(tensors, read_json(path, contract.CONFIG), path)


def read_json(folder: Path, name: str, kind: type = dict) -> Any:
    """Reads a JSON object or list from a file of the folder; NaN and infinity are not JSON."""
    path = inside(folder, name)
    try:
        size = path.stat().st_size
        if size > LONGEST_JSON:
            raise ConfigError(f"{path} has {size} bytes, expected at most {LONGEST_JSON}.")
        content = json.loads(path.read_text("utf-8"), parse_constant=_refused, parse_float=_finite)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is not JSON ({error}). Download or copy it again.") from error
    if not isinstance(content, kind):
        expected = "a JSON object" if kind is dict else "a list"
        raise ConfigError(f"{path} holds a {type(content).__name__}, expected {expected}.")
    return content


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is not a JSON number")


def _finite(text: str) -> float:
    if math.isinf(float(text)):
        raise ValueError(f"{text} is too large")
    return float(text)


def inside(folder: Path, name: str) -> Path:
    """Returns the path of a file; raises a ConfigError if the name or a link leads out of the folder.

    In the cache of huggingface_hub, snapshots/REVISION has links to files in blobs/, which are followed.
    """
    if not name or name in (".", "..") or any(character in name for character in "/\\:\0"):
        raise ConfigError(f"{folder} names the file {name!r}, expected the name of a file inside the folder.")
    path = folder / name
    real, home = path.resolve(), folder.resolve()
    snapshots = (place.parent for place in (home, home.parent) if place.parent.name == "snapshots")
    allowed = [home, *(place.parent / "blobs" for place in snapshots)]
    if not any(real.is_relative_to(place) for place in allowed):
        raise ConfigError(
            f"{path} is a link to {real}, outside the folder, and is not followed. Copy the folder with "
            "cp -rL."
        )
    return path


def _weights(folder: Path) -> Tensors:
    if (folder / WEIGHTS).is_file():
        return open_tensors(inside(folder, WEIGHTS))
    if (folder / INDEX).is_file():
        return _sharded(folder)
    if (folder / tensorflow_file.WEIGHTS).is_file():
        return tensorflow_file.open_tensorflow_weights(inside(folder, tensorflow_file.WEIGHTS))
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    others = [name for name in names if name.endswith(SUFFIX)]
    if others:
        raise ConfigError(
            f"{folder} has {_list(others)}, but neither {WEIGHTS} nor {INDEX}. Pass the path of the "
            "safetensors file, or rename it."
        )
    for name in names:
        if name.endswith((*PICKLES, ".h5", ".msgpack")):
            _refuse(folder / name)
    raise ConfigError(
        f"{folder} has no weights: expected {WEIGHTS}, {INDEX} and its shards, or {tensorflow_file.WEIGHTS}."
    )


def _sharded(folder: Path) -> Tensors:
    index = _index(folder)
    shards: dict[str, Tensors] = {}
    for name in sorted(set(index.values())):
        path = inside(folder, name)
        if not name.endswith(SUFFIX):
            raise ConfigError(
                f"{folder / INDEX} names the file {name!r}, expected names that end in {SUFFIX}."
            )
        if not path.is_file():
            raise ConfigError(f"{path} is missing, but {folder / INDEX} names it. Download the whole folder.")
        shards[name] = open_tensors(path)
    _check_index(folder, index, shards)

    def release() -> None:
        for shard in shards.values():
            shard.release()

    return Tensors(
        where=str(folder),
        shapes={tensor: shards[name].shapes[tensor] for tensor, name in index.items()},
        read=lambda tensor: shards[index[tensor]].read(tensor),
        nbytes=sum(shard.nbytes for shard in shards.values()),
        dtypes={tensor: shards[name].dtypes[tensor] for tensor, name in index.items()},
        release=release,
    )


def _index(folder: Path) -> dict[str, str]:
    """The file of each tensor."""
    index = read_json(folder, INDEX).get("weight_map")
    if not isinstance(index, dict) or not index or not all(isinstance(x, str) for x in index.values()):
        raise ConfigError(f"{folder / INDEX} has no weight_map, an object of tensor names and file names.")
    return index


def _check_index(folder: Path, index: dict[str, str], shards: dict[str, Tensors]) -> None:
    wrong = [tensor for tensor, name in index.items() if tensor not in shards[name].shapes]
    if wrong:
        raise ConfigError(
            f"{folder / INDEX} places {_list(wrong)} in files that do not have them. Download it again."
        )
    unlisted = [x for name, shard in shards.items() for x in shard.shapes if index.get(x) != name]
    if unlisted:
        raise ConfigError(
            f"The files of {folder} have {_list(unlisted)}, which {INDEX} does not list there. "
            "Download it again."
        )


def _lone_file(path: Path) -> Tensors:
    if path.name.endswith(SUFFIX):
        return open_tensors(path)
    if path.name == tensorflow_file.WEIGHTS and path.is_file():
        return tensorflow_file.open_tensorflow_weights(path)
    _refuse(path)
    raise ConfigError(
        f"{path} is not a supported file of weights, expected {SUFFIX}, {tensorflow_file.WEIGHTS}, .keras, "
        ".weights.h5 or a folder."
    )


def _refuse(path: Path) -> None:
    """Raises a ConfigError for formats that are not supported, with a way to convert them."""
    if path.name.endswith(PICKLES):
        raise ConfigError(
            f"{path} is a pickle, which can execute any code when it is opened, and is not supported.\n"
            + HOW_TO_CONVERT.format(path=str(path), target=str(path.with_name(WEIGHTS)))
        )
    for suffix, meaning in OTHER_FORMATS.items():
        if path.name.endswith(suffix):
            raise ConfigError(
                f"{path} is {meaning}, expected a {SUFFIX} file. Write one with save_pretrained of "
                "transformers, or with safetensors.numpy.save_file."
            )


def _list(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(repr, names[:NAMED])) + more
