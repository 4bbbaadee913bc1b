"""Attention, hidden states and explanations of a Keras model or an exported folder.

>>> from keras_tx.inspect import inspect
>>> inspector = inspect("flowers")  # doctest: +SKIP
>>> [weights.shape for weights in inspector.attention("rose.jpg")]  # doctest: +SKIP
[(1, 12, 197, 197), (1, 12, 197, 197), ...]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_tx.inspect.inspector import Inspector, inspect
    from keras_tx.inspect.patch_grid import PatchGrid

_HOMES = {
    "Inspector": "inspector",
    "PatchGrid": "patch_grid",
    "inspect": "inspector",
}

__all__ = ["Inspector", "PatchGrid", "inspect"]


def __getattr__(name: str) -> Any:
    """Imports the module of a public name when it is first used."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
