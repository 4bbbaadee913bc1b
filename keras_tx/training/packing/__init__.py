"""From texts to batches with their labels, for `model.fit`: as a keras PyDataset, or as tf.data."""

from keras_tx.training.packing.batches import Batches
from keras_tx.training.packing.blocks import token_blocks
from keras_tx.training.packing.classification import labelled_texts, labelled_words
from keras_tx.training.packing.language_modeling import masked_language, sentence_pairs
from keras_tx.training.packing.masking import mask_tokens
from keras_tx.training.packing.question_answering import answer_spans
from keras_tx.training.packing.tf_data import keras_hub_tokenizer, tokenizing

__all__ = [
    "Batches",
    "answer_spans",
    "keras_hub_tokenizer",
    "labelled_texts",
    "labelled_words",
    "mask_tokens",
    "masked_language",
    "sentence_pairs",
    "token_blocks",
    "tokenizing",
]
