"""Serving of exported folders to many clients, with NumPy and onnxruntime."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_tx.serving.engine.stream import StreamToken, TextStream
    from keras_tx.serving.engine.text_engine import EngineStats, TextEngine
    from keras_tx.serving.micro_batcher import MicroBatcher

_HOMES = {
    "EngineStats": "engine.text_engine",
    "MicroBatcher": "micro_batcher",
    "StreamToken": "engine.stream",
    "TextEngine": "engine.text_engine",
    "TextStream": "engine.stream",
}

__all__ = ["EngineStats", "MicroBatcher", "StreamToken", "TextEngine", "TextStream"]


def __getattr__(name: str) -> Any:
    """Imports the module of a public name when it is first used."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
