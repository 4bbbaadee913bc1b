"""Our own export: of our model, or of keras-hub's with the same weights."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.adapters.exporting import Exporting
from tests.benchmarks.adapters.hub_models import hub_model


def prepare(place: Path, precision: str, verify: bool = False, hub: bool = False) -> None:
    """It reads the subject as it is."""


def load(place: Path, precision: str, verify: bool = False, hub: bool = False) -> Exporting:
    import keras_tx
    from keras_tx import contract
    from keras_tx_onnx import export_onnx

    model = hub_model(place) if hub else keras_tx.load_model(place / "model.keras", compile=False)
    path = f"model/{contract.PRECISIONS[precision]}"
    return Exporting(
        lambda folder: export_onnx(model, folder / "model", precision=precision, verify=verify), place, path
    )
