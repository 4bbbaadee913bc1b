"""The files of a folder of a causal language model of keras-hub: its config, special ids and tokenizer."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_tx.errors import ConfigError
from keras_tx.models.keras_hub_model_types import decoder_config
from keras_tx.models.tokenizer_checks import check_tokenizer
from keras_tx.processing import TextTransform
from keras_tx.weights.keras_hub_tokenizers import converted

_IDS_ONLY = (
    "so the folder has no tokenizer, and prompts are token ids. Pass tokenizer= to generate from texts."
)


@dataclasses.dataclass(frozen=True)
class LanguageModelFiles:
    """What a folder says about a language model.

    Attributes:
        config: the content of config.json.
        special_ids: BOS, EOS and padding ids by their names in generation_config.json, or None.
        transform: the tokenizer, which pads on the left; None if the folder has none.
        notes: for the report.
    """

    config: dict[str, Any]
    special_ids: dict[str, Any]
    transform: TextTransform | None
    notes: list[str]


def language_model_files(model: Any, tokenizer: Any, context: int) -> LanguageModelFiles:
    """The files of a CausalLM of keras-hub.

    Args:
        model: the model. The tokenizer of its preprocessor, if it has one, is converted.
        tokenizer: the option of export_onnx, or None.
        context: the maximum number of tokens.

    Raises:
        ConfigError: if the tokenizer does not fit the model.
    """
    notes: list[str] = []
    own = _own_transform(model, notes)
    transform = own if tokenizer is None else TextTransform.of(tokenizer)
    vocabulary = int(model.backbone.vocabulary_size)
    if transform is not None:
        if transform.vocabulary_size > vocabulary:
            raise ConfigError(
                f"The tokenizer has a vocabulary of {transform.vocabulary_size} tokens, but model "
                f"{model.name!r} has {vocabulary} vectors. Use the tokenizer that it was trained with."
            )
        check_tokenizer(transform, model.backbone, own, name="tokenizer")
        transform = dataclasses.replace(transform, max_length=context, padding_side="left")
    ids = special_ids(model, transform)
    known = {name: number for name, number in ids.items() if number is not None}
    fields = {**known, "vocab_size": vocabulary, "max_position_embeddings": context}
    config = decoder_config(model.backbone, fields, context)
    notes = notes if tokenizer is None else []
    notes += [] if config.note is None else [config.note]
    return LanguageModelFiles(config.content, ids, transform, notes)


def special_ids(model: Any, transform: TextTransform | None) -> dict[str, Any]:
    """The ids at which keras-hub's `generate` starts and stops, and of padding; several ends are a list."""
    tokenizer = getattr(model.preprocessor, "tokenizer", None)
    if tokenizer is None:
        names = ("bos_token", "eos_token", "pad_token")
        tokens = [None if transform is None else getattr(transform, name) for name in names]
        numbers = [None if token is None or transform is None else transform.id_of(token) for token in tokens]
        return {f"{name}_id": number for name, number in zip(names, numbers, strict=True)}
    ends = [_id(tokenizer, name) for name in ("end_token_id", "end_token2_id")]
    stops = list(dict.fromkeys(number for number in ends if number is not None))
    return {
        "bos_token_id": _id(tokenizer, "start_token_id"),
        "eos_token_id": stops if len(stops) > 1 else stops[0] if stops else None,
        "pad_token_id": _id(tokenizer, "pad_token_id"),
    }


def _id(tokenizer: Any, name: str) -> int | None:
    number = getattr(tokenizer, name, None)
    return None if number is None else int(number)


def _own_transform(model: Any, notes: list[str]) -> TextTransform | None:
    """The tokenizer of the preprocessor; None, and a note, without one that can be converted."""
    tokenizer = getattr(model.preprocessor, "tokenizer", None)
    if tokenizer is None:
        notes.append(f"Model {model.name!r} has no preprocessor with a tokenizer, {_IDS_ONLY}")
        return None
    try:
        return converted(model.preprocessor)
    except ConfigError as error:
        notes.append(f"{type(tokenizer).__name__} cannot be converted ({error}), {_IDS_ONLY}")
    return None
