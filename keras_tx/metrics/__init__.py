"""Metrics of the tasks that Keras does not have. Predictions are logits, or generated texts."""

from keras_tx.metrics.classification import F1, ClassAccuracy, Matthews, MultiLabelAccuracy, MultiLabelF1
from keras_tx.metrics.entities import EntityF1
from keras_tx.metrics.ranking import NearestNeighborAccuracy, Spearman
from keras_tx.metrics.spans import SpanExactMatch, SpanF1
from keras_tx.metrics.texts import bleu, chrf, exact_match
from keras_tx.metrics.tokens import BitsPerByte, Perplexity, TokenAccuracy

__all__ = [
    "F1",
    "BitsPerByte",
    "ClassAccuracy",
    "EntityF1",
    "Matthews",
    "MultiLabelAccuracy",
    "MultiLabelF1",
    "NearestNeighborAccuracy",
    "Perplexity",
    "SpanExactMatch",
    "SpanF1",
    "Spearman",
    "TokenAccuracy",
    "bleu",
    "chrf",
    "exact_match",
]
