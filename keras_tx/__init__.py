"""keras-tx: from `model.fit` to a transformer that runs anywhere ONNX runs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "AdamW": "training",
    "ClassToken": "layers",
    "ClassifierHead": "heads",
    "FeedForward": "layers",
    "ImageTransform": "processing",
    "MultiHeadAttention": "layers",
    "PatchEmbedding": "layers",
    "PositionalEmbedding": "layers",
    "RelativePositionBias": "layers",
    "TransformerBlock": "layers",
    "ViT": "models",
    "ViTConfig": "models",
    "cost": "costs",
    "load_model": "saving",
    "vit": "models",
}

__all__ = ["export_onnx", *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from keras_tx.costs import cost
    from keras_tx.heads import ClassifierHead
    from keras_tx.layers import (
        ClassToken,
        FeedForward,
        MultiHeadAttention,
        PatchEmbedding,
        PositionalEmbedding,
        RelativePositionBias,
        TransformerBlock,
    )
    from keras_tx.models import ViT, ViTConfig, vit
    from keras_tx.processing import ImageTransform
    from keras_tx.saving import load_model
    from keras_tx.training import AdamW
    from keras_tx_onnx import export_onnx


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used, so that `import keras_tx` costs nothing."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"keras_tx.{_HOMES[name]}"), name)
    if name == "export_onnx":
        return importlib.import_module("keras_tx_onnx").export_onnx
    raise AttributeError(f"module 'keras_tx' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
