"""Tiny models in the files that `models.prepare` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import keras_tx
from keras_tx_onnx import export_onnx
from tests.benchmarks import models
from tests.benchmarks.cases import Case
from tests.drawing import redraw


def make_place(place: Path, model: Any, cases: tuple[Case, ...], folder: bool = True) -> Path:
    place.mkdir(parents=True)
    redraw(model)
    arrays: dict[str, Any] = models.inputs(model, cases)
    np.savez(place / "inputs.npz", **arrays)
    model.save(place / "model.keras")
    keras_tx.save_checkpoint(model, place / "huggingface")
    if folder:
        export_onnx(model, place / "keras_tx", verify=False)
    return place
