"""What a model answers: a head turns features into logits, and knows the loss and metrics for them."""

from keras_tx.heads.base import Encoded, Head
from keras_tx.heads.classification import ClassifierHead, MultiLabelHead, NextSentenceHead, RegressionHead
from keras_tx.heads.distilled import DistilledClassifierHead
from keras_tx.heads.language_model import CausalLMHead, MaskedLMHead, PretrainingHead
from keras_tx.heads.sentence_embedding import SentenceEmbeddingHead
from keras_tx.heads.token_labels import SpanHead, TokenClassifierHead

__all__ = [
    "CausalLMHead",
    "ClassifierHead",
    "DistilledClassifierHead",
    "Encoded",
    "Head",
    "MaskedLMHead",
    "MultiLabelHead",
    "NextSentenceHead",
    "PretrainingHead",
    "RegressionHead",
    "SentenceEmbeddingHead",
    "SpanHead",
    "TokenClassifierHead",
]
