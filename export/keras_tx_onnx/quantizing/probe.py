"""A session that computes only some values of a graph."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx.runtime.session import Session


class Probe:
    """Runs a graph whose outputs are replaced by other values of it.

    Args:
        model: whose outputs are replaced.
        values: the new outputs.
    """

    def __init__(self, model: ir.Model, values: Sequence[ir.Value]):
        model.graph.outputs.clear()
        model.graph.outputs.extend(values)
        self._names = [str(value.name) for value in values]
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name, "probe.onnx")
        try:
            ir.save(model, path, external_data="probe.onnx_data")
            self._session = Session(path, provider="cpu")
        except BaseException:
            self._folder.cleanup()
            raise

    def run(self, batch: Mapping[str, np.ndarray]) -> list[Any]:
        """The values on a batch, in order."""
        outputs = self._session.run(batch)
        return [outputs[name] for name in self._names]

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()
        self._folder.cleanup()
