"""Our own part of a token: the loop and the choice around the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.decoding_overhead import Watched
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
        self._watched = model.session._session = Watched(model.session._session)

    def outside(self, ids: np.ndarray, count: int) -> float:
        """The median over the tokens behind the first, of which the prompt is a part."""
        from time import perf_counter

        made, inside = [perf_counter()], [self._watched.seconds]
        for _ in self._model.stream(ids.tolist(), max_new_tokens=count, stop_tokens=[], as_ids=True):
            made.append(perf_counter())
            inside.append(self._watched.seconds)
        return float(np.median((np.diff(made) - np.diff(inside))[1:]))
