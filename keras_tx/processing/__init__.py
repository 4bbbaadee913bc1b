"""Image and text transforms: the same code prepares the inputs of `model.fit` and of the runtime."""

from keras_tx.processing.corpus import write_tokens
from keras_tx.processing.image import ImageTransform
from keras_tx.processing.special_tokens import Row
from keras_tx.processing.text import TextTransform
from keras_tx.processing.token_file import TokenFile, TokenWriter
from keras_tx.processing.vocabularies import (
    byte_bpe,
    character_vocabulary,
    characters,
    sentencepiece,
    train_byte_bpe,
    train_unigram,
    train_wordpiece,
    wordpiece,
)

__all__ = [
    "ImageTransform",
    "Row",
    "TextTransform",
    "TokenFile",
    "TokenWriter",
    "byte_bpe",
    "character_vocabulary",
    "characters",
    "sentencepiece",
    "train_byte_bpe",
    "train_unigram",
    "train_wordpiece",
    "wordpiece",
    "write_tokens",
]
