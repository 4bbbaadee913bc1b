"""Default options of `generate` of a checkpoint, and their names in Hugging Face's files."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError, user_stacklevel
from keras_tx.generation.defaults import NEUTRAL, TASK_OPTIONS, check_constraints, read_defaults, read_task
from keras_tx.processing import TextTransform
from keras_tx.weights.config_json import Fields

# Other options that change what is generated, with the only supported values.
UNSUPPORTED = {
    "min_length": 0,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1.0,
}


def read_generation_defaults(config: Fields) -> dict[str, Any] | None:
    """Returns the default options of a checkpoint; None if it has none.

    Raises:
        ConfigError: if a constraint is not valid.
    """
    options = read_defaults(config.generation, config.where_generation)
    _warn_of_unsupported(config.generation, config.where_generation, UNSUPPORTED)
    return options or None


def read_task_options(config: Fields) -> dict[str, Any] | None:
    """Returns task_specific_params: the prefix of sources and the options of `generate` by task.

    Raises:
        ConfigError: if it is not an object of objects, or a value is not supported.
    """
    tasks = config.get("task_specific_params")
    if not tasks:
        return None
    if not isinstance(tasks, dict) or not all(isinstance(values, dict) for values in tasks.values()):
        raise config.error("task_specific_params", "expected an object for each task")
    for name, values in tasks.items():
        _warn_of_unsupported(values, f"{config.where}: {name}", values.keys() - TASK_OPTIONS)
    tasks = {
        name: {key: value for key, value in values.items() if key in TASK_OPTIONS}
        for name, values in tasks.items()
    }
    check_task_options(tasks)
    return tasks


def _warn_of_unsupported(values: Mapping[str, Any], file: str, names: Iterable[str]) -> None:
    ignored = {
        key: values[key]
        for key in sorted(names)
        if values.get(key) not in (None, UNSUPPORTED.get(key, False))  # of other names, False has no effect
    }
    if ignored:
        warnings.warn(
            f"{file} has {ignored}, which generate() does not support. Texts are generated without.",
            stacklevel=user_stacklevel(),
        )


def read_stop_ids(
    config: Fields, transform: TextTransform | None, vocabulary_size: int
) -> tuple[int, ...] | None:
    """Returns the EOS ids of generation_config.json or config.json; None if they are the tokenizer's.

    Ids outside the vocabulary, such as defaults of config classes, are ignored.
    """
    ends = generation_value(config, "eos_token_id")
    ids = [] if ends is None else ends if isinstance(ends, list) else [ends]
    if not all(type(number) is int for number in ids):
        raise config.error("eos_token_id", "expected a token id, or a list of them")
    ids = [number for number in dict.fromkeys(ids) if 0 <= number < vocabulary_size]
    own = transform and transform.eos_token
    if not ids or (transform and own and ids == [transform.id_of(own)]):
        return None
    return tuple(ids)


def generation_value(config: Fields, name: str, default: Any = None) -> Any:
    """Returns a field of generation_config.json, else of config.json."""
    return config.generation.get(name, config.get(name, default))


def generation_defaults(model: Any) -> dict[str, Any]:
    """Returns the default options of `generate` in the config of a model."""
    return getattr(model.config, "generation", None) or {}


def generation_files(model: Any) -> dict[str, Any]:
    """Returns the generation_config.json of a model with a head, by the name of the file."""
    if model.head is None:
        return {}
    known = {name: number for name, number in model.special_ids().items() if number is not None}
    return {contract.GENERATION_CONFIG: {**known, **generation_defaults(model)}}


def task_fields(config: Any) -> dict[str, Any]:
    """Returns the fields of config.json with the options of tasks."""
    return {} if config.task_options is None else {"task_specific_params": config.task_options}


def check_task_options(tasks: Any) -> None:
    """Raises a ConfigError for options that `translate` and `summarize` do not support."""
    if tasks is None:
        return
    if not isinstance(tasks, dict) or not all(isinstance(values, dict) for values in tasks.values()):
        raise ConfigError(f"task_options={tasks!r:.80}, expected a dict of options for each task.")
    for name, values in tasks.items():
        unknown = [key for key in values if key not in TASK_OPTIONS]
        if unknown:
            raise ConfigError(
                f"task_options[{name!r}] has the option {unknown[0]!r}. Pass any of "
                f"{', '.join(TASK_OPTIONS)}."
            )
        read_task(values, {}, f"task_options[{name!r}]")


def check_generation_defaults(options: Any) -> None:
    """Raises a ConfigError for options that are not defaults of `generate`."""
    if options is None:
        return
    if not isinstance(options, dict):
        raise ConfigError(f"generation={options!r}, expected a dict of options of generate().")
    unknown = [name for name in options if name not in NEUTRAL]
    if unknown:
        raise ConfigError(f"generation has the option {unknown[0]!r}. Pass any of {', '.join(NEUTRAL)}.")
    check_constraints(options, "generation")
