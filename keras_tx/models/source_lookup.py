"""Looks up the converter of a source of weights: a path, a name or a live model."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from keras_tx import contract
from keras_tx.consistent_read import read_consistently
from keras_tx.errors import ConfigError
from keras_tx.models import keras_file, keras_hub_models
from keras_tx.models.config import hub_advice
from keras_tx.models.families import WeightSource, factories, families
from keras_tx.models.transformer_model import TransformerModel
from keras_tx.weights import huggingface_hub
from keras_tx.weights.checkpoint import open_checkpoint
from keras_tx.weights.tensor_source import Checkpoint

ModelClass = type[TransformerModel] | None
EXPECTED = (
    "expected a Hugging Face folder, a .safetensors file, hf://owner/name, a keras-hub preset or model, a "
    ".keras or .weights.h5 file, or a model of keras_tx"
)


def open_source(source: Any, model_class: ModelClass = None) -> WeightSource:
    """Describes a source of weights.

    Args:
        source: a path, a name or a live model.
        model_class: the class of the model, for files without a config.

    Raises:
        ConfigError: if the source is not supported.
    """
    if isinstance(source, TransformerModel):
        return keras_file.of_model(source)
    if "keras_hub" in sys.modules and keras_hub_models.is_model(source):
        return keras_hub_models.of_model(source)
    if isinstance(source, str | os.PathLike):
        return _named(os.fspath(source), model_class)
    raise ConfigError(f"weights is a {type(source).__name__}, {EXPECTED}.")


def _named(name: str, model_class: ModelClass) -> WeightSource:
    path = Path(name)
    if name.startswith(huggingface_hub.SCHEME):
        path = huggingface_hub.download(name)
        if keras_hub_models.is_folder(path):
            return keras_hub_models.of_preset(name)
        return _of_checkpoint(open_checkpoint(path), model_class)
    if keras_hub_models.is_url(name):
        return keras_hub_models.of_preset(name)
    if not path.exists():
        if keras_hub_models.is_name(name):
            return keras_hub_models.of_preset(name)
        raise ConfigError(f"{name} does not exist; {EXPECTED}. {hub_advice(name)}".rstrip())
    if keras_hub_models.is_folder(path):
        return keras_hub_models.of_preset(name)
    if (path / contract.MANIFEST).is_file():
        raise ConfigError(
            f"{path} is an exported ONNX folder, which keras_tx.runtime.load runs; its graph cannot be "
            "trained. Pass the .keras file or the checkpoint that it was exported from."
        )
    if name.endswith(".keras"):
        return keras_file.open_keras(path)
    if name.endswith(".weights.h5"):
        return keras_file.open_weights(path, model_class)
    return read_consistently(path, lambda: _of_checkpoint(open_checkpoint(path), model_class), ConfigError)


def _of_checkpoint(checkpoint: Checkpoint, model_class: ModelClass) -> WeightSource:
    tensors, config = checkpoint.tensors, checkpoint.config
    converters = {family: family.huggingface() for family in families() if family.huggingface is not None}
    if config is not None:
        kind = config.get("model_type")
        for converter in converters.values():
            if kind in converter.model_types:
                return converter.read(checkpoint)
        known = sorted({name for converter in converters.values() for name in converter.model_types})
        advice = keras_hub_models.advice(str(kind), checkpoint.folder)
        raise ConfigError(
            f"{checkpoint.folder}: config.json has model_type={kind!r}, which is not supported. Supported "
            f"are {', '.join(map(repr, known))}. {advice}".rstrip()
        )
    if model_class is None:
        raise ConfigError(
            f"{tensors.where} contains tensors but no config, so its model is unknown. Pass the folder with "
            f"its config.json, or pass the file as weights= to {factories()}."
        )
    plans = [converter.plan for family, converter in converters.items() if family.model_class is model_class]
    if not plans:
        raise ConfigError(f"{tensors.where}: {model_class.__name__} does not support Hugging Face files.")
    return WeightSource(
        tensors.where, model_class, None, None, None, tensors, lambda model: plans[0](model, tensors)
    )
