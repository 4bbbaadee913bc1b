"""Reads weights from .keras and .weights.h5 files and from live models of keras_tx.

Keras loads only the whole model that was saved. This module reads the HDF5 file itself, as views of a memory
map, so that a model with another head can use the weights. No code of the file is executed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import keras

from keras_tx.errors import ConfigError
from keras_tx.heads import Head
from keras_tx.models.config import make_config
from keras_tx.models.families import WeightSource, expected_models, factories, families
from keras_tx.models.transformer_model import TransformerModel
from keras_tx.weights.h5_file import datasets_in, open_datasets
from keras_tx.weights.tensor_map import BODY, HEAD, POOLER, Entry, Plan
from keras_tx.weights.tensor_source import Tensors
from keras_tx.weights.weight_values import array_of, check_finite, merged_weights
from keras_tx.weights.weightless import build_weightless

# Layers that belong to heads.
OF_HEADS = (
    *("logits", "prediction_dense", "prediction_norm", "prediction_logits", "seq_relationship_logits"),
    *("span", "pooler", "class_logits", "distillation_logits"),
)
LONGEST_CONFIG = 64 * 2**20  # bytes; the config may contain a tokenizer


def load_model(path: str | os.PathLike[str], *, compile: bool = True) -> Any:
    """Loads a .keras file in safe mode, as `keras.models.load_model` does.

    Args:
        path: the file.
        compile: whether to compile the model if it was compiled when saved.

    Returns:
        The keras.Model.

    Raises:
        ConfigError: if weights are NaN or infinite.

    Example:

    >>> import keras_tx, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     keras_tx.vit("Mu/2", image_size=8, num_classes=3).save(folder + "/model.keras")
    ...     keras_tx.load_model(folder + "/model.keras").task
    'image-classification'
    """
    model = keras.models.load_model(path, compile=compile, safe_mode=True)
    check_finite(model, f"{path} was saved after its training diverged. Load an earlier file.")
    return model


def of_model(model: TransformerModel) -> WeightSource:
    """Describes a live model of keras_tx."""
    variables = merged_weights(model)
    tensors = Tensors(
        where=f"model {model.name!r}",
        shapes={path: tuple(variable.shape) for path, variable in variables.items()},
        read=lambda path: array_of(variables[path]),
    )
    fields = dataclasses.asdict(model.config)
    return WeightSource(
        tensors.where, type(model), fields, model.head, model.processing, tensors, lambda x: _plan(x, str)
    )


def open_keras(path: Path) -> WeightSource:
    """Describes a .keras file of a keras_tx model."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo("config.json").file_size > LONGEST_CONFIG:
                raise ConfigError(f"{path}: config.json exceeds the limit of {LONGEST_CONFIG} bytes.")
            saved = json.loads(archive.read("config.json"))
            part = archive.getinfo("model.weights.h5")
        family, fields, head, processing = _saved(saved, path)
        if part.compress_type != zipfile.ZIP_STORED:
            raise ConfigError(f"{path} is compressed. Pass the .keras file as Keras saved it.")
        with path.open("rb") as file:
            file.seek(part.header_offset)
            local = file.read(30)  # ends with the lengths of the name and of an extra field
            begin = part.header_offset + 30 + sum(struct.unpack("<HH", local[26:]))
        tensors = _tensors(path, begin, part.file_size)
    except ConfigError:
        raise
    except (zipfile.BadZipFile, struct.error, KeyError, ValueError, OSError, RecursionError) as error:
        raise ConfigError(f"{path} is not a valid .keras file: {error}. Save or copy it again.") from error
    return WeightSource(
        str(path), family, fields, head, processing, tensors, lambda x: _plan(x, _numbered(x))
    )


def open_weights(path: Path, family: type[TransformerModel] | None) -> WeightSource:
    """Describes a .weights.h5 file of a keras_tx model; `family` is the class of the model."""
    if family is None:
        raise ConfigError(
            f"{path} contains weights but no config, so its model is unknown. Pass it as weights= to "
            f"{factories()}, with the variant and the options of the model."
        )
    try:
        tensors = _tensors(path, 0, path.stat().st_size)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read as a weights file: {error}. Save or copy it again."
        ) from error
    return WeightSource(str(path), family, None, None, None, tensors, lambda x: _plan(x, _numbered(x)))


def _saved(saved: Any, path: Path) -> tuple[type[TransformerModel], dict[str, Any], Head | None, Any]:
    name = saved.get("registered_name") if isinstance(saved, dict) else None
    classes = {keras.saving.get_registered_name(x.model_class): x.model_class for x in families()}
    if name not in classes:
        kind = saved.get("class_name") if isinstance(saved, dict) else None
        raise ConfigError(
            f"{path} contains a {kind}, expected {expected_models()}. Open other models with "
            "keras.models.load_model."
        )
    family, config = classes[name], saved["config"]
    if isinstance(config, dict) and config.get("quantized"):
        raise ConfigError(
            f"{path} contains a model that Keras quantized, whose weights are not those of a checkpoint. "
            "Load it with keras_tx.load_model."
        )
    try:
        head = config["head"]
        if head is not None:
            if not str(head["registered_name"]).startswith("keras_tx>"):
                raise ConfigError(
                    f"{path}: head {head['registered_name']!r} is not supported, expected a head of keras_tx."
                )
            head = keras.saving.deserialize_keras_object(head, safe_mode=True)
            if not isinstance(head, Head):
                raise ConfigError(f"{path}: head is a {type(head).__name__}, expected a head of keras_tx.")
        processing = config["processing"]
        if processing is not None:
            processing = family.processing_class(**processing)
        fields = dict(config["config"])
        make_config(family.config_class, fields)
    except (TypeError, KeyError) as error:
        raise ConfigError(
            f"{path}: config.json is not that of a {family.__name__}: {error!r}. Save or copy the file again."
        ) from error
    return family, fields, head, processing


def _tensors(path: Path, begin: int, size: int) -> Tensors:
    """Returns the variables of a weights file, by layer and number in the layer."""

    def of_layers(opened: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
        if "layers" not in opened:  # the optimizer's variables are in another group
            raise ConfigError(f"{path} has no group 'layers'. Pass a weights file saved by Keras.")
        return datasets_in(opened["layers"], path, _layer_name)

    return open_datasets(path, of_layers, begin, size)


def _layer_name(key: str, group: h5py.Group) -> str | None:
    """The name of a layer, which its variables have; a group without variables has no name."""
    return group["vars"].attrs.get("name") if "vars" in group else None


def _numbered(model: TransformerModel) -> Any:
    """Returns a function from the path of a variable to its name in a weights file."""
    numbers: dict[str, str] = {}
    counts: dict[str, int] = {}
    for variable in model.weights:
        layer = variable.path.rpartition("/")[0]
        numbers[variable.path] = f"{layer}/{counts.setdefault(layer, 0)}"
        counts[layer] += 1
    return numbers.__getitem__


def _plan(model: TransformerModel, name_of: Any) -> Plan:
    body = {x.path for x in build_weightless(model.assemble, model.config).weights}
    entries = []
    for variable in model.weights:
        part = POOLER if variable.path.startswith("pooler/") else BODY if variable.path in body else HEAD
        entries.append(Entry(name_of(variable.path), (variable.path,), part=part))
    return Plan(tuple(entries), others=tuple(f"{name}/" for name in OF_HEADS))
