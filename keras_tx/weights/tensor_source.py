"""What weights are read from: names, shapes and values, one tensor at a time."""

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
        where: what messages call it: a path, or "the keras-hub model 'bert_backbone'".
        shapes: of every tensor.
        read: gives one of them; a view of a file where it can be, so that nothing is copied.
        nbytes: of all of them.
        dtypes: of those that may be anything but floats.
    """

    where: str
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    nbytes: int = 0
    dtypes: Mapping[str, np.dtype] = dataclasses.field(default_factory=dict)

    @property
    def numbers(self) -> int:
        """How many numbers there are in all."""
        return sum(math.prod(shape) for shape in self.shapes.values())


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A folder or file of someone else's: its tensors, and what its config.json says (None without one)."""

    tensors: Tensors
    config: dict[str, Any] | None = None
    folder: Path | None = None  # for tokenizer and image transform; None for a lone file
