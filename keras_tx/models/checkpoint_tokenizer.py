"""Reads the tokenizer of a checkpoint's folder."""

from __future__ import annotations

import warnings
from pathlib import Path

from keras_tx import contract
from keras_tx.errors import ConfigError, user_stacklevel
from keras_tx.processing import TextTransform
from keras_tx.processing.sentencepiece_folder import FILES as SENTENCEPIECE_FILES
from keras_tx.processing.sentencepiece_folder import SOURCE

FILES = (contract.TOKENIZER, contract.VOCAB, contract.VOCAB_JSON, *SENTENCEPIECE_FILES, SOURCE)


def read_tokenizer(folder: Path | None) -> TextTransform | None:
    """Returns the tokenizer of a folder; None if it has none, or files of an unsupported one, with a warning.

    Raises:
        ConfigError: for an invalid tokenizer.json.
    """
    files = [name for name in FILES if folder is not None and (folder / name).is_file()]
    if folder is None or not files:
        return None
    try:
        return TextTransform.load(folder)
    except ConfigError as error:
        if contract.TOKENIZER in files:
            raise
        warnings.warn(
            f"{folder} has {files[0]} but no {contract.TOKENIZER}, so the model has no tokenizer: {error}",
            stacklevel=user_stacklevel(),
        )
        return None
