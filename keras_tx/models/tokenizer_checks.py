"""Checks of tokenizers: whether one fits the config of a model, and whether it is the model's own."""

from __future__ import annotations

import dataclasses
import json
import warnings
from typing import Any

from keras_tx.errors import ConfigError, user_stacklevel
from keras_tx.processing import TextTransform

# Rows of an embedding table that no token uses: tables are padded to a multiple of 64 or 128, or more.
SPARE_ROWS, SPARE_SHARE = 127, 0.02
RENAMED_SHARE = 0.1  # of the tokens, such as [unused1], that may differ in a replacement vocabulary
SPECIAL_TOKENS = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token")


def tokenizer_fields(processing: Any) -> dict[str, Any]:
    """The fields of a config that a tokenizer determines: vocabulary_size and pad_id."""
    if not isinstance(processing, TextTransform):
        return {}
    fields = {"vocabulary_size": processing.vocabulary_size}
    return fields if processing.pad_token is None else {**fields, "pad_id": processing.pad_id}


def check_padded_right(processing: TextTransform | None, name: str = "processing") -> None:
    """Raises a ConfigError for an encoder's tokenizer that pads on the left.

    Positions are numbers of columns, and the class token is in the first column: the outputs would depend on
    the padded length, as they do in Hugging Face's BERT.
    """
    if processing is not None and processing.padding_side != "right":
        raise ConfigError(
            f"{name} has padding_side={processing.padding_side!r}, but an encoder numbers positions from the "
            "first column and has its class token there. Use TextTransform.load(path, padding_side='right'), "
            "also where the tokenizer_config.json of a checkpoint says 'left'."
        )


def check_tokenizer(transform: Any, config: Any, own: Any = None, name: str = "processing") -> None:
    """Raises a ConfigError for a tokenizer that contradicts the model's own; warns about a small one.

    Args:
        transform: with the tokenizer; anything but a TextTransform is not checked.
        config: of the model. A tokenizer is small if 127 rows and 2 % of the embedding table are unused.
        own: the transform that the model was trained with, if known.
        name: of the argument, for messages.
    """
    if not isinstance(transform, TextTransform):
        return
    if isinstance(own, TextTransform) and own != transform:
        difference = _tokenizer_difference(transform, own)
        if difference:
            raise ConfigError(
                f"{name} {difference}. Use the tokenizer that the model was trained with; to train new "
                "embeddings for another one, assign it to model.processing."
            )
    tokens, rows = transform.vocabulary_size, config.vocabulary_size
    if rows - tokens > max(SPARE_ROWS, SPARE_SHARE * rows):
        warnings.warn(
            f"{name} has a vocabulary of {tokens} tokens, but the model has {rows} vectors, of which "
            f"{rows - tokens} are never used. Check that the model was trained with this tokenizer.",
            stacklevel=user_stacklevel(),
        )


def _tokenizer_difference(transform: TextTransform, own: TextTransform) -> str:
    """How a tokenizer contradicts another one: in its kind, its special ids or the ids of its tokens."""
    kinds = [json.loads(x.tokenizer)["model"]["type"] for x in (transform, own)]
    if kinds[0] != kinds[1]:
        return f"is a {kinds[0]} tokenizer, but the model's own is {kinds[1]}"
    for special in SPECIAL_TOKENS:
        tokens = [getattr(x, special) for x in (transform, own)]
        if None not in tokens and transform.id_of(tokens[0]) != own.id_of(tokens[1]):
            return (
                f"has {special}={tokens[0]!r} with id {transform.id_of(tokens[0])}, but the model's own "
                f"tokenizer has {tokens[1]!r} with id {own.id_of(tokens[1])}"
            )
    own_ids = own.vocabulary
    ids = dict(sorted(transform.vocabulary.items(), key=lambda item: item[1]))
    for token, number in ids.items():
        if own_ids.get(token, number) != number:
            return f"has id {number} for {token!r}, but the model's own tokenizer has {own_ids[token]}"
    own_tokens = {number: token for token, number in own_ids.items()}
    others = [token for token, number in ids.items() if own_tokens.get(number, token) != token]
    if len(others) > RENAMED_SHARE * len(ids):
        first = ids[others[0]]
        return (
            f"has different tokens than the model's own tokenizer for {len(others)} of {len(ids)} ids, "
            f"such as {others[0]!r} for {own_tokens[first]!r}"
        )
    return ""


def fit_to_model(
    processing: TextTransform | None, config: Any, segments: bool, name: str = "processing"
) -> TextTransform | None:
    """A copy of the transform for a model of this config: with its longest text, and with token types or not.

    Raises:
        ConfigError: if the vocabulary is too large for the model, or the padding differs.
    """
    if processing is None:
        return None
    if not isinstance(processing, TextTransform):
        raise ConfigError(f"{name} is {type(processing).__name__}, expected a keras_tx.TextTransform.")
    if processing.vocabulary_size > config.vocabulary_size:
        raise ConfigError(
            f"{name} has a vocabulary of {processing.vocabulary_size} tokens, but the model has "
            f"{config.vocabulary_size} vectors. Make it with vocabulary_size={processing.vocabulary_size}."
        )
    if processing.pad_token is not None and getattr(config, "pad_id", None) not in (None, processing.pad_id):
        raise ConfigError(
            f"{name} pads with {processing.pad_token!r}, id {processing.pad_id}, but the model has "
            f"pad_id={config.pad_id}."
        )
    length = min(processing.max_length or config.max_length, config.max_length)
    return dataclasses.replace(processing, max_length=length, segments=segments)
