"""Figures of attention and similarity, drawn with matplotlib (pip install "keras-tx[inspect]").

>>> from keras_tx.inspect.figures import draw_maps
>>> draw_maps("rose.jpg", maps, path="heads.png")  # doctest: +SKIP
"""

from __future__ import annotations

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
