"""Readers of images and tables of texts, and batches for `model.fit` as a keras PyDataset or as tf.data."""

from keras_tx.data.augmentation import (
    Augmentation,
    augmentation,
    crop_and_flip,
    deit_augmentation,
    three_augment,
)
from keras_tx.data.batches import Batches
from keras_tx.data.blocks import causal_lm_batches
from keras_tx.data.classification import text_classification_batches, token_classification_batches
from keras_tx.data.embedding import text_ranking_batches, text_similarity_batches
from keras_tx.data.hard_negatives import mine_hard_negatives
from keras_tx.data.image_dataset import ImageBatches, image_batches, image_folder, image_table
from keras_tx.data.language_modeling import masked_lm_batches, sentence_pair_batches
from keras_tx.data.masking import mask_tokens
from keras_tx.data.multiple_choice import multiple_choice_batches
from keras_tx.data.pairs import sequence_to_sequence_batches
from keras_tx.data.question_answering import question_answering_batches
from keras_tx.data.question_table import QuestionTable, question_table
from keras_tx.data.span_corruption import corrupt_spans, span_corruption_batches
from keras_tx.data.text_table import TextTable, text_table
from keras_tx.data.tf_data import keras_hub_tokenizer, tf_data_tokenizer

__all__ = [
    "Augmentation",
    "Batches",
    "ImageBatches",
    "QuestionTable",
    "TextTable",
    "augmentation",
    "causal_lm_batches",
    "corrupt_spans",
    "crop_and_flip",
    "deit_augmentation",
    "image_batches",
    "image_folder",
    "image_table",
    "keras_hub_tokenizer",
    "mask_tokens",
    "masked_lm_batches",
    "mine_hard_negatives",
    "multiple_choice_batches",
    "question_answering_batches",
    "question_table",
    "sentence_pair_batches",
    "sequence_to_sequence_batches",
    "span_corruption_batches",
    "text_classification_batches",
    "text_ranking_batches",
    "text_similarity_batches",
    "text_table",
    "tf_data_tokenizer",
    "three_augment",
    "token_classification_batches",
]
