"""Which token comes next, and the loop around it. NumPy only: Keras and the runtime share it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_tx.sampling.choice import Sampling, choose, log_softmax, warped
    from keras_tx.sampling.generator import Generation, Generator, Scored
    from keras_tx.sampling.loop import Decoder, Limits, Memory, Token, checked, decode, score

_HOMES = {
    "Decoder": "loop",
    "Generation": "generator",
    "Generator": "generator",
    "Limits": "loop",
    "Memory": "loop",
    "Sampling": "choice",
    "Scored": "generator",
    "Token": "loop",
    "checked": "loop",
    "choose": "choice",
    "decode": "loop",
    "log_softmax": "choice",
    "score": "loop",
    "warped": "choice",
}

__all__ = [
    "Decoder",
    "Generation",
    "Generator",
    "Limits",
    "Memory",
    "Sampling",
    "Scored",
    "Token",
    "checked",
    "choose",
    "decode",
    "log_softmax",
    "score",
    "warped",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
