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
    from keras_tx.inspect.attention_distance import entropy_in_nats, mean_attention_distance
    from keras_tx.inspect.filters import patch_kernel, principal_filters
    from keras_tx.inspect.html_page import (
        AttentionPart,
        attention_fragment,
        attention_page,
        attention_parts,
        write_attention_page,
    )
    from keras_tx.inspect.inspector import Inspector, inspect
    from keras_tx.inspect.patch_grid import PatchGrid
    from keras_tx.inspect.positions import position_similarity, position_table
    from keras_tx.inspect.similarity import LayerSimilarity, MinibatchCKA, layer_similarity, linear_cka

_HOMES = {
    "AttentionPart": "html_page",
    "Inspector": "inspector",
    "LayerSimilarity": "similarity",
    "MinibatchCKA": "similarity",
    "PatchGrid": "patch_grid",
    "attention_fragment": "html_page",
    "attention_page": "html_page",
    "attention_parts": "html_page",
    "entropy_in_nats": "attention_distance",
    "inspect": "inspector",
    "layer_similarity": "similarity",
    "linear_cka": "similarity",
    "mean_attention_distance": "attention_distance",
    "patch_kernel": "filters",
    "position_similarity": "positions",
    "position_table": "positions",
    "principal_filters": "filters",
    "write_attention_page": "html_page",
}

__all__ = [
    "AttentionPart",
    "Inspector",
    "LayerSimilarity",
    "MinibatchCKA",
    "PatchGrid",
    "attention_fragment",
    "attention_page",
    "attention_parts",
    "entropy_in_nats",
    "inspect",
    "layer_similarity",
    "linear_cka",
    "mean_attention_distance",
    "patch_kernel",
    "position_similarity",
    "position_table",
    "principal_filters",
    "write_attention_page",
]


def __getattr__(name: str) -> Any:
    """Imports the module of a public name when it is first used."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
