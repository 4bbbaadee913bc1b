"""Adapter files in onnxruntime's format: values of optional inputs of a graph, by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx.errors import FolderError


def read_adapter_file(path: Path) -> dict[str, np.ndarray]:
    """The values in a file; raises a FolderError if it is damaged."""
    try:
        values = _onnxruntime().AdapterFormat.read_adapter(os.fspath(path)).get_parameters()
    except Exception as error:  # onnxruntime's exceptions have no base class of their own
        raise FolderError(
            f"{path} is not a valid adapter file ({str(error).strip():.200}). Copy the whole folder again."
        ) from error
    # Copies: the arrays do not keep the memory of the file alive.
    return {name: np.array(value.numpy()) for name, value in values.items()}


def write_adapter_file(path: Path, values: Mapping[str, np.ndarray]) -> None:
    """Writes values in the format that onnxruntime's LoraAdapter and onnxruntime-genai load."""
    onnxruntime = _onnxruntime()
    file = onnxruntime.AdapterFormat()
    file.set_adapter_version(1)
    file.set_model_version(1)
    file.set_parameters({name: onnxruntime.OrtValue.ortvalue_from_numpy(x) for name, x in values.items()})
    file.export_adapter(os.fspath(path))


def _onnxruntime() -> Any:
    import onnxruntime

    return onnxruntime
