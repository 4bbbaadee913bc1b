"""`save_checkpoint`: writes a model as a Hugging Face folder."""

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
from keras_tx.models.families import expected_models, family_of
from keras_tx.models.transformer_model import TransformerModel
from keras_tx.processing import ImageTransform
from keras_tx.weights.assignment import variables_of
from keras_tx.weights.checkpoint import WEIGHTS
from keras_tx.weights.safetensors_file import open_tensors, write_tensors
from keras_tx.weights.tensor_map import Entry, Plan
from keras_tx.weights.weight_values import array_of, check_finite

WRITTEN = {  # names of files that may be replaced
    WEIGHTS,
    contract.CONFIG,
    contract.GENERATION_CONFIG,
    contract.PREPROCESSOR,
    contract.TOKENIZER,
    contract.TARGET_TOKENIZER,
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
    """Writes a model as a Hugging Face folder for `from_pretrained` of transformers.

    The folder contains config.json, model.safetensors and the files of the model's tokenizer or image
    transform.

    Args:
        model: a model from a factory or `from_checkpoint`.
        folder: to write.
        labels: names of the classes, in order; by default those of the head.
        overwrite: whether to replace a folder written by this function.

    Returns:
        The path of the folder.

    Raises:
        ConfigError: if no class of transformers supports the options of the model, a weight is NaN or
            infinite, or the folder exists and may not be replaced.

    Example:

    >>> import keras_tx, tempfile
    >>> from keras_tx import save_checkpoint
    >>> model = keras_tx.vit("Mu/2", image_size=8, num_classes=3)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = save_checkpoint(model, place + "/small", labels=["daisy", "rose", "tulip"])
    ...     keras_tx.from_checkpoint(folder).config == model.config
    True
    """
    folder = Path(folder)
    family = family_of(model)
    if family is None:
        raise ConfigError(
            f"model is a {type(model).__name__}, expected {expected_models()}. Save it with model.save."
        )
    config = family.config_json(model, label_names(model.head, labels, model.name))
    if family.huggingface is None or config.unsupported:
        raise ConfigError(
            f"Model {model.name!r} has {', '.join(config.unsupported)}, which no class of transformers "
            "supports. Save it with model.save, or export it with export_onnx."
        )
    converter = family.huggingface()
    plan = converter.plan(model, None)
    files = {contract.CONFIG: config.content, **_processing_files(model), **converter.files(model)}
    check_target(folder, overwrite, ConfigError, lambda folder: WRITTEN)
    check_finite(model, "Save the model with weights from before its training diverged.")
    with atomic_directory(folder, ConfigError) as temporary:
        for name, content in files.items():
            (temporary / name).parent.mkdir(exist_ok=True)
            text = content if isinstance(content, str) else _json(content)
            (temporary / name).write_text(text, encoding="utf-8", newline="\n")
        _write_weights(model, plan, temporary / WEIGHTS)
    return folder


def _write_weights(model: TransformerModel, plan: Plan, path: Path) -> None:
    variables = variables_of(model, plan)

    def values(entry: Entry) -> np.ndarray:
        return entry.form.to_tensor([array_of(variables[x]) for x in entry.paths])

    entries = {entry.name: entry for entry in plan.entries}
    described: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
    for name, entry in entries.items():
        if entry.paths:
            parts = [variables[x] for x in entry.paths]
            shape = entry.form.tensor_shape([tuple(x.shape) for x in parts])
            described[name] = (np.dtype(keras.backend.standardize_dtype(parts[0].dtype)), shape)
        else:  # a tensor that only the class of transformers has
            value = values(entry)
            described[name] = (value.dtype, value.shape)

    def read(name: str) -> np.ndarray:
        return values(entries[name]).astype(described[name][0], copy=False)

    write_tensors(path, described, read)
    assert open_tensors(path).shapes == {name: shape for name, (_, shape) in described.items()}


def _processing_files(model: TransformerModel) -> dict[str, Any]:
    if isinstance(model.processing, ImageTransform):
        return {contract.PREPROCESSOR: model.processing.to_preprocessor_config()}
    return {} if model.processing is None else model.processing.files()


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
