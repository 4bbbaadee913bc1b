"""Reads tf_model.h5, the weights of transformers' TensorFlow classes, under the names of PyTorch's tensors.

A variable is named after the layers that contain it: "tf_bert_model/bert/encoder/layer_._0/.../kernel:0".
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from keras_tx.errors import ConfigError
from keras_tx.weights.h5_file import NamedDatasets, members, open_datasets
from keras_tx.weights.tensor_source import Tensors

WEIGHTS = "tf_model.h5"
# The last part of a name, and its name in PyTorch.
PARAMETERS = {"kernel": "weight", "embeddings": "weight", "gamma": "weight", "beta": "bias"}
AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1)}  # of a kernel by its rank: dense, conv1d, conv2d


def open_tensorflow_weights(path: Path) -> Tensors:
    """Opens a tf_model.h5 file; kernels are transposed as in PyTorch.

    Raises:
        ConfigError: if the file was not written by a TensorFlow class of transformers, or is damaged.
    """
    try:
        stored = open_datasets(path, lambda opened: _variables(opened, path), 0, path.stat().st_size)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read as HDF5: {error}. Download or copy it again.") from error
    names: dict[str, str] = {}
    for variable in stored.shapes:
        name = pytorch_name(variable)
        if name in names:
            raise ConfigError(f"{path} has {variable!r} and {names[name]!r}, which are the same tensor {name!r}.")
        names[name] = variable

    def read(name: str) -> np.ndarray:
        return _as_in_pytorch(names[name], stored.read(names[name]))

    shapes = {name: _shape_in_pytorch(variable, stored.shapes[variable]) for name, variable in names.items()}
    dtypes = {name: stored.dtypes[variable] for name, variable in names.items()}
    return dataclasses.replace(stored, shapes=shapes, read=read, dtypes=dtypes)


def pytorch_name(variable: str) -> str:
    """The name of a variable in PyTorch.

    >>> pytorch_name("tf_bert_for_masked_lm/mlm___cls/predictions/bias:0")
    'cls.predictions.bias'
    >>> pytorch_name("tf_bert_model/bert/encoder/layer_._0/output/LayerNorm/gamma:0")
    'bert.encoder.layer.0.output.LayerNorm.weight'
    """
    path = re.sub(r"(?<=/)[^/]*___", "", variable.removesuffix(":0")).replace("_._", "/")
    parts = [part for part in path.split("/") if part]
    *layers, parameter = parts[1:] or parts
    return ".".join([*layers, PARAMETERS.get(parameter, parameter)])


def _variables(opened: h5py.File, path: Path) -> NamedDatasets:
    layers = opened.attrs.get("layer_names")
    if layers is None or "backend" not in opened.attrs:
        raise ConfigError(
            f"{path} is not {WEIGHTS} of a TensorFlow class of transformers: it has no layer_names. Pass a "
            "checkpoint in safetensors."
        )
    for name, group in members(opened, path):
        if name != "top_level_model_weights":
            yield from _datasets(group, "", path)
    top = opened.get("top_level_model_weights")
    if top is not None:
        yield from _datasets(top, "", path)


def _datasets(group: Any, prefix: str, path: Path) -> Iterator[tuple[str, h5py.Dataset]]:
    for key, inner in members(group, path):
        if isinstance(inner, h5py.Dataset):
            yield prefix + key, inner
        else:
            yield from _datasets(inner, f"{prefix}{key}/", path)


def _is_kernel(variable: str) -> bool:
    return variable.removesuffix(":0").rpartition("/")[2] == "kernel"


def _as_in_pytorch(variable: str, values: np.ndarray) -> np.ndarray:
    if _is_kernel(variable) and values.ndim in AXES:
        return values.transpose(AXES[values.ndim])
    return values.reshape(_shape_in_pytorch(variable, values.shape))


def _shape_in_pytorch(variable: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if _is_kernel(variable) and len(shape) in AXES:
        return tuple(shape[axis] for axis in AXES[len(shape)])
    # The bias of a Conv1D of GPT-2 is a matrix of one row in TensorFlow.
    return shape[1:] if variable.endswith("/bias:0") and len(shape) == 2 and shape[0] == 1 else shape
