"""Resizing as keras.layers.Resizing does on the TensorFlow and JAX backends, with NumPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError, nearest

ASPECTS = ("stretch", "crop", "pad")
TABLE = 1024  # steps between two pixels for which TensorFlow computes bicubic weights
KEYS = -0.5  # the parameter of Keys's cubic kernel


@dataclasses.dataclass(frozen=True)
class KerasResize:
    """How keras.layers.Resizing resizes an image: the names are its arguments.

    Unlike Pillow, Keras does not filter before it shrinks an image, unless `antialias` is true.

    Args:
        interpolation: "nearest", "bilinear", "bicubic", "lanczos3" or "lanczos5".
        antialias: whether a smaller image is filtered.
        aspect: "stretch" ignores the aspect ratio, "crop" cuts the edges off (`crop_to_aspect_ratio`), "pad"
            adds black edges (`pad_to_aspect_ratio`).
        table: whether bicubic interpolation without antialiasing has the rounded weights of the TensorFlow
            backend, from a table, instead of the exact ones of the JAX backend.
    """

    interpolation: str = "bilinear"
    antialias: bool = False
    aspect: str = "stretch"
    table: bool = True

    def __post_init__(self) -> None:
        for name, known in (("interpolation", tuple(INTERPOLATIONS)), ("aspect", ASPECTS)):
            value = getattr(self, name)
            if value not in known:
                raise ConfigError(f"{name}={value!r} is unknown. {nearest(str(value), known)}")
        for name in ("antialias", "table"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r} is invalid. Pass True or False.")

    @classmethod
    def from_dict(cls, fields: Any) -> KerasResize:
        """Reads the fields of a JSON file."""
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(fields, Mapping) or set(fields) != set(names):
            raise ConfigError(f"keras_resize is {fields!r:.80}, expected an object with {', '.join(names)}.")
        return cls(**fields)

    def __call__(self, image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        """Resizes a uint8 image (height, width, channels).

        Returns:
            A float32 image, with 1 for white, not rounded to 8 bits; the image itself if it has the size.
        """
        if image.shape[:2] == size:
            return image
        top, left, high, wide = self.region(image.shape[:2], size)
        if self.aspect == "crop":
            image = image[top : top + high, left : left + wide]
        elif self.aspect == "pad":
            image = np.pad(image, ((-top, -top), (-left, -left), (0, 0)))
        return self._interpolated(image, size) / 255

    def region(self, shape: tuple[int, ...], size: tuple[int, int]) -> tuple[int, int, int, int]:
        """Returns the part of an image of this (height, width) that is resized: its top, left, height, width.

        With "pad" it is larger than the image, with as many black pixels on both sides; of an odd number, one
        less.
        """
        height, width = shape
        if (height, width) == size or self.aspect == "stretch":
            return 0, 0, height, width
        rows, columns = _scaled(width, size[0], size[1]), _scaled(height, size[1], size[0])
        if self.aspect == "crop":
            rows, columns = max(min(height, rows), 1), max(min(width, columns), 1)
            return (height - rows) // 2, (width - columns) // 2, rows, columns
        above, before = (max(height, rows) - height) // 2, (max(width, columns) - width) // 2
        return -above, -before, height + 2 * above, width + 2 * before

    def _interpolated(self, image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        table = self.table and self.interpolation == "bicubic" and not self.antialias
        rows, columns = (
            _weights(old, new, self.interpolation, self.antialias, table)
            for old, new in zip(image.shape[:2], size, strict=True)
        )
        values = _along(image.astype(np.float32), columns, 1)
        return _along(values, rows, 0)


@dataclasses.dataclass(frozen=True)
class _Kernel:
    radius: float
    weight: Any  # of a distance, 0 outside of the radius


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(0, 1 - np.abs(x))


def _cubic(x: np.ndarray) -> np.ndarray:
    x = np.abs(x)
    near = ((KEYS + 2) * x - (KEYS + 3)) * x * x + 1
    far = ((KEYS * x - 5 * KEYS) * x + 8 * KEYS) * x - 4 * KEYS
    return np.where(x >= 2, 0, np.where(x >= 1, far, near))


def _lanczos(radius: int) -> Any:
    return lambda x: np.where(np.abs(x) > radius, 0, np.sinc(x) * np.sinc(x / radius))


INTERPOLATIONS = {
    "nearest": _Kernel(0, None),
    "bilinear": _Kernel(1, _triangle),
    "bicubic": _Kernel(2, _cubic),
    "lanczos3": _Kernel(3, _lanczos(3)),
    "lanczos5": _Kernel(5, _lanczos(5)),
}


def _weights(
    old: int, new: int, interpolation: str, antialias: bool, table: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The pixels that each new pixel is computed from, (new, count), and their weights."""
    scale = np.float32(old) / np.float32(new)
    places = (np.arange(new, dtype=np.float32) + np.float32(0.5)) * scale  # of the centers
    if interpolation == "nearest":
        index = np.minimum(np.floor(places).astype(int), old - 1)[:, None]
        return index, np.ones((new, 1), np.float32)
    kernel = INTERPOLATIONS[interpolation]
    stretch = np.float32(max(scale, 1.0) if antialias else 1.0)
    reach = int(np.ceil(kernel.radius * stretch))
    first = np.floor(places - np.float32(0.5)).astype(int)
    index = first[:, None] + np.arange(1 - reach, reach + 1)
    if table:
        steps = np.rint((places - np.float32(0.5) - first) * TABLE) / TABLE
        distances = np.arange(1 - reach, reach + 1) - steps[:, None]
    else:
        distances = (index + np.float32(0.5) - places[:, None]) / stretch
    inside = (index >= 0) & (index < old)
    weights = np.where(inside, kernel.weight(distances.astype(np.float32)), 0)
    weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(index, 0, old - 1), weights.astype(np.float32)


def _along(values: np.ndarray, weights: tuple[np.ndarray, np.ndarray], axis: int) -> np.ndarray:
    """Weighted sums of the pixels of one axis."""
    index, factors = weights
    shape = [1, 1, 1]
    shape[axis] = -1
    terms = (
        np.take(values, index[:, k], axis=axis) * factors[:, k].reshape(shape) for k in range(index.shape[1])
    )
    total = next(terms)
    for term in terms:
        total = total + term
    return total


def _scaled(length: int, target: int, other: int) -> int:
    """length * target / other in float32, without its fraction."""
    return int(np.float32(length * target) / np.float32(other))
