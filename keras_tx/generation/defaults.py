"""Default options of `generate` that a model has, and their names in generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_tx.errors import ConfigError

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


# What an entry of task_specific_params has for lengths, and the smallest value.
LENGTHS = {"min_length": ("0 or more tokens", 0), "max_length": ("2 or more tokens", 2)}
# All that an entry may have.
TASK_OPTIONS = ("prefix", *LENGTHS, *(key for key, _ in NAMES.values()))


def read_defaults(values: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The options by the names of `generate`, without those that have no effect.

    >>> read_defaults({"num_beams": 4, "bad_words_ids": [[0]], "length_penalty": 1.0}, "a file")
    {'banned_ids': [0], 'num_beams': 4}

    Raises:
        ConfigError: for a banned sequence of several tokens, and several last tokens.
    """
    options: dict[str, Any] = {}
    for name, (key, neutral) in NAMES.items():
        value = values.get(key)
        if value is not None and value != neutral:
            options[name] = _banned(value, file) if name == "banned_ids" else value
    if isinstance(options.get("forced_last_id"), list):
        raise ConfigError(f"{file} has forced_eos_token_id={options['forced_last_id']!r}, expected one id.")
    return options


def read_task(
    values: Mapping[str, Any], defaults: Mapping[str, Any], file: str
) -> tuple[str, dict[str, Any], int | None]:
    """An entry of task_specific_params, as the pipelines of transformers apply it.

    >>> read_task({"prefix": "summarize: ", "max_length": 200}, {"num_beams": 4}, "a file")
    ('summarize: ', {'num_beams': 4}, 199)

    Args:
        values: the entry.
        defaults: options by the names of `generate` that the model has without it.
        file: its name in messages.

    Returns:
        The prefix of sources, the default options of `generate`, and its max_new_tokens, or None.

    Raises:
        ConfigError: if a value is not supported.
    """
    for name, (expected, least) in LENGTHS.items():
        value = values.get(name)
        if value is not None and (type(value) is not int or value < least):
            raise ConfigError(f"{file}: {name} is {value!r}, expected {expected}.")
    prefix = values.get("prefix") or ""
    if not isinstance(prefix, str):
        raise ConfigError(f"{file}: prefix is {prefix!r}, expected a string.")
    options = {name: value for name, value in defaults.items() if NAMES[name][0] not in values}
    options |= read_defaults(values, file)
    if (values.get("min_length") or 0) > 1:
        options["min_new_tokens"] = values["min_length"] - 1  # lengths include the first token of the decoder
    longest = values.get("max_length")
    return prefix, options, None if longest is None else longest - 1


def write_defaults(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of generation_config.json.

    >>> write_defaults({"banned_ids": [0], "num_beams": 4})
    {'bad_words_ids': [[0]], 'num_beams': 4}
    """
    fields = {NAMES[name][0]: value for name, value in (options or {}).items()}
    if "bad_words_ids" in fields:
        fields["bad_words_ids"] = [[number] for number in fields["bad_words_ids"]]
    return fields


def _banned(value: Any, file: str) -> list[int]:
    sequences = value if isinstance(value, list) else [value]
    if not all(isinstance(x, list) and len(x) == 1 and type(x[0]) is int for x in sequences):
        raise ConfigError(f"{file} has bad_words_ids={value!r}; only sequences of one token are supported.")
    return [x[0] for x in sequences]
