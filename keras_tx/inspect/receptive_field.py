"""The effective receptive field: the pixels that affect one position of a layer's output."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_tx.errors import ConfigError, whole_number
from keras_tx.inspect.decision import masked_sum
from keras_tx.inspect.gradients import find_layer, gradients, intercept_calls
from keras_tx.progress_bar import ProgressBar


def effective_receptive_field(
    model: Any,
    images: Any,
    layer: str,
    *,
    position: tuple[int, int] | None = None,
    grid: tuple[int, int] | None = None,
    batch_size: int = 4,
    progress: bool = False,
) -> np.ndarray:
    """Computes the effective receptive field of a position by gradients (Luo et al., 2016).

    It is the absolute gradient of the sum of all channels at the position, summed over the channels of the
    pixels and averaged over the images. In a CNN it is concentrated in the middle of the theoretical
    receptive field; in a ViT it covers the image from the first block on.

    Args:
        model: a Keras model of images: a ViT, a model of keras.applications, or your own.
        images: inputs of the model (batch, height, width, channels). Random images are sufficient for a model
            at initialization; use real images for a trained model.
        layer: name of the layer, whose output is (batch, rows, columns, channels), or (batch, tokens, width)
            with one token for each patch.
        position: (row, column) in the layer's output; by default the center.
        grid: (rows, columns) of the patches, for a layer of tokens; by default that of the model's config.
            Other tokens, such as the class token, are before the patches.
        batch_size: number of images that the model computes at once.
        progress: whether to show a progress bar.

    Returns:
        A float32 array (height, width), 0 outside of the theoretical receptive field.

    Raises:
        ConfigError: if the layer does not exist or has an output without positions.

    Example:

    >>> import keras
    >>> convolution = keras.layers.Conv2D(1, 3, padding="same", kernel_initializer="ones", name="last")
    >>> model = keras.Sequential([keras.Input((5, 5, 1)), convolution])
    >>> effective_receptive_field(model, np.zeros((1, 5, 5, 1), "float32"), "last")
    array([[0., 0., 0., 0., 0.],
           [0., 1., 1., 1., 0.],
           [0., 1., 1., 1., 0.],
           [0., 1., 1., 1., 0.],
           [0., 0., 0., 0., 0.]], dtype=float32)
    """
    whole_number("batch_size", batch_size)
    images = np.asarray(images)
    if images.ndim != 4 or images.dtype.kind != "f":
        raise ConfigError(
            f"images has the shape {images.shape} and the dtype {images.dtype}, expected floats (batch, "
            "height, width, channels). Pass model.processing(images)."
        )
    point = (find_layer(model, layer), "call")

    def scores(x: Any) -> Any:
        outputs: list[Any] = []

        def record(_: Any, output: Any) -> Any:
            outputs.append(output)
            return output

        with intercept_calls([point], record):
            model(x, training=False)
        if len(outputs) != 1:
            raise ConfigError(f"The model calls the layer {layer!r} {len(outputs)} times, expected once.")
        shape = tuple(outputs[0].shape)
        mask = np.zeros(shape, bool)
        mask[:, *_index(shape, position, grid)] = True
        return masked_sum(outputs[0], mask)

    grid = getattr(getattr(model, "config", None), "grid", None) if grid is None else grid
    total = np.zeros(images.shape[1:3])
    with ProgressBar(len(images), "images", shown=progress) as bar:
        for start in range(0, len(images), batch_size):
            batch = images[start : start + batch_size]
            _, (gradient,) = gradients(scores, [batch])
            total += np.abs(gradient, dtype="float64").sum(axis=(0, 3))
            bar.advance(len(batch))
    return (total / len(images)).astype("float32")


def _index(
    shape: tuple[int, ...], position: tuple[int, int] | None, grid: tuple[int, int] | None
) -> tuple[int, ...]:
    """Where a position is on the axes after the batch."""
    if len(shape) == 4:
        rows, columns, prefix = shape[1], shape[2], 0
    elif len(shape) == 3:
        if grid is None:
            raise ConfigError(
                f"The layer's output has the shape {shape}, and the model has no config with its grid. Pass "
                "grid=(rows, columns) of the patches."
            )
        rows, columns = grid
        prefix = shape[1] - rows * columns
        if prefix < 0:
            raise ConfigError(
                f"grid={grid} has {rows * columns} patches, but the layer has {shape[1]} tokens."
            )
    else:
        raise ConfigError(
            f"The layer's output has the shape {shape}, expected (batch, rows, columns, channels) or (batch, "
            "tokens, width). Choose an earlier layer."
        )
    row, column = (rows // 2, columns // 2) if position is None else position
    if not (0 <= row < rows and 0 <= column < columns):
        raise ConfigError(
            f"position={position} is out of range: the layer's output has {rows} rows and {columns} columns."
        )
    return (row, column) if len(shape) == 4 else (prefix + row * columns + column,)


def field_center(field: Any) -> tuple[int, int]:
    """Computes the center (row, column) of a receptive field: the median of its sum on each axis.

    Args:
        field: array (height, width) of numbers that are 0 or more, not all 0.

    Example:

    >>> field_center(np.array([[0, 0, 1], [1, 5, 1], [0, 0, 0]]))
    (1, 1)
    """
    field = np.asarray(field, "float64")
    sums = [field.sum(axis=axis).cumsum() for axis in (1, 0)]
    row, column = (int(np.searchsorted(total, total[-1] / 2)) for total in sums)
    return row, column


def central_square(field: Any, share: float = 0.5, center: tuple[int, int] | None = None) -> int:
    """Computes the side of the smallest square that contains a share of a receptive field.

    Args:
        field: array (height, width) of numbers that are 0 or more.
        share: the share of the sum, above 0 and at most 1.
        center: (row, column) of the center of the square in pixels; by default `field_center(field)`. Where
            the square exceeds the image it is cut.

    Returns:
        The side in pixels, an odd number, before cutting.

    Raises:
        ConfigError: if the field is 0 everywhere, or the share is out of range.

    Example:

    >>> field = np.zeros((9, 9))
    >>> field[3:6, 3:6] = 1
    >>> central_square(field, 0.1), central_square(field, 0.9)
    (1, 3)
    """
    field = np.asarray(field, "float64")
    if field.ndim != 2 or not field.sum() > 0 or field.min() < 0:
        raise ConfigError(
            f"field has the shape {field.shape}, expected (height, width) with values of 0 or more, "
            "not all 0."
        )
    if not 0 < share <= 1:
        raise ConfigError(f"share={share} is out of range: expected above 0 and at most 1.")
    row, column = field_center(field) if center is None else center
    rows, columns = np.indices(field.shape)
    distance = np.maximum(np.abs(rows - row), np.abs(columns - column))
    inside = np.bincount(distance.ravel(), field.ravel()).cumsum()
    # The last ring completes the sum up to rounding.
    reach = int(np.searchsorted(inside, share * inside[-1] * (1 - 1e-12)))
    return 2 * reach + 1
