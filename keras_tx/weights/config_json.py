"""Reads the fields of a config.json and checks their types. Errors name the file and the key."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Collection, Mapping
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError, nearest
from keras_tx.weights.checkpoint import read_json
from keras_tx.weights.tensor_source import Checkpoint

# Activations of transformers by our names.
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu", "quick_gelu": "quick_gelu"}


class Fields(dict[str, Any]):
    """The fields of a checkpoint's config.json.

    `names` maps fields of our config to keys of the file, for messages.
    """

    def __init__(self, checkpoint: Checkpoint):
        assert checkpoint.config is not None and checkpoint.folder is not None
        super().__init__(checkpoint.config)
        self.folder = checkpoint.folder
        self.where = str(checkpoint.folder / contract.CONFIG)
        self.names: Mapping[str, str] = {}

    @functools.cached_property
    def generation(self) -> Mapping[str, Any]:
        """The fields of generation_config.json; those of config.json without one."""
        if not (self.folder / contract.GENERATION_CONFIG).is_file():
            return self
        return read_json(self.folder, contract.GENERATION_CONFIG)

    @property
    def where_generation(self) -> str:
        """The file of `generation`, for messages."""
        return self.where if self.generation is self else str(self.folder / contract.GENERATION_CONFIG)

    def error(self, name: str, expected: str) -> ConfigError:
        return ConfigError(f"{self.where} has {name}={self.get(name)!r}; {expected}.")

    def number(self, name: str, default: int, *, none: bool = False) -> Any:
        """Returns an integer field, 0 or more; with `none` also null."""
        value = self.get(name, default)
        if (none and value is None) or (type(value) is int and value >= 0):
            return value
        raise self.error(name, "expected a whole number, 0 or more")

    def real(self, name: str, default: float) -> float:
        """Returns a number field, 0 or more."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise self.error(name, "expected a number, 0 or more")
        return value

    def text(self, name: str, known: Collection[str], default: str | None = None) -> str:
        """Returns a string field with one of the known values."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in known:
            raise ConfigError(
                f"{self.where} has {name}={value!r}, which is not supported. {nearest(str(value), known)}"
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Returns a boolean field."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, "expected true or false")
        return default if value is None else value

    def refuse(self, name: str, only: Any) -> None:
        """Raises a ConfigError unless the field has the only supported value, null, or is missing."""
        if self.get(name) not in (None, only):
            raise self.error(name, f"only {name}={only!r} is supported")

    def architecture(self) -> str:
        """Returns the name of the class that wrote the checkpoint."""
        names = self.get("architectures") or []
        if not isinstance(names, list) or not all(isinstance(x, str) for x in names):
            raise self.error("architectures", "expected a list of names")
        if not names:
            raise self.error("architectures", "expected the name of a class, which defines the head")
        return names[0]


def labels_of(config: Fields) -> tuple[int, tuple[str, ...] | None]:
    """Returns the number of classes and their names, or None without names.

    Raises:
        ConfigError: id2label does not map 0, 1, 2 ... to names.
    """
    names = config.get("id2label")
    if names is None:
        return config.number("num_labels", 2), None
    try:
        labels = [names[key] for key in sorted(names, key=int)]
        numbers = sorted(map(int, names))
    except (TypeError, ValueError, AttributeError):
        raise config.error("id2label", "expected an object of numbers and names") from None
    if numbers != list(range(len(labels))) or not all(isinstance(x, str) and x for x in labels):
        raise config.error("id2label", "expected a name for each number from 0 on")
    if labels == [f"LABEL_{number}" for number in numbers]:
        return len(labels), None
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:  # ImageNet has two classes named "crane"
        warnings.warn(
            f"{config.where}: id2label has several classes {twice[0]!r}. Their numbers are appended to the "
            "names.",
            stacklevel=2,
        )
        labels = [f"{x} ({number})" if x in twice else x for number, x in enumerate(labels)]
    return len(labels), tuple(labels)
