"""Warns if a ViT of a published size is trained from scratch with few images."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import keras
import numpy as np

from keras_tx.errors import user_stacklevel

FEW = 10_000  # images; the papers train these sizes with 1.3 million or more
LARGE = 3_000_000  # parameters


def count_batches(data: Any, steps_per_epoch: int | None) -> int | None:
    """Returns the number of batches of an epoch; None if it is unknown."""
    if steps_per_epoch is not None:
        return steps_per_epoch
    tf = sys.modules.get("tensorflow")
    if tf is not None and isinstance(data, tf.data.Dataset):
        count = int(data.cardinality())
        return count if count >= 0 else None
    if isinstance(data, keras.utils.PyDataset):
        return data.num_batches
    if type(data).__name__ == "DataLoader":
        return len(data)
    return None


def batch_size(inputs: Any) -> int | None:
    """Returns the number of images of a batch or an array."""
    shape = np.shape(inputs) if isinstance(inputs, np.ndarray) else getattr(inputs, "shape", None)
    return shape[0] if shape else None


def warn_of_few_images(name: str, parameters: int, count: int) -> None:
    """Warns if `count` images are few for a model of this size."""
    if count >= FEW or parameters < LARGE:
        return
    warnings.warn(
        f"The ViT {name!r} has {parameters / 1e6:,.0f} million parameters and random initial weights, and is "
        f"trained on about {count:,} images. Its accuracy will be close to chance. Start from a checkpoint "
        "with keras_tx.from_checkpoint, or train a small ViT with stem='convolutions' (docs/vit.md).",
        stacklevel=user_stacklevel(),
    )
