"""Figures of attention and similarity, drawn with matplotlib (pip install "keras-tx[inspect]").

>>> from keras_tx.inspect.figures import draw_maps
>>> draw_maps("rose.jpg", maps, path="heads.png")  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_tx.inspect.figures.curves import (
        draw_attention_distance,
        draw_attention_statistics,
        draw_faithfulness,
    )
    from keras_tx.inspect.figures.images import (
        draw_layers,
        draw_maps,
        draw_overlay,
        draw_reference_points,
        enlarge_map,
        overlay_map,
        overlay_mask,
    )
    from keras_tx.inspect.figures.matrices import (
        draw_filters,
        draw_layer_similarity,
        draw_position_similarity,
        draw_receptive_fields,
    )
    from keras_tx.inspect.figures.texts import draw_token_attention, draw_token_scores

_HOMES = {
    "draw_attention_distance": "curves",
    "draw_attention_statistics": "curves",
    "draw_faithfulness": "curves",
    "draw_filters": "matrices",
    "draw_layer_similarity": "matrices",
    "draw_layers": "images",
    "draw_maps": "images",
    "draw_overlay": "images",
    "draw_position_similarity": "matrices",
    "draw_receptive_fields": "matrices",
    "draw_reference_points": "images",
    "draw_token_attention": "texts",
    "draw_token_scores": "texts",
    "enlarge_map": "images",
    "overlay_map": "images",
    "overlay_mask": "images",
}

__all__ = [
    "draw_attention_distance",
    "draw_attention_statistics",
    "draw_faithfulness",
    "draw_filters",
    "draw_layer_similarity",
    "draw_layers",
    "draw_maps",
    "draw_overlay",
    "draw_position_similarity",
    "draw_receptive_fields",
    "draw_reference_points",
    "draw_token_attention",
    "draw_token_scores",
    "enlarge_map",
    "overlay_map",
    "overlay_mask",
]


def __getattr__(name: str) -> Any:
    """Imports the module of a public name when it is first used."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
