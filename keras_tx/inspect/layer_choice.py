"""The layers that a caller selects by index or name."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from keras_tx.errors import ConfigError, nearest

Key = TypeVar("Key", bound=Hashable)
Layer = int | str
Layers = Layer | Sequence[Layer] | None


def layer_indices(layers: Layers, names: Sequence[str], model: str) -> list[int]:
    """Returns the indices of layers.

    Args:
        layers: one index or name, or a list of them; None for all layers. Negative indices count from
            the end.
        names: the names of all layers.
        model: the name of the model, for messages.

    Raises:
        ConfigError: if a layer does not exist.
    """
    if layers is None:
        return list(range(len(names)))
    wanted = list(layers) if isinstance(layers, Sequence) and not isinstance(layers, str) else [layers]
    return [_index(layer, names, model) for layer in wanted]


def _index(layer: object, names: Sequence[str], model: str) -> int:
    if isinstance(layer, str):
        if layer not in names:
            raise ConfigError(f"Model {model!r} has no layer {layer!r}. {nearest(layer, names)}")
        return names.index(layer)
    try:
        index = operator.index(layer)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"layers has {layer!r}, expected indices or names of layers.") from None
    if not -len(names) <= index < len(names):
        raise ConfigError(
            f"layers has {index}, but model {model!r} has {len(names)} layers with attention (0 to "
            f"{len(names) - 1})."
        )
    return index % len(names)


def in_order(keys: Sequence[Key], arrays: Iterator[tuple[Key, np.ndarray]]) -> Iterator[np.ndarray]:
    """Yields arrays in the order of their keys, some of which may repeat; later arrays are not computed."""
    pending = list(keys)
    kept: dict[Key, np.ndarray] = {}
    while pending:
        while pending[0] not in kept:
            key, kept[key] = next(arrays)
        key = pending.pop(0)
        yield kept[key] if key in pending else kept.pop(key)
