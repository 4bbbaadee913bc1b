"""Sources of weights: named tensors, which are read one at a time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Tensors:
    """Named tensors whose shapes are known before any value is read.

    Args:
        where: name of the source in messages: a path, or "the keras-hub model 'bert_backbone'".
        shapes: the shapes of all tensors by name.
        read: function that returns a tensor by name, as a view of a file if possible.
        nbytes: total size of the tensors in bytes.
        dtypes: the dtypes of tensors that may not be floats.
        metadata: metadata of the file, if its format has any.
        release: returns the memory of what was read to the system, where `read` returns views of a file.
    """

    where: str
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    nbytes: int = 0
    dtypes: Mapping[str, np.dtype] = dataclasses.field(default_factory=dict)
    metadata: Mapping[str, str] = dataclasses.field(default_factory=dict)
    release: Callable[[], None] = lambda: None

    @property
    def numbers(self) -> int:
        """The total number of elements of all tensors."""
        return sum(math.prod(shape) for shape in self.shapes.values())


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The tensors of a folder or file, and its config.json (None without one)."""

    tensors: Tensors
    config: dict[str, Any] | None = None
    folder: Path | None = None  # contains tokenizer and image transform; None for a single file
