"""Batches from texts, for validation and calibration, with the tokenizer of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.runtime import load
from keras_tx.runtime.cached_decoder import context_of
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.tasks.text_generation import read_checked_tokenizer

WINDOW = 256  # tokens of a decoder's text
WINDOWS = 128
NUMBERS = 2**24  # logits of a batch
BATCH_SIZE = 32  # texts of an encoder
ENCODERS = (
    contract.TEXT_CLASSIFICATION,
    contract.TOKEN_CLASSIFICATION,
    contract.FILL_MASK,
    contract.FEATURE_EXTRACTION,
)


def are_texts(data: object) -> bool:
    """Whether data are texts, and not arrays."""
    return isinstance(data, (list, tuple)) and any(isinstance(x, str) for x in data)


def batches_of_texts(
    folder: Folder, texts: Sequence[str], name: str = "validation"
) -> tuple[list[dict[str, np.ndarray]], str]:
    """Inputs by name, batch by batch, and a description of them.

    A decoder's texts are joined by newlines and cut into windows, of which the first are used.

    Args:
        folder: with the tokenizer.
        texts: as they are.
        name: of the argument, for errors.

    Raises:
        ConfigError: if the folder has no tokenizer or needs more than texts, or if the texts are too short.
    """
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{name} has texts and other values, expected a list of texts.")
    task = folder.manifest.task
    if task not in (contract.TEXT_GENERATION, *ENCODERS):
        raise ConfigError(
            f"{name} is a list of texts, which the task {task!r} does not accept alone. Pass arrays"
            f"{' as (inputs, targets)' if name == 'validation' else ' by input name'}."
        )
    if folder.tokenizer is None:
        raise ConfigError(
            f"{name} is a list of texts, but {folder.path} has no tokenizer. Pass arrays of ids as "
            '{"input_ids": ids}.'
        )
    return _windows(folder, texts, name) if task == contract.TEXT_GENERATION else _rows(folder, texts)


def _windows(folder: Folder, texts: Sequence[str], name: str) -> tuple[list[dict[str, np.ndarray]], str]:
    assert folder.tokenizer is not None
    vocabulary_size = next(int(x.shape[-1]) for x in folder.manifest.outputs if x.name == contract.LOGITS)
    ids = read_checked_tokenizer(folder.tokenizer, vocabulary_size).encode("\n".join(texts)).ids
    if len(ids) < 2:
        raise ConfigError(f"{name} has texts of {len(ids)} tokens in total, expected 2 or more.")
    size = min(WINDOW, context_of(folder), len(ids))
    count = min(WINDOWS, len(ids) // size)
    rows = np.array(ids[: count * size], "int64").reshape(count, size)
    step = max(1, NUMBERS // (size * vocabulary_size))
    batches = [{contract.INPUT_IDS: rows[start : start + step]} for start in range(0, count, step)]
    return batches, f"{rows.size:,} of {len(ids):,} tokens in windows of {size}"


def _rows(folder: Folder, texts: Sequence[str]) -> tuple[list[dict[str, np.ndarray]], str]:
    """The rows of texts of similar length; a text that is too long is cut, with a warning."""
    loaded: Any
    with load(folder.path, provider="cpu", precision="fp32") as loaded:
        transform = loaded.transform
    ordered = sorted(texts, key=len)
    batches = [transform(ordered[start : start + BATCH_SIZE]) for start in range(0, len(ordered), BATCH_SIZE)]
    return batches, f"{len(texts):,} texts"
