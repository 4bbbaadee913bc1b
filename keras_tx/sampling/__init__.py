"""Which token comes next, and the loop around it. NumPy only: Keras and the runtime share it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_tx.sampling.beams import BeamSearch
    from keras_tx.sampling.choice import Sampling, Seen, choose, log_probability, log_softmax
    from keras_tx.sampling.generator import Generation, Generator, Scored
    from keras_tx.sampling.loop import Decoder, Limits, Memory, Token, checked, decode, score

_HOMES = {
    "BeamSearch": "beams",
    "Decoder": "loop",
    "Generation": "generator",
    "Generator": "generator",
    "Limits": "loop",
    "Memory": "loop",
    "Sampling": "choice",
    "Scored": "generator",
    "Seen": "choice",
    "Token": "loop",
    "checked": "loop",
    "choose": "choice",
    "decode": "loop",
    "log_probability": "choice",
    "log_softmax": "choice",
    "score": "loop",
}

__all__ = [
    "BeamSearch",
    "Decoder",
    "Generation",
    "Generator",
    "Limits",
    "Memory",
    "Sampling",
    "Scored",
    "Seen",
    "Token",
    "checked",
    "choose",
    "decode",
    "log_probability",
    "log_softmax",
    "score",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
