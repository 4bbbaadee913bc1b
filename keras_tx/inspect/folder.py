"""FolderReader: attention weights and hidden states of an exported folder, with onnxruntime."""

from __future__ import annotations

import os
from typing import Any

from keras_tx.errors import FolderError


def FolderReader(path: str | os.PathLike[str], precision: str | None) -> Any:
    raise FolderError(f"{path}: folders are not supported yet.")
