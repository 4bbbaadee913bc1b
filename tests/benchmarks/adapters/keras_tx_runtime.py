"""Our own folder in keras_tx.runtime: no Keras in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx import contract
from tests.benchmarks.machine import threads_of_onnxruntime


def prepare(place: Path, precision: str) -> None:
    """The subjects are exported by the parent, which has Keras."""


def imports(place: Path) -> None:
    import keras_tx.runtime.loading  # noqa: F401  # `load` would import it, and the tasks
    from keras_tx.runtime.tasks import all_tasks

    all_tasks()


def load(place: Path, precision: str) -> _Loaded:
    from keras_tx.runtime import load as load_folder

    threads = threads_of_onnxruntime()
    return _Loaded(load_folder(place / "keras_tx", provider="cpu", precision=precision, threads=threads))


class _Loaded:
    def __init__(self, model: Any) -> None:
        self._model = model

    def images(self, pixels: np.ndarray) -> np.ndarray:
        return self._model.session.run({contract.PIXEL_VALUES: pixels})[contract.LOGITS]

    def texts(self, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> np.ndarray:
        given = {contract.INPUT_IDS: ids, contract.ATTENTION_MASK: mask, contract.TOKEN_TYPE_IDS: segments}
        return self._model.session.run(given)[contract.LAST_HIDDEN_STATE]

    def tokens(self, ids: np.ndarray, count: int) -> Iterator[int]:
        yield from self._model.stream(ids.tolist(), max_new_tokens=count, stop_tokens=[], as_ids=True)
