"""The same model in Keras, in a process with TensorFlow: what one has without an export."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx import contract


def prepare(place: Path) -> None:
    """The subjects are saved by the parent."""


def load(place: Path) -> _Loaded:
    import keras_tx

    return _Loaded(keras_tx.load_model(place / "model.keras", compile=False))


class _Loaded:
    def __init__(self, model: Any) -> None:
        self._model = model
        self._model.compile(loss="mse" if model.head is None else None, jit_compile=True)

    def images(self, pixels: np.ndarray) -> np.ndarray:
        return self._model.predict_on_batch(np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)))

    def texts(self, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> np.ndarray:
        given = {contract.INPUT_IDS: ids, contract.ATTENTION_MASK: mask, contract.TOKEN_TYPE_IDS: segments}
        return self._model.predict_on_batch({name: x.astype("int32") for name, x in given.items()})[
            contract.LAST_HIDDEN_STATE
        ]

    def tokens(self, ids: np.ndarray, count: int) -> Iterator[int]:
        raise NotImplementedError
