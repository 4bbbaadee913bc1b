"""Batches of texts and labels for `model.fit`, as a keras PyDataset or as tf.data."""

from keras_tx.data.batches import Batches
from keras_tx.data.blocks import causal_lm_batches
from keras_tx.data.classification import text_classification_batches, token_classification_batches
from keras_tx.data.language_modeling import masked_lm_batches, sentence_pair_batches
from keras_tx.data.masking import mask_tokens
from keras_tx.data.pairs import sequence_to_sequence_batches
from keras_tx.data.question_answering import question_answering_batches
from keras_tx.data.span_corruption import corrupt_spans, span_corruption_batches
from keras_tx.data.tf_data import keras_hub_tokenizer, tf_data_tokenizer

__all__ = [
    "Batches",
    "causal_lm_batches",
    "corrupt_spans",
    "keras_hub_tokenizer",
    "mask_tokens",
    "masked_lm_batches",
    "question_answering_batches",
    "sentence_pair_batches",
    "sequence_to_sequence_batches",
    "span_corruption_batches",
    "text_classification_batches",
    "tf_data_tokenizer",
    "token_classification_batches",
]
