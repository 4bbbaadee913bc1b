"""What a source of weights is: a path, a name or a live model, and who understands it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from keras_tx import contract
from keras_tx.consistent_read import read_consistently
from keras_tx.errors import ConfigError, nearest
from keras_tx.models import keras_file, keras_hub_models
from keras_tx.models.bert import huggingface as huggingface_bert
from keras_tx.models.bert.model import Bert
from keras_tx.models.config import hub_advice
from keras_tx.models.gpt import huggingface as huggingface_gpt
from keras_tx.models.gpt.model import GPT
from keras_tx.models.transformer_model import TransformerModel
from keras_tx.models.vit import huggingface as huggingface_vit
from keras_tx.models.vit.model import ViT
from keras_tx.models.weight_source import WeightSource
from keras_tx.weights import huggingface_hub
from keras_tx.weights.checkpoint import open_checkpoint
from keras_tx.weights.tensor_source import Checkpoint

HUGGING_FACE: dict[type[TransformerModel], Any] = {
    ViT: huggingface_vit,
    Bert: huggingface_bert,
    GPT: huggingface_gpt,
}
Family = type[TransformerModel] | None
EXPECTED = (
    "expected a Hugging Face folder, a .safetensors file, hf://owner/name, a keras-hub preset or model, a "
    ".keras or .weights.h5 file, or a model of keras_tx"
)


def open_source(source: Any, family: Family = None) -> WeightSource:
    """Raises a ConfigError for what nobody understands. `family` is what a lone file is for."""
    if isinstance(source, TransformerModel):
        return keras_file.of_model(source)
    if "keras_hub" in sys.modules and keras_hub_models.is_model(source):
        return keras_hub_models.of_model(source)
    if isinstance(source, str | os.PathLike):
        return _named(os.fspath(source), family)
    raise ConfigError(f"weights is a {type(source).__name__}, {EXPECTED}.")


def _named(name: str, family: Family) -> WeightSource:
    path = Path(name)
    if name.startswith(huggingface_hub.SCHEME):
        path = huggingface_hub.download(name)
        if keras_hub_models.is_folder(path):
            return keras_hub_models.of_preset(name)
        return _of_checkpoint(open_checkpoint(path), family)
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
            "trained on. Give the .keras file or the checkpoint that it was exported from."
        )
    if name.endswith(".keras"):
        return keras_file.open_keras(path)
    if name.endswith(".weights.h5"):
        return keras_file.open_weights(path, family)
    return read_consistently(path, lambda: _of_checkpoint(open_checkpoint(path), family), ConfigError)


def _of_checkpoint(checkpoint: Checkpoint, family: Family) -> WeightSource:
    tensors, config = checkpoint.tensors, checkpoint.config
    if config is None:
        if family is None:
            raise ConfigError(
                f"{tensors.where} has tensors but no config, so it does not say which model it is. Give the "
                "folder with its config.json, or give the file as weights= to keras_tx.vit, bert or gpt."
            )
        plan = HUGGING_FACE[family].plan
        return WeightSource(
            tensors.where, family, None, None, None, tensors, lambda model: plan(model, tensors)
        )
    kind = config.get("model_type")
    for reader in HUGGING_FACE.values():
        if kind in reader.MODEL_TYPES:
            return reader.origin(checkpoint)
    known = [name for reader in HUGGING_FACE.values() for name in reader.MODEL_TYPES]
    raise ConfigError(
        f"{checkpoint.folder}: config.json has model_type={kind!r}, which is not read. "
        + (keras_hub_models.advice(str(kind), checkpoint.folder) or nearest(str(kind), known))
    )
