"""Keras's own `model.export(format="onnx")` of keras-hub's model, on onnxruntime.

Of keras-hub's, since with the exact gelu of ours onnxruntime refuses the file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.machine import threads_of_onnxruntime

KINDS = {"tensor(float)": "float32", "tensor(int32)": "int32", "tensor(int64)": "int64"}


def prepare(place: Path) -> None:
    path = _path(place)
    if path.exists():
        return
    from tests.benchmarks.adapters.keras_stock_export import called, export

    aside = path.with_name("unfinished.onnx")
    aside.parent.mkdir(exist_ok=True)
    export(called(place, hub=True), aside)
    os.replace(aside, path)


def load(place: Path) -> _Loaded:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads_of_onnxruntime() or 0
    return _Loaded(onnxruntime.InferenceSession(_path(place), options, providers=["CPUExecutionProvider"]))


def _path(place: Path) -> Path:
    return place / "keras_stock" / "model.onnx"


class _Loaded:
    channels_last = True

    def __init__(self, session: Any) -> None:
        self._session = session
        self._names = {given.name.split(":")[0]: given for given in session.get_inputs()}

    def images(self, pixels: np.ndarray) -> np.ndarray:
        (given,) = self._names.values()
        return self._session.run(None, {given.name: pixels})[0]

    def texts(self, ids: np.ndarray, mask: np.ndarray, segments: np.ndarray) -> np.ndarray:
        values = {"token_ids": ids, "padding_mask": mask, "segment_ids": segments}
        given = {}
        for name, value in values.items():
            spec = self._names[name]
            given[spec.name] = value.astype(KINDS[spec.type])
        return next(found for found in self._session.run(None, given) if found.ndim == 3)
