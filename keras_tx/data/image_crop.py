"""Random crops of images, as in Inception and DeiT."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError

RATIO = (3 / 4, 4 / 3)  # width to height, relative to those of the result
ATTEMPTS = 10

Box = tuple[float, float, float, float]


def check_crop(crop: Any) -> tuple[float, float]:
    """Returns the smallest and largest area of a crop, as fractions of the image.

    Raises:
        ConfigError: they are out of range.
    """
    numbers = isinstance(crop, list | tuple) and len(crop) == 2
    if not numbers or not all(isinstance(x, int | float) and not isinstance(x, bool) for x in crop):
        raise ConfigError(f"crop is {crop!r}, expected the smallest and largest area, such as (0.08, 1.0).")
    low, high = crop
    if not 0 < low <= high <= 1:
        raise ConfigError(f"crop is {crop!r}, expected areas between 0 and 1 in ascending order.")
    return float(low), float(high)


def draw_crop(
    size: tuple[int, int], target: tuple[int, int], crop: tuple[float, float], random: np.random.Generator
) -> Box:
    """Draws a part of an image: its area uniformly, the logarithm of its aspect ratio uniformly.

    If no draw of ten fits, the largest central part whose aspect ratio is in range is returned.

    Args:
        size: width and height of the image.
        target: width and height of the result, to which the aspect ratio is relative.
        crop: smallest and largest area, as fractions of the image.
        random: the generator.

    Returns:
        Left, upper, right and lower edge, in whole pixels.
    """
    width, height = size
    unit = target[0] / target[1]
    for _ in range(ATTEMPTS):
        area = width * height * random.uniform(*crop)
        ratio = unit * math.exp(random.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, upper = random.integers(width - across + 1), random.integers(height - down + 1)
            return int(left), int(upper), int(left) + across, int(upper) + down
    ratio = min(max(width / height, unit * RATIO[0]), unit * RATIO[1])
    across, down = min(width, max(round(height * ratio), 1)), min(height, max(round(width / ratio), 1))
    left, upper = (width - across) // 2, (height - down) // 2
    return left, upper, left + across, upper + down
