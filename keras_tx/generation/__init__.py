"""Which token comes next, and the loop around it. NumPy only: Keras and the runtime share it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_tx.generation.beam_search import BeamSearch
    from keras_tx.generation.decoding_loop import Decoder, Limits, Memory, Token, checked, decode, score
    from keras_tx.generation.generator import Generation, Generator, Scored
    from keras_tx.generation.sampling import Sampling, Seen, choose, log_probability, log_softmax

_HOMES = {
    "BeamSearch": "beam_search",
    "Decoder": "decoding_loop",
    "Generation": "generator",
    "Generator": "generator",
    "Limits": "decoding_loop",
    "Memory": "decoding_loop",
    "Sampling": "sampling",
    "Scored": "generator",
    "Seen": "sampling",
    "Token": "decoding_loop",
    "checked": "decoding_loop",
    "choose": "sampling",
    "decode": "decoding_loop",
    "log_probability": "sampling",
    "log_softmax": "sampling",
    "score": "decoding_loop",
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
