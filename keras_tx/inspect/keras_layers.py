"""Layers of a Keras model."""

from __future__ import annotations

from typing import Any

from keras_tx.errors import ConfigError, nearest


def layer_of_class(model: Any, kind: type, name: str | None) -> Any:
    """Returns the layer of a class with this name, by default the only one of the class."""
    layers = {layer.name: layer for layer in model.layers if isinstance(layer, kind)}
    if not layers:
        raise ConfigError(f"Model {model.name!r} has no {kind.__name__} layer.")
    if name is None:
        if len(layers) > 1:
            names = ", ".join(map(repr, layers))
            raise ConfigError(
                f"Model {model.name!r} has {len(layers)} {kind.__name__} layers. Pass layer=: {names}."
            )
        return next(iter(layers.values()))
    if name not in layers:
        raise ConfigError(
            f"Model {model.name!r} has no {kind.__name__} layer with layer={name!r}. {nearest(name, layers)}"
        )
    return layers[name]
