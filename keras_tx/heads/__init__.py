"""Heads: each computes logits from a model's features, and has their loss and metrics."""

from keras_tx.heads.base import Encoded, Head
from keras_tx.heads.classification import (
    ClassifierHead,
    DistilledClassifierHead,
    MultiLabelHead,
    NextSentenceHead,
    RegressionHead,
)
from keras_tx.heads.language_model import CausalLMHead, MaskedLMHead, PretrainingHead, Seq2SeqLMHead
from keras_tx.heads.multiple_choice import MultipleChoiceHead
from keras_tx.heads.sentence_embedding import SentenceEmbeddingHead
from keras_tx.heads.token_classification import SpanHead, TokenClassifierHead

__all__ = [
    "CausalLMHead",
    "ClassifierHead",
    "DistilledClassifierHead",
    "Encoded",
    "Head",
    "MaskedLMHead",
    "MultiLabelHead",
    "MultipleChoiceHead",
    "NextSentenceHead",
    "PretrainingHead",
    "RegressionHead",
    "SentenceEmbeddingHead",
    "Seq2SeqLMHead",
    "SpanHead",
    "TokenClassifierHead",
]
