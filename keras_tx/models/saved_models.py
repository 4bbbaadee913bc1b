"""Loading saved models, with our classes known to Keras."""

from __future__ import annotations

import os
from typing import Any

import keras

import keras_tx.layers
import keras_tx.models  # noqa: F401  importing both registers their classes with Keras
from keras_tx.weights.weight_values import check_finite


def load_model(path: str | os.PathLike[str], *, compile: bool = True) -> Any:
    """keras.models.load_model in safe mode.

    `keras.models.load_model` reads the same files once keras_tx is imported.

    >>> import keras_tx, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     keras_tx.vit("Mu/2", image_size=8, num_classes=3).save(folder + "/model.keras")
    ...     keras_tx.load_model(folder + "/model.keras").task
    'image-classification'
    """
    model = keras.models.load_model(path, compile=compile, safe_mode=True)
    check_finite(model, f"{path} was saved after its training had diverged: load an earlier one.")
    return model
