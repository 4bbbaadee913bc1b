"""Gives a model back to Hugging Face: `save_checkpoint` writes the folder that transformers opens."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_tx import contract
from keras_tx.atomic_write import atomic_directory, check_target
from keras_tx.errors import ConfigError
from keras_tx.heads.base import label_names
from keras_tx.models.bert.huggingface import bert_to_config
from keras_tx.models.bert.model import Bert
from keras_tx.models.bert.sentence_transformers import sentence_files
from keras_tx.models.gpt.huggingface import gpt_to_config
from keras_tx.models.gpt.model import GPT
from keras_tx.models.source_lookup import HUGGING_FACE
from keras_tx.models.transformer_model import TransformerModel
from keras_tx.models.vit.huggingface import vit_to_config
from keras_tx.models.vit.model import ViT
from keras_tx.weights.assignment import variables_of
from keras_tx.weights.checkpoint import WEIGHTS
from keras_tx.weights.safetensors_file import open_tensors, write_tensors
from keras_tx.weights.tensor_map import Entry, Plan
from keras_tx.weights.weight_values import array_of, check_finite

WRITTEN = {  # what a folder may hold that is to be replaced
    WEIGHTS,
    contract.CONFIG,
    contract.GENERATION_CONFIG,
    contract.PREPROCESSOR,
    contract.TOKENIZER,
    contract.TOKENIZER_CONFIG,
    contract.SPECIAL_TOKENS,
    contract.VOCAB,
    contract.VOCAB_JSON,
    contract.MERGES,
    contract.MODULES,
    contract.POOLING,
    contract.NORMALIZE,
    contract.SENTENCE_BERT,
}


def save_checkpoint(
    model: Any,
    folder: str | os.PathLike[str],
    *,
    labels: Sequence[str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes a model as a Hugging Face folder, which `from_pretrained` of transformers opens.

    It holds config.json, model.safetensors and, of the model's processing, the tokenizer's files or
    preprocessor_config.json. A model that no class of transformers can be like is refused, with the reasons.

    >>> import keras_tx, tempfile
    >>> from keras_tx import save_checkpoint
    >>> model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = save_checkpoint(model, place + "/small", labels=["daisy", "rose", "tulip"])
    ...     keras_tx.from_checkpoint(folder).config == model.config
    True

    Args:
        labels: names of the classes, in order; by default those of the head.
        overwrite: whether a folder that was written by this function may be replaced.
    """
    folder = Path(folder)
    if not isinstance(model, TransformerModel):
        raise ConfigError(
            f"save_checkpoint takes what keras_tx.vit, bert, gpt or from_checkpoint made, not a "
            f"{type(model).__name__}. Any Keras model has model.save."
        )
    config, reasons = _config(model, label_names(model.head, labels, model.name))
    if reasons:
        raise ConfigError(
            f"Model {model.name!r} has {', '.join(reasons)}, which no class of transformers can have. "
            "Keep it with model.save, or export it with export_onnx."
        )
    plan: Plan = HUGGING_FACE[_family(model)].plan(model, None)
    files = {contract.CONFIG: config, **_processing_files(model)}
    check_target(folder, overwrite, ConfigError, lambda folder: WRITTEN)
    check_finite(model, "Save the model as it was before its training diverged.")
    with atomic_directory(folder, ConfigError) as aside:
        for name, content in files.items():
            (aside / name).parent.mkdir(exist_ok=True)
            text = content if isinstance(content, str) else _json(content)
            (aside / name).write_text(text, encoding="utf-8", newline="\n")
        _write_weights(model, plan, aside / WEIGHTS)
    return folder


def _write_weights(model: TransformerModel, plan: Plan, path: Path) -> None:
    variables = variables_of(model, plan)

    def values(entry: Entry) -> np.ndarray:
        return entry.form.to_theirs([array_of(variables[x]) for x in entry.paths])

    entries = {entry.name: entry for entry in plan.entries}
    described: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
    for name, entry in entries.items():
        if entry.paths:
            ours = [variables[x] for x in entry.paths]
            shape = entry.form.their_shape([tuple(x.shape) for x in ours])
            described[name] = (np.dtype(keras.backend.standardize_dtype(ours[0].dtype)), shape)
        else:  # what their class has and ours has not
            value = values(entry)
            described[name] = (value.dtype, value.shape)

    def read(name: str) -> np.ndarray:
        return values(entries[name]).astype(described[name][0], copy=False)

    write_tensors(path, described, read)
    assert open_tensors(path).shapes == {name: shape for name, (_, shape) in described.items()}


def _family(model: TransformerModel) -> type[TransformerModel]:
    return next(family for family in (ViT, Bert, GPT) if isinstance(model, family))


def _config(model: TransformerModel, labels: list[str] | None) -> tuple[dict[str, Any], list[str]]:
    """config.json, and why there is none."""
    if isinstance(model, ViT):
        return vit_to_config(model, labels)
    if isinstance(model, Bert):
        return bert_to_config(model, labels)
    assert isinstance(model, GPT)
    return gpt_to_config(model, model.special_ids())


def _processing_files(model: TransformerModel) -> dict[str, Any]:
    if isinstance(model, ViT):
        return {contract.PREPROCESSOR: model.processing.to_preprocessor_config()}
    transform: Any = model.processing
    files: dict[str, Any] = {} if transform is None else transform.files()
    if isinstance(model, Bert):
        longest = None if transform is None else transform.max_length
        files |= sentence_files(model.head, model.config.width, longest or model.config.max_length)
    if isinstance(model, GPT) and model.head is not None:
        known = {name: number for name, number in model.special_ids().items() if number is not None}
        files[contract.GENERATION_CONFIG] = known
    return files


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
