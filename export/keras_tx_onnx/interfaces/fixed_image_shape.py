"""Copies of keras-hub tasks whose backbones were created for images of any size, for images of one size."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from keras_tx.errors import ConfigError
from keras_tx_onnx import tolerances
from keras_tx_onnx.errors import one_line
from keras_tx_onnx.reading.keras_patches import in_float32

_SHAPE = "image_shape"  # the argument of keras-hub's backbones


def with_image_shape(source: Any, height: int, width: int) -> Any:
    """The task for images of this size, with the same weights; itself if all its backbones have a size, or if
    its own has one and those inside cannot have another.

    Raises a ConfigError if a copy cannot be created, or computes something else.
    """
    config = source.backbone.get_config()
    if not _is_any_size(config):
        return source
    try:
        backbone = type(source.backbone).from_config(_sized(config, height, width))
        fields = {**source.get_config(), "backbone": backbone, "preprocessor": None}
        copy = type(source).from_config(fields)
        copy.set_weights(source.get_weights())
        copy.preprocessor = source.preprocessor
    except Exception as error:  # the model's code may raise any exception
        if None not in config.get(_SHAPE, (None,)):
            return source  # such as a BASNet, whose encoder must have no size of its own
        raise ConfigError(
            f"Model {source.name!r} ({type(source).__name__}) accepts images of any size, and a copy for "
            f"{height} x {width} cannot be created: {one_line(error)} Create its backbone with a fixed "
            f"{_SHAPE}."
        ) from error
    _compare(source, copy, height, width)
    return copy


def _is_any_size(config: Any) -> bool:
    if isinstance(config, dict):
        shape = config.get(_SHAPE)
        own = isinstance(shape, list | tuple) and None in shape
        return own or any(map(_is_any_size, config.values()))
    return isinstance(config, list | tuple) and any(map(_is_any_size, config))


def _sized(config: Any, height: int, width: int) -> Any:
    """The config with this size in place of any size, also of nested backbones."""
    if isinstance(config, dict):
        sized = {name: _sized(value, height, width) for name, value in config.items()}
        shape = config.get(_SHAPE)
        if isinstance(shape, list | tuple) and None in shape:
            sized[_SHAPE] = (height, width, shape[-1])
        return sized
    if isinstance(config, list | tuple):
        return type(config)(_sized(value, height, width) for value in config)
    return config


def _compare(source: Any, copy: Any, height: int, width: int) -> None:
    image = np.random.default_rng(0).uniform(0, 1, (1, height, width, source.inputs[0].shape[-1]))
    with keras.device("cpu"), in_float32():
        tensor = keras.ops.convert_to_tensor(image.astype("float32"))
        both = [keras.tree.flatten(model(tensor, training=False)) for model in (source, copy)]
    for first, second in zip(*both, strict=True):
        first, second = (keras.ops.convert_to_numpy(x) for x in (first, second))
        if first.shape != second.shape or tolerances.difference(second, first) > tolerances.FLOAT32:
            raise ConfigError(
                f"Model {source.name!r} ({type(source).__name__}) accepts images of any size, and a copy for "
                f"{height} x {width} has other outputs. Create its backbone with a fixed {_SHAPE}."
            )
