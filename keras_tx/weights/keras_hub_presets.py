"""keras-hub's presets, by name or folder, and its live models: who reads them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import keras

from keras_tx.errors import ConfigError, nearest
from keras_tx.models.bert import Bert
from keras_tx.weights import keras_hub_bert, keras_hub_gpt, keras_hub_vit
from keras_tx.weights.keras_hub_tokenizers import text_transform
from keras_tx.weights.origin import Origin

READERS: tuple[Any, ...] = (keras_hub_vit, keras_hub_bert, keras_hub_gpt)
FILES = ("config.json", "metadata.json")  # of a preset's folder
TASK = "task.json"
TOKENIZER = "tokenizer.json"
NAME = re.compile(r"[a-z0-9]+(_[a-z0-9.]+)+")  # as "bert_base_en"
URLS = ("kaggle://", "modelscope://", "gs://")


def is_url(name: str) -> bool:
    return name.startswith(URLS)


def is_name(name: str) -> bool:
    """Whether it could be the name of a preset; the package is loaded only to look it up."""
    return NAME.fullmatch(name) is not None and not name.endswith((".keras", ".h5", ".safetensors"))


def is_folder(path: Path) -> bool:
    return all((path / name).is_file() for name in FILES)


def is_model(source: Any) -> bool:
    """Whether it is a backbone or task; asked where keras_hub is loaded already."""
    import keras_hub

    return isinstance(source, keras_hub.models.Backbone | keras_hub.models.Task)


def of_model(source: keras.Model) -> Origin:
    names = [kind.__name__ for kind in type(source).__mro__]
    for reader in READERS:
        if set(names) & set(reader.CLASSES):
            return reader.origin(source)
    known = ", ".join(name for reader in READERS for name in reader.CLASSES)
    raise ConfigError(
        f"keras-hub's {names[0]} {source.name!r} is none of those whose weights are read: {known}."
    )


def of_preset(name: str) -> Origin:
    """Loads a preset as what it was saved as: a task with its head, or a backbone."""
    try:
        import keras_hub
        from keras_hub.src.utils import preset_utils  # whether a preset is a task, no public name says
    except ImportError as error:
        raise ConfigError(f'{name} is read by keras-hub: pip install "keras-tx[cpu]".') from error
    known = keras_hub.models.Backbone.presets
    if not is_url(name) and "://" not in name and not Path(name).exists() and name not in known:
        raise ConfigError(f"{name} is neither a path nor a preset of keras-hub. {nearest(name, known)}")
    models = keras_hub.models
    try:
        kind: Any = models.Backbone
        if preset_utils.check_file_exists(name, TASK):
            kind = getattr(models, str(preset_utils.load_json(name, TASK).get("class_name")), None)
            if not (isinstance(kind, type) and issubclass(kind, models.Task)):
                raise ConfigError(f"{name}: its {TASK} names no task of keras-hub.")
        loaded = kind.from_preset(name)
    except ConfigError:
        raise
    except Exception as error:  # whatever downloading, reading and building raise, each library its own
        raise ConfigError(
            f"keras-hub could not load the preset {name}: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error
    origin = of_model(loaded)
    if (
        origin.family is Bert
        and origin.processing is None
        and preset_utils.check_file_exists(name, TOKENIZER)
    ):
        # A backbone has none, but its folder does.
        tokenizer = text_transform(models.Tokenizer.from_preset(name), origin.where)
        fields = dict(origin.fields or {})
        if tokenizer is not None and tokenizer.pad_token is not None:
            fields["pad_id"] = tokenizer.pad_id
        origin = dataclasses.replace(origin, processing=tokenizer, fields=fields)
    return origin
