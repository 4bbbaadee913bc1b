"""The models of the benchmark: random weights, in every form that a contender reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from keras_tx.bench.cases import inputs_of
from keras_tx.bench.field import BERT, GPT, VIT

PRECISIONS = {VIT: ("fp32", "int8"), BERT: ("fp32", "int8"), GPT: ("fp32", "int8", "int4")}


def prepare(subject: str, place: Path) -> None:
    """place/ gets inputs.npz, model.keras, huggingface/ and keras_tx/, if they are not there yet."""
    if (place / "keras_tx").exists():
        return
    import keras_tx
    from keras_tx_onnx import export_onnx

    place.mkdir(parents=True, exist_ok=True)
    model = _model(subject)
    given: dict[str, Any] = inputs_of(subject, getattr(model.config, "vocabulary", 0))
    np.savez(place / "inputs.npz", **given)
    model.save(place / "model.keras")
    keras_tx.save_checkpoint(model, place / "huggingface", overwrite=True)
    labels = [f"class {index}" for index in range(1000)] if subject == VIT else None
    export_onnx(model, place / "keras_tx", labels=labels, precision=PRECISIONS[subject])


def _model(subject: str) -> Any:
    import keras

    import keras_tx

    keras.utils.set_random_seed(0)
    if subject == VIT:
        return keras_tx.vit("B/16", classes=1000)
    if subject == BERT:
        return keras_tx.bert("base")
    assert subject == GPT
    return keras_tx.gpt("124M")
