"""Keras's own `model.export(format="onnx")`, through tf2onnx, and what onnxruntime says of its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.adapters.exporting import Exporting
from tests.benchmarks.adapters.hub_models import hub_model


def prepare(place: Path, hub: bool = False) -> None:
    """It reads the subject as it is."""


def load(place: Path, hub: bool = False) -> Exporting:
    model = called(place, hub)
    return Exporting(lambda folder: export(model, folder / "model.onnx"), place, "model.onnx")


def called(place: Path, hub: bool) -> Any:
    """Ours or keras-hub's; called once, since Keras refuses to export a model that it has only loaded."""
    import keras_tx

    model = hub_model(place) if hub else keras_tx.load_model(place / "model.keras", compile=False)
    given = {
        spec.name: np.zeros([8 if size is None else size for size in spec.shape], spec.dtype)
        for spec in model.inputs
    }
    model(given if len(given) > 1 else next(iter(given.values())))
    return model


def export(model: Any, path: Path) -> None:
    model.export(path, format="onnx", verbose=False)
