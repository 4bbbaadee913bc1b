"""Default options of `generate` of a checkpoint, and their names in Hugging Face's files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError, user_stacklevel
from keras_tx.processing import TextTransform
from keras_tx.weights.checkpoint import read_json
from keras_tx.weights.config_json import Fields

SENTENCEPIECE_FILES = ("spiece.model", "source.spm", "sentencepiece.bpe.model")
# Hugging Face's names by those of `generate`, with the values that have no effect.
NAMES = {
    "forced_first_id": ("forced_bos_token_id", None),
    "forced_last_id": ("forced_eos_token_id", None),
    "banned_ids": ("bad_words_ids", None),
    "no_repeat_ngram_size": ("no_repeat_ngram_size", 0),
    "num_beams": ("num_beams", 1),
    "length_penalty": ("length_penalty", 1.0),
    "early_stopping": ("early_stopping", False),
    "repetition_penalty": ("repetition_penalty", 1.0),
}
# Other options that change what is generated, with the only supported values.
UNSUPPORTED = {
    "min_length": 0,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "begin_suppress_tokens": None,
    "suppress_tokens": None,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
}


def read_generation_defaults(config: Fields) -> dict[str, Any] | None:
    """Returns the options of a checkpoint by the names of `generate`; None if it has none.

    Raises:
        ConfigError: for a banned sequence of several tokens.
    """
    values, file = generation_fields(config)
    options: dict[str, Any] = {}
    for name, (key, neutral) in NAMES.items():
        value = values.get(key)
        if value is None or value == neutral:
            continue
        options[name] = _banned(value, file) if name == "banned_ids" else value
    ignored = {
        key: values[key] for key, neutral in UNSUPPORTED.items() if values.get(key) not in (None, neutral)
    }
    if ignored:
        warnings.warn(
            f"{file} has {ignored}, which generate() does not support. Texts are generated without.",
            stacklevel=user_stacklevel(),
        )
    if isinstance(options.get("forced_last_id"), list):
        raise ConfigError(f"{file} has forced_eos_token_id={options['forced_last_id']!r}, expected one id.")
    return options or None


def read_stop_ids(
    config: Fields, transform: TextTransform | None, vocabulary_size: int
) -> tuple[int, ...] | None:
    """Returns the EOS ids of generation_config.json or config.json; None if they are the tokenizer's.

    Ids outside the vocabulary, such as defaults of config classes, are ignored.
    """
    ends = generation_fields(config)[0].get("eos_token_id", config.get("eos_token_id"))
    ids = [] if ends is None else ends if isinstance(ends, list) else [ends]
    if not all(type(number) is int for number in ids):
        raise config.error("eos_token_id", "expected a token id, or a list of them")
    ids = [number for number in dict.fromkeys(ids) if 0 <= number < vocabulary_size]
    own = transform and transform.eos_token
    if not ids or (transform and own and ids == [transform.id_of(own)]):
        return None
    return tuple(ids)


def read_tokenizer(folder: Path) -> TextTransform | None:
    """Returns the tokenizer of a checkpoint's folder; None if it has no tokenizer."""
    known = (contract.TOKENIZER, contract.VOCAB_JSON, *SENTENCEPIECE_FILES)
    if not any((folder / name).is_file() for name in known):
        return None
    return TextTransform.load(folder, segments=False)


def generation_fields(config: Fields) -> tuple[Mapping[str, Any], str]:
    """Returns generation_config.json, or config.json without one, and the name of the file."""
    folder = config.folder
    if (folder / contract.GENERATION_CONFIG).is_file():
        return read_json(folder, contract.GENERATION_CONFIG), str(folder / contract.GENERATION_CONFIG)
    return config, config.where


def write_generation_defaults(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the fields of generation_config.json."""
    fields = {NAMES[name][0]: value for name, value in (options or {}).items()}
    if "bad_words_ids" in fields:
        fields["bad_words_ids"] = [[number] for number in fields["bad_words_ids"]]
    return fields


def generation_files(model: Any) -> dict[str, Any]:
    """Returns the generation_config.json of an encoder-decoder with a head, by the name of the file."""
    if model.head is None:
        return {}
    known = {name: number for name, number in model.special_ids().items() if number is not None}
    return {contract.GENERATION_CONFIG: {**known, **write_generation_defaults(model.config.generation)}}


def check_generation_defaults(options: Any) -> None:
    """Raises a ConfigError for options that are not defaults of `generate`."""
    if options is None:
        return
    if not isinstance(options, dict):
        raise ConfigError(f"generation={options!r}, expected a dict of options of generate().")
    unknown = [name for name in options if name not in NAMES]
    if unknown:
        raise ConfigError(f"generation has the option {unknown[0]!r}. Pass any of {', '.join(NAMES)}.")


def _banned(value: Any, file: str) -> list[int]:
    sequences = value if isinstance(value, list) else [value]
    if not all(isinstance(x, list) and len(x) == 1 and type(x[0]) is int for x in sequences):
        raise ConfigError(f"{file} has bad_words_ids={value!r}; only sequences of one token are supported.")
    return [x[0] for x in sequences]
