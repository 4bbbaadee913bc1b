"""The same model in Keras, in a process with TensorFlow: what one has without an export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from keras_tx import contract


def prepare(place: Path) -> None:
    """The subjects are saved by the parent."""


def imports(place: Path) -> None:
    import keras_tx

    keras_tx.load_model  # noqa: B018  # pyright: ignore[reportUnusedExpression]  # it is lazy


def load(place: Path) -> _Loaded:
    import keras_tx

    return _Loaded(keras_tx.load_model(place / "model.keras", compile=False))


class _Loaded:
    channels_last = True

    def __init__(self, model: Any) -> None:
        self._model = model
        self._model.compile(loss="mse" if model.head is None else None, jit_compile=True)

    def images(self, pixels: np.ndarray) -> np.ndarray:
        return self._model.predict_on_batch(pixels)

    def texts(self, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> np.ndarray:
        given = {contract.INPUT_IDS: ids, contract.ATTENTION_MASK: mask, contract.TOKEN_TYPE_IDS: segments}
        return self._model.predict_on_batch({name: x.astype("int32") for name, x in given.items()})[
            contract.LAST_HIDDEN_STATE
        ]
