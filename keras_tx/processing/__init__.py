"""From files, arrays and texts to what the model takes: the same code feeds `model.fit` and the runtime."""

from keras_tx.processing.image import ImageTransform
from keras_tx.processing.rows import Row
from keras_tx.processing.text import TextTransform
from keras_tx.processing.vocabularies import (
    byte_bpe,
    character_vocabulary,
    characters,
    train_byte_bpe,
    train_wordpiece,
    wordpiece,
)

__all__ = [
    "ImageTransform",
    "Row",
    "TextTransform",
    "byte_bpe",
    "character_vocabulary",
    "characters",
    "train_byte_bpe",
    "train_wordpiece",
    "wordpiece",
]
