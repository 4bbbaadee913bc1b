"""The text transform that equals the preprocessor of a keras-hub task, and the texts on which they differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_tx.errors import ConfigError
from keras_tx.models.tokenizer_checks import SPECIAL_TOKENS
from keras_tx.processing import TextTransform
from keras_tx.weights.keras_hub_tokenizers import converted

REMEDY = "Omit task and labels to export a generic model, whose inputs are token ids."
Encode = Callable[[list[str], int], list[list[int]]]  # texts, and the longest row, to ids without padding

_ASCII = "".join(map(chr, range(32, 127)))
_CHARACTERS = [
    chr(code) for code in (*range(1, 9), *range(14, 32), *range(0x7F, 0x3100), *range(0x3100, 0xD800, 61))
]
_WORDS = 1000  # of the vocabulary, to compare tokenizers on
_LISTED = 20  # characters in a note
_SPARE = 8  # tokens by which the rows of keras-hub may be longer


def has_tokenizer(model: Any) -> bool:
    """Whether a model has a preprocessor with a tokenizer, as text models of keras-hub have."""
    return getattr(getattr(model, "preprocessor", None), "tokenizer", None) is not None


def keras_hub_text_transform(model: Any, vocabulary: int, positions: int | None) -> TextTransform:
    """The tokenizer of the model's preprocessor, for a table of `vocabulary` vectors."""
    preprocessor = model.preprocessor
    kind = type(preprocessor.tokenizer).__name__
    try:
        transform = converted(preprocessor)
    except ConfigError as error:
        raise ConfigError(
            f"The tokenizer of model {model.name!r}, a {kind}, cannot be converted: {error}. {REMEDY}"
        ) from error
    if transform.vocabulary_size > vocabulary:
        raise ConfigError(
            f"The tokenizer of model {model.name!r} has ids up to {transform.vocabulary_size - 1}, but the "
            f"model has {vocabulary} vectors. Use the tokenizer that the model was trained with."
        )
    if positions is not None and (transform.max_length is None or transform.max_length > positions):
        raise ConfigError(
            f"The preprocessor of model {model.name!r} has sequence_length={transform.max_length}, but the "
            f"model has {positions} positions. Set model.preprocessor.sequence_length = {positions}."
        )
    return transform


def packed_ids(preprocessor: Any, texts: list[str], length: int) -> list[list[int]]:
    """The ids that the preprocessor of an encoder returns, without padding."""
    rows = prepared(preprocessor, texts)
    pairs = zip(rows["token_ids"], rows["padding_mask"], strict=True)
    return [ids[mask.astype(bool)].tolist() for ids, mask in pairs]


def prompt_ids(preprocessor: Any, texts: list[str], length: int) -> list[list[int]]:
    """The ids of prompts of a causal language model, without padding."""
    length = min(length, preprocessor.sequence_length or length)
    rows = preprocessor.generate_preprocess(texts, sequence_length=length)
    ids, masks = (keras.ops.convert_to_numpy(rows[name]) for name in ("token_ids", "padding_mask"))
    return [row[mask.astype(bool)].tolist() for row, mask in zip(ids, masks, strict=True)]


def prepared(preprocessor: Any, texts: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays that a preprocessor returns for texts; for a masked language model without masks."""
    if hasattr(preprocessor, "masker"):
        if preprocessor.packer is None:
            preprocessor.build(None)
        packer: Any = preprocessor.packer
        ids, segments = packer((preprocessor.tokenizer(list(texts)),))
        ids = keras.ops.convert_to_numpy(ids)
        inputs = {"token_ids": ids, "padding_mask": ids != preprocessor.tokenizer.pad_token_id}
        return {**inputs, "segment_ids": keras.ops.convert_to_numpy(segments)}
    return {name: keras.ops.convert_to_numpy(x) for name, x in preprocessor(list(texts)).items()}


def tokenizer_notes(
    model: Any, transform: TextTransform, encode: Encode, remedy: str = REMEDY
) -> Iterator[str]:
    """Compares the ids of a transform with those of keras-hub; yields notes about texts that differ.

    Raises a ConfigError, which ends with `remedy`, if words of the vocabulary or ASCII text differ.
    """
    kind = type(model.preprocessor.tokenizer).__name__
    transform = dataclasses.replace(transform, too_long="cut")
    special = filter(None, [getattr(transform, name) for name in SPECIAL_TOKENS])
    differing = _list_differing(encode, transform, list(dict.fromkeys(special)))
    around = [f"a{character}a" for character in _CHARACTERS]
    differing += [text[1] for text in _list_differing(encode, transform, around)]
    texts = _texts(sample_words(transform, set(differing)))
    wrong = _list_differing(encode, transform, texts)
    if wrong:
        raise ConfigError(
            f"The tokenizer of model {model.name!r}, a {kind}, cannot be converted: for the text "
            f"{wrong[0][:80]!r} its preprocessor returns different ids. {remedy}"
        )
    if differing:
        differing = sorted(differing, key=lambda text: not text.isprintable())
        listed = ", ".join(map(repr, differing[:_LISTED]))
        listed += f" and {len(differing) - _LISTED} more" if len(differing) > _LISTED else ""
        yield (
            f"The tokenizer of the folder is Hugging Face's equivalent of the {kind} of {model.name!r}. They "
            f"return different ids for {listed}."
        )
    if hasattr(model.preprocessor.tokenizer, "merges"):
        yield (
            f"keras-hub splits texts for a {kind} in another way inside tf.data, which its fit and predict "
            "use for texts if the package grain is not installed. The ids of the folder are those of a call "
            "of the preprocessor."
        )


def sample_words(transform: TextTransform, excluded: Collection[str] = frozenset(_CHARACTERS)) -> list[str]:
    """A sample of the vocabulary's words, without those that contain an excluded character."""
    words = [word.removeprefix("##").lstrip("\u0120\u2581") for word in transform.vocabulary]
    words = sorted(word for word in words if word.isalnum() and not set(word).intersection(excluded))
    return words[:: -(-len(words) // _WORDS) or 1]


def _texts(words: Sequence[str]) -> list[str]:
    """Texts of words and of ASCII characters to compare tokenizers on."""
    sentences = [" ".join(words[start : start + 8]) for start in range(0, len(words), 8)]
    return [
        "It's  a\ttest,\nisn't it? (No!)",
        "",
        " ".join(words) + ".",
        *_ASCII,
        *(_ASCII[i::7] for i in range(7)),
        *sentences,
        *(sentence.title() for sentence in sentences if sentence.isascii()),
    ]


def _list_differing(encode: Encode, transform: TextTransform, texts: Sequence[str]) -> list[str]:
    """The texts for which the two return different ids."""
    rows = [_ids(transform, text) for text in texts]
    own = encode(list(texts), max(map(len, rows)) + _SPARE)
    return [text for text, ids, row in zip(texts, own, rows, strict=True) if ids != row]


def _ids(transform: TextTransform, text: str) -> list[int]:
    """The row of a text; empty if it has no tokens, for which `encode` raises an error."""
    return transform.encode(text)[0].ids.tolist() if transform.count(text) else []
