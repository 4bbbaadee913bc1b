"""Builds the config dataclasses of the families from keyword arguments."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from keras_tx.errors import ConfigError, nearest
from keras_tx.weights.config_json import Fields

# Fields of the configs by their names in other libraries.
OTHER_NAMES = {
    **dict.fromkeys(("hidden_size", "hidden_dim", "embed_dim", "d_model", "n_embd", "dim"), "width"),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layers", "n_layer", "layers"), "depth"),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "heads"), "num_heads"),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), "kv_heads"),
    **dict.fromkeys(("intermediate_size", "intermediate_dim", "n_inner"), "mlp_dim"),
    **dict.fromkeys(("vocab_size", "vocabulary"), "vocabulary_size"),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "block_size", "max_seq_length"), "max_length"),
    **dict.fromkeys(("hidden_dropout_prob", "dropout_rate", "resid_pdrop"), "dropout"),
    **dict.fromkeys(("hidden_act", "activation_function"), "activation"),
    **dict.fromkeys(("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps"), "norm_epsilon"),
    **dict.fromkeys(("num_channels", "in_chans"), "channels"),
    "img_size": "image_size",
    "drop_path_rate": "drop_path",
    "type_vocab_size": "segments",
    "pad_token_id": "pad_id",
}
NUMBERS_OF_CLASSES = ("classes", "num_classes", "n_classes", "num_labels")
# Owners of Hugging Face repositories whose names are often written without the owner, by prefix.
OWNERS = {
    "bert-": "google-bert",
    "distilbert-": "distilbert",
    "distilgpt2": "distilbert",
    "gpt2": "openai-community",
    "roberta-": "FacebookAI",
    "xlm-roberta-": "FacebookAI",
}


def hub_advice(name: str) -> str:
    """Returns how to load a name that looks like a Hugging Face repository; otherwise empty."""
    owner = next((owner for prefix, owner in OWNERS.items() if name.startswith(prefix)), None)
    if name.startswith("hf://"):
        source = name
    elif re.fullmatch(r"[\w.-]{3,}/[\w.-]+", name):
        source = f"hf://{name}"
    elif owner is not None:
        source = f"hf://{owner}/{name}"
    else:
        return ""
    return f'Load a checkpoint of the Hugging Face Hub with keras_tx.from_checkpoint("{source}").'


def unknown_variant(name: Any, known: Iterable[str]) -> ConfigError:
    return ConfigError(f"variant={name!r} is unknown. {hub_advice(str(name)) or nearest(str(name), known)}")


def make_config(config_class: type, fields: dict[str, Any], source: Fields | None = None) -> Any:
    """Returns a config with these fields.

    Args:
        config_class: a config dataclass.
        fields: its fields by name.
        source: the config.json of the fields; errors then name the file and its keys.

    Raises:
        ConfigError: for an unknown field or an invalid value.
    """
    try:
        _check_names(config_class, fields)
        return config_class(**fields)
    except ConfigError as error:
        if source is None:
            raise
        names = rf"\b({'|'.join(source.names)})\b(?==| is )"
        message = re.sub(names, lambda match: source.names[match[1]], str(error))
        raise ConfigError(f"{source.where}: {message}") from error


def _check_names(config_class: type, fields: dict[str, Any]) -> None:
    known = [field.name for field in dataclasses.fields(config_class)]
    for name in fields:
        if name not in known:
            advice = nearest(name, known)
            if OTHER_NAMES.get(name) in known:
                advice = f"Use {OTHER_NAMES[name]!r}."
            elif name in NUMBERS_OF_CLASSES:
                advice = (
                    f"Pass num_classes= to the factory, or head=keras_tx.ClassifierHead({fields[name]!r})."
                )
            raise ConfigError(f"{config_class.__name__} has no field {name!r}. {advice}")


def check_token_ids(config: Any) -> None:
    """Checks `pad_id`, `start_id` and `stop_ids` of a text model's config, whose `stop_ids` become a tuple.

    Raises:
        ConfigError: for an id that is not in the vocabulary.
    """
    size = config.vocabulary_size
    for name in ("pad_id", "start_id"):
        number = getattr(config, name, None)
        if number is not None and number >= size:
            raise ConfigError(f"{name}={number} is out of range for vocabulary_size={size}.")
    ids = config.stop_ids
    if ids is None:
        return
    known = isinstance(ids, list | tuple) and all(type(i) is int and 0 <= i < size for i in ids)
    if not known or not ids:
        raise ConfigError(f"stop_ids={ids!r} is not a list of ids. Pass one or more from 0 to {size - 1}.")
    object.__setattr__(config, "stop_ids", tuple(dict.fromkeys(ids)))
