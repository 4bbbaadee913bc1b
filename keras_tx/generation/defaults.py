"""Default options of `generate` that a model has, as in its generation_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_tx.errors import ConfigError
from keras_tx.generation.constraints import CONSTRAINTS, Constraints

# Options of `generate` that a model may have, with the values that have no effect.
NEUTRAL = {
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "no_repeat_ngram_size": 0,
    "min_new_tokens": 0,
    "num_beams": 1,
    "length_penalty": 1.0,
    "early_stopping": False,
    "renormalize_logits": False,
    "repetition_penalty": 1.0,
    "stop_strings": None,
}

# What an entry of task_specific_params has for lengths, and the smallest value.
LENGTHS = {"min_length": ("0 or more tokens", 0), "max_length": ("2 or more tokens", 2)}
# All that an entry may have.
TASK_OPTIONS = ("prefix", *LENGTHS, *NEUTRAL)


def effective_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options in the fields of a file, without those that have no effect.

    >>> effective_options({"num_beams": 4, "bad_words_ids": [[0]], "length_penalty": 1.0})
    {'bad_words_ids': [[0]], 'num_beams': 4}
    """
    options = {name: values.get(name) for name in NEUTRAL}
    return {name: value for name, value in options.items() if value not in (None, NEUTRAL[name])}


def read_defaults(values: Mapping[str, Any], file: str) -> dict[str, Any]:
    """The effective options of a file; raises a ConfigError that names it if a constraint is not valid."""
    options = effective_options(values)
    check_constraints(options, file)
    return options


def check_constraints(options: Mapping[str, Any], file: str) -> None:
    """Raises a ConfigError that names the file if a constraint or a stop string is not valid."""
    strings = options.get("stop_strings") or ()
    if not all(isinstance(one, str) and one for one in ([strings] if isinstance(strings, str) else strings)):
        raise ConfigError(f"{file}: stop_strings is {strings!r}, expected strings that are not empty.")
    try:
        Constraints(**{name: options[name] for name in CONSTRAINTS if name in options})
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def read_task(
    values: Mapping[str, Any], defaults: Mapping[str, Any], file: str
) -> tuple[str, dict[str, Any], int | None]:
    """An entry of task_specific_params, as the pipelines of transformers apply it.

    >>> read_task({"prefix": "summarize: ", "max_length": 200}, {"num_beams": 4}, "a file")
    ('summarize: ', {'num_beams': 4}, 199)

    Args:
        values: the entry.
        defaults: options that the model has without it.
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
    options = {name: value for name, value in defaults.items() if name not in values}
    options |= read_defaults(values, file)
    if (values.get("min_length") or 0) > 1:
        options["min_new_tokens"] = values["min_length"] - 1  # lengths include the first token of the decoder
    longest = values.get("max_length")
    return prefix, options, None if longest is None else longest - 1
