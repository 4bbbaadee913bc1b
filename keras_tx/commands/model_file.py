"""The model of a command: a saved Keras model, or a checkpoint."""

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
    """The model of a .keras file, without its optimizer, or of a checkpoint."""
    if is_checkpoint(source):
        from keras_tx.models.checkpoint_loading import from_checkpoint

        return from_checkpoint(source)
    return load_model_file(Path(source))


def load_model_file(path: Path) -> Any:
    """The model of a .keras file, without its optimizer."""
    from keras_tx.models.keras_file import load_model

    try:
        return load_model(path, compile=False)
    except Exception as error:  # Keras raises whatever went wrong inside
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ExportError(
            f"{path} cannot be loaded: {said} If it is damaged, save it again; if it has layers of your own, "
            "export it from Python with keras_tx_onnx.export_onnx."
        ) from error


def check_model_file(path: Path) -> None:
    """Before Keras is loaded, which takes seconds."""
    if path.is_dir():
        raise ExportError(f"{path} is a directory, expected a .keras file that model.save() wrote.")
    if not path.exists():
        raise ExportError(f"{path}: there is no such file. The working directory is {Path.cwd()}.")
    if path.suffix != ".keras":
        raise ExportError(
            f"{path} is not a .keras file. Load it in Python as it was saved, then "
            f"model.save({path.stem + '.keras'!r})."
        )
    if not zipfile.is_zipfile(path):
        raise ExportError(f"{path} is not a whole .keras file: damaged or truncated. Save or copy it again.")
    with zipfile.ZipFile(path) as archive:
        missing = {"config.json", "model.weights.h5"}.difference(archive.namelist())
    if missing:
        raise ExportError(
            f"{path} has no {min(missing)} in it, expected what model.save() writes. Save it again."
        )
