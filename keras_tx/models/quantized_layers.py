"""The layers of a model that Keras quantized, as a part of its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from keras_tx.errors import ConfigError

CALIBRATED = {"gptq": keras.quantizers.GPTQConfig, "awq": keras.quantizers.AWQConfig}


def quantized_config(model: keras.Model) -> dict[str, Any]:
    """Returns how each quantized layer was quantized, by its path; empty for a float model."""
    return {layer.path: _config_of(layer) for layer in _layers(model) if layer.quantization_mode is not None}


def quantize_from_config(model: keras.Model, config: Mapping[str, Any]) -> None:
    """Quantizes the layers of `quantized_config`, whose weights are then loaded."""
    layers = {layer.path: layer for layer in _layers(model)}
    for path, options in config.items():
        layer, mode = layers[path], options["mode"]
        if mode in CALIBRATED:
            settings = CALIBRATED[mode](dataset=None, tokenizer=None, **options["settings"])
            layer.quantize(mode, config=settings)
            del layer._kernel  # as calibration does
        else:
            settings = keras.saving.deserialize_keras_object(options["settings"])
            layer.quantize(mode, config=settings)


def check_calibrated(model: keras.Model) -> None:
    """Raises a ConfigError for a layer whose weights Keras would not save, because it is not calibrated."""
    for layer in _layers(model):
        mode = layer.quantization_mode
        if mode in CALIBRATED and not getattr(layer, f"is_{mode}_calibrated", False):
            raise ConfigError(
                f"Layer {layer.path!r} of model {model.name!r} has quantization_mode={mode!r} and is not "
                "calibrated, so Keras would not save its kernel. Exclude it with filters= of model.quantize."
            )


def _layers(model: keras.Model) -> list[Any]:
    return list(model._flatten_layers())


def _config_of(layer: Any) -> dict[str, Any]:
    mode, policy = layer.quantization_mode, layer.dtype_policy
    if mode == "gptq":
        settings: Any = {"weight_bits": policy.weight_bits, "group_size": policy.group_size}
    elif mode == "awq":
        settings = {"group_size": policy.group_size}
    else:
        settings = keras.saving.serialize_keras_object(layer.quantization_config)
    return {"mode": mode, "settings": settings}
