"""Reads tf_model.h5, the weights of transformers' TensorFlow classes, under the names of PyTorch's tensors.

A variable is named after the layers that contain it: "tf_bert_model/bert/encoder/layer_._0/.../kernel:0".
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from keras_tx.errors import ConfigError
from keras_tx.weights.h5_file import datasets_in, open_datasets
from keras_tx.weights.tensor_source import Tensors

if TYPE_CHECKING:
    from keras_tx.weights.h5_file import NamedDatasets

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
    places: dict[str, str] = {}
    for place in stored.shapes:
        first = places.setdefault(pytorch_name(_variable(place)), place)
        if first != place and not np.array_equal(stored.read(first), stored.read(place)):
            raise ConfigError(
                f"{path} has other values in {first} than in {place}. Download or copy it again."
            )

    def read(name: str) -> np.ndarray:
        return _as_in_pytorch(places[name], stored.read(places[name]))

    shapes = {name: _shape_in_pytorch(place, stored.shapes[place]) for name, place in places.items()}
    dtypes = {name: stored.dtypes[place] for name, place in places.items()}
    nbytes = sum(math.prod(shapes[name]) * dtypes[name].itemsize for name in shapes)
    return Tensors(str(path), shapes, read, nbytes, dtypes)


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
    """All variables by their place; those that several layers share are in the group of each layer."""
    if "layer_names" not in opened.attrs or "backend" not in opened.attrs:
        raise ConfigError(
            f"{path} was not written by a TensorFlow class of transformers: it has no layer_names. Pass a "
            "checkpoint in safetensors."
        )
    return datasets_in(opened, path, lambda key, group: key)


def _variable(place: str) -> str:
    """The name of a variable without the group of its layer."""
    return place.partition("/")[2]


def _is_kernel(place: str, axes: int) -> bool:
    return place.endswith("/kernel:0") and axes in AXES


def _as_in_pytorch(place: str, values: np.ndarray) -> np.ndarray:
    if _is_kernel(place, values.ndim):
        return values.transpose(AXES[values.ndim])
    return values.reshape(_shape_in_pytorch(place, values.shape))


def _shape_in_pytorch(place: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if _is_kernel(place, len(shape)):
        return tuple(shape[axis] for axis in AXES[len(shape)])
    # The bias of a Conv1D of GPT-2 is a matrix of one row in TensorFlow.
    return shape[1:] if place.endswith("/bias:0") and len(shape) == 2 and shape[0] == 1 else shape
