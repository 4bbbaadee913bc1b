"""The image transform that equals the preprocessor of a keras-hub task."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras
import numpy as np
from keras.config import backend

from keras_tx.errors import ConfigError
from keras_tx.processing import ImageTransform
from keras_tx.processing.image import RESAMPLING
from keras_tx.processing.keras_resize import INTERPOLATIONS, KerasResize
from keras_tx_onnx.interfaces.vision import affine

_CONVERTER = "keras_hub.src.layers.preprocessing.image_converter"
_PILLOW = {"lanczos3": "lanczos", "lanczos5": "lanczos"}  # for programs without Keras's resizing
_CLOSE = 0.01  # of one of 256 steps
_SHAPES = ((1.0, 1.0), (1.7, 1.1), (0.6, 1.3))  # of test images, relative to the size of the model


def keras_hub_transform(
    model: Any, height: int | None, width: int | None
) -> tuple[ImageTransform, list[str]] | None:
    """The transform of a task with keras-hub's ImageConverter, and notes; None for other models.

    Raises a ConfigError if the transform does not equal the ImageConverter.
    """
    converter = getattr(getattr(model, "preprocessor", None), "image_converter", None)
    if converter is None or type(converter).call.__module__ != _CONVERTER:
        return None
    high, wide = converter.image_size or (height, width)
    if high is None or wide is None or converter.interpolation not in INTERPOLATIONS:
        raise ConfigError(
            f"The preprocessor of model {model.name!r} has image_size={converter.image_size!r} and "
            f"interpolation={converter.interpolation!r}, expected a size and one of "
            f"{', '.join(INTERPOLATIONS)}. Pass image=keras_tx.ImageTransform(size, ...)."
        )
    scale, offset = (
        np.broadcast_to(default if value is None else np.asarray(value, "float64"), 3)
        for value, default in ((converter.scale, 1.0), (converter.offset, 0.0))
    )
    resize = KerasResize(
        converter.interpolation,
        bool(converter.antialias),
        _aspect(converter),
        table=backend() == "tensorflow",
    )
    pillow = _PILLOW.get(resize.interpolation, resize.interpolation)
    assert pillow in RESAMPLING
    transform = dataclasses.replace(affine(scale, offset, (high, wide), pillow), keras_resize=resize)
    _check(model, converter, transform)
    return transform, _notes(model, converter, resize)


def _aspect(converter: Any) -> str:
    if converter.crop_to_aspect_ratio:
        return "crop"
    return "pad" if converter.pad_to_aspect_ratio else "stretch"


def _notes(model: Any, converter: Any, resize: KerasResize) -> list[str]:
    filtered = "with" if resize.antialias else "without"
    notes = [
        f"The folder prepares pixels as the preprocessor of {model.name!r}: {resize.interpolation} "
        f"interpolation {filtered} antialiasing, aspect ratio: {resize.aspect}. keras_tx.runtime does the "
        "same. Other clients resize to the size of the model in their own way, so pass them images of that "
        "size."
    ]
    if converter.image_size is None:
        notes.append(
            f"The preprocessor of {model.name!r} has no image_size: it raises an error for images of another "
            "size than the model's, and the folder resizes them."
        )
    return notes


def _check(model: Any, converter: Any, transform: ImageTransform) -> None:
    """Compares the transform with the ImageConverter on random images of three sizes."""
    random = np.random.default_rng(0)
    step = np.abs(transform.rescale / np.asarray(transform.std))
    for high, wide in _SHAPES if converter.image_size else _SHAPES[:1]:
        shape = (_stretch(transform.height, high), _stretch(transform.width, wide), 3)
        image = random.integers(0, 256, shape, "uint8")
        pixels = image[None].astype("float32")  # as in predict
        try:
            theirs = np.asarray(keras.ops.convert_to_numpy(converter(pixels))[0], "float64")
        except ValueError as error:
            raise ConfigError(
                f"The preprocessor of model {model.name!r} raises an error for images of another size on "
                f"backend {backend()}: {' '.join(str(error).split()):.300} "
                "Pass image=keras_tx.ImageTransform(size, ...)."
            ) from error
        ours = transform(image)[0]
        if ours.shape == theirs.shape and np.max(np.abs(ours - theirs) / step) < _CLOSE:
            continue
        raise ConfigError(
            f"The preprocessor of model {model.name!r} ({type(converter).__name__}, backend "
            f"{backend()}) returns other pixels than its arguments say for an image of "
            f"{shape[0]} x {shape[1]}. Pass image=keras_tx.ImageTransform(size, ...)."
        )


def _stretch(length: int, factor: float) -> int:
    """About the length times a factor; without a common divisor, new pixels lie at more places."""
    if factor == 1.0:
        return length
    larger = int(length * factor) or 1
    while math.gcd(larger, length) > 1:
        larger += 1
    return larger
