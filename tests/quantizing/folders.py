"""Small models, exported, whose kernels are just large enough to be quantized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime

import keras_tx
from keras_tx_onnx import export_onnx
from tests.drawing import redraw

WIDE = {"width": 64, "depth": 2, "num_heads": 4}


def vit(**options: Any) -> Any:
    return redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=100, mlp_dim=128, **WIDE | options))


def bert(**options: Any) -> Any:
    sizes = {**WIDE, "mlp_dim": 128, "vocabulary_size": 300, "max_length": 64}
    return redraw(keras_tx.bert("tiny", head=options.pop("head", keras_tx.MaskedLMHead()), **sizes | options))


def gpt(**options: Any) -> Any:
    sizes = {**WIDE, "vocabulary_size": 300, "max_length": 64}
    return redraw(keras_tx.gpt("pico", **sizes | options))


def exported(model: Any, folder: Path, **options: Any) -> Path:
    export_onnx(model, folder, verify=False, **options)
    return folder


def session(folder: Path, name: str = "model.onnx") -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(folder / "onnx" / name, options, providers=["CPUExecutionProvider"])


def loaded(folder: Path, name: str) -> onnx.ModelProto:
    return onnx.load(folder / "onnx" / name)
