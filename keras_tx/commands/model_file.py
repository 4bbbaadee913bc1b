"""Loads the model of a command from a .keras file or a checkpoint."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from keras_tx.errors import ExportError


def is_checkpoint(source: str) -> bool:
    """Whether keras_tx.from_checkpoint loads the source: a folder, hf://owner/name or a keras-hub preset."""
    path = Path(source)
    return path.suffix != ".keras" and not path.is_file()


def load(source: str) -> Any:
    """Loads a .keras file, without its optimizer, or a checkpoint."""
    if is_checkpoint(source):
        from keras_tx.models.checkpoint_loading import from_checkpoint

        return from_checkpoint(source)
    return load_model_file(Path(source))


def load_model_file(path: Path) -> Any:
    """Loads a .keras file, without its optimizer.

    Raises:
        ExportError: the file cannot be loaded.
    """
    from keras_tx.models.keras_file import load_model

    try:
        return load_model(path, compile=False)
    except Exception as error:  # Keras raises exceptions of many classes
        reason = next(
            (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        raise ExportError(
            f"{path} cannot be loaded: {reason} If it is damaged, save it again; if it has custom layers, "
            "export the model from Python with keras_tx_onnx.export_onnx."
        ) from error


def check_model_file(path: Path) -> None:
    """Checks a .keras file before the slow import of Keras.

    Raises:
        ExportError: the path is not a .keras file.
    """
    if path.is_dir():
        raise ExportError(f"{path} is a directory. Pass a .keras file written by model.save().")
    if not path.exists():
        raise ExportError(f"{path} does not exist. The working directory is {Path.cwd()}.")
    if path.suffix != ".keras":
        raise ExportError(
            f"{path} is not a .keras file. Load the model in Python and save it with "
            f"model.save({path.stem + '.keras'!r})."
        )
    if not zipfile.is_zipfile(path):
        raise ExportError(f"{path} is damaged or truncated. Save or copy it again.")
    with zipfile.ZipFile(path) as archive:
        missing = {"config.json", "model.weights.h5"}.difference(archive.namelist())
    if missing:
        raise ExportError(f"{path} does not contain {min(missing)}. Save the model again with model.save().")
