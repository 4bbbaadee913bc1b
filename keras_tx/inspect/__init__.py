"""Attention, hidden states and explanations of a Keras model or an exported folder.

>>> from keras_tx.inspect import inspect
>>> inspector = inspect("flowers")  # doctest: +SKIP
>>> [weights.shape for weights in inspector.attention("rose.jpg")]  # doctest: +SKIP
[(1, 12, 197, 197), (1, 12, 197, 197), ...]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from keras_tx.inspect.attention import (
    PatchGrid,
    class_token_map,
    entropy_in_nats,
    mass_threshold,
    mean_attention_distance,
    patch_maps,
    reference_point_map,
    rollout,
)
from keras_tx.inspect.attribution import IntegratedGradients, integrated_gradients, occlusion
from keras_tx.inspect.embeddings import (
    NearestToken,
    NearestTokens,
    nearest_rows,
    patch_kernel,
    position_similarity,
    position_table,
    principal_filters,
)
from keras_tx.inspect.faithfulness import Faithfulness, FaithfulnessCurve, blur
from keras_tx.inspect.html_page import (
    AttentionPart,
    attention_fragment,
    attention_page,
    attention_parts,
    write_attention_page,
)
from keras_tx.inspect.initialization import AttentionStatistics, head_width_statistics, model_statistics
from keras_tx.inspect.inspector import Inspector, inspect
from keras_tx.inspect.receptive_field import central_square, effective_receptive_field, field_center
from keras_tx.inspect.relevance import (
    AttentionGradients,
    EncoderDecoderRelevance,
    attention_gradients,
    encoder_decoder_relevance,
    gradient_rollout,
    self_attention_relevance,
)
from keras_tx.inspect.report import write_report
from keras_tx.inspect.similarity import LayerSimilarity, MinibatchCKA, layer_similarity, linear_cka

if TYPE_CHECKING:
    from keras_tx.inspect.callback import InspectionCallback

__all__ = [
    "AttentionGradients",
    "AttentionPart",
    "AttentionStatistics",
    "EncoderDecoderRelevance",
    "Faithfulness",
    "FaithfulnessCurve",
    "InspectionCallback",
    "Inspector",
    "IntegratedGradients",
    "LayerSimilarity",
    "MinibatchCKA",
    "NearestToken",
    "NearestTokens",
    "PatchGrid",
    "attention_fragment",
    "attention_gradients",
    "attention_page",
    "attention_parts",
    "blur",
    "central_square",
    "class_token_map",
    "effective_receptive_field",
    "encoder_decoder_relevance",
    "entropy_in_nats",
    "field_center",
    "gradient_rollout",
    "head_width_statistics",
    "inspect",
    "integrated_gradients",
    "layer_similarity",
    "linear_cka",
    "mass_threshold",
    "mean_attention_distance",
    "model_statistics",
    "nearest_rows",
    "occlusion",
    "patch_kernel",
    "patch_maps",
    "position_similarity",
    "position_table",
    "principal_filters",
    "reference_point_map",
    "rollout",
    "self_attention_relevance",
    "write_attention_page",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Imports InspectionCallback, a callback of Keras, when it is first used."""
    if name == "InspectionCallback":
        from keras_tx.inspect.callback import InspectionCallback

        return InspectionCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
