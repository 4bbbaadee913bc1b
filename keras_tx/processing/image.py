"""The image transform: resize, rescale, normalize. NumPy and Pillow only."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from keras_tx.errors import ConfigError, ImageError, nearest, whole_number
from keras_tx.processing.image_file import BYTES, pictures_in, read_image
from keras_tx.processing.keras_resize import KerasResize
from keras_tx.processing.preprocessor_config import KERAS_RESIZE, PROCESSOR_TYPE, RAW_PIXELS, fields_from

ImageSource = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO | Image.Image | np.ndarray
Images = ImageSource | Iterable[ImageSource]

RESAMPLING = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
# Larger shares of values far outside of the range, or outside of it, are an error.
FAR, OUTSIDE = 0.01, 0.3
ROUNDING = 1e-3
DARK, BRIGHT = 0.05, 0.5  # images in 0..1 have darker and brighter pixels


@dataclasses.dataclass(frozen=True)
class ImageTransform:
    """Resizes, rescales and normalizes images, in the same way for training and inference.

    An image is a path, the bytes of a file, a file opened in binary mode, a Pillow image, or a NumPy array:
    (height, width) for grayscale, or (height, width, channels); uint8, or float in 0..1. A call accepts one
    image, or several as a list, an iterator (Path.glob), a 4-D batch, or the path of a directory, whose image
    files are sorted by name. It returns a batch.

    As in torchvision, Keras and Hugging Face, image files are rotated by their EXIF tag and converted by
    Pillow: grayscale is repeated for three channels, alpha is dropped (not blended with white), 16-bit
    grayscale is scaled. Arrays must have the channels of the transform; 2-D arrays are grayscale. Images are
    resized by Pillow on 8 bits. An image of the right size is not resampled, and a float array of the right
    size is not rounded to 8 bits.

    Args:
        size: (height, width), or one number for a square; stored as a pair.
        channels: 3 for color, 1 for grayscale. Other numbers accept arrays only.
        resample: "nearest", "bilinear", "bicubic" or "lanczos".
        rescale: factor on the 8-bit values.
        mean, std: after rescaling, (value - mean) / std; one number, or one for each channel; stored as
            tuples.
        keras_resize: resizes as keras.layers.Resizing in place of Pillow, except random crops in training.
            `resample` is then the filter for programs that do not have this field.

    >>> transform = ImageTransform(size=2, channels=1)
    >>> transform(np.array([[0, 255], [255, 0]], "uint8"))[0, :, :, 0]
    array([[-1.,  1.],
           [ 1., -1.]], dtype=float32)
    """

    size: int | tuple[int, int]
    channels: int = 3
    resample: str = "bilinear"
    rescale: float = 1 / 255
    mean: float | tuple[float, ...] = 0.5
    std: float | tuple[float, ...] = 0.5
    keras_resize: KerasResize | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _pair(self.size))
        object.__setattr__(self, "channels", whole_number("channels", self.channels))
        if not isinstance(self.resample, str) or self.resample not in RESAMPLING:
            remedy = nearest(str(self.resample), RESAMPLING)
            raise ConfigError(f"resample is {self.resample!r}, expected the name of a filter. {remedy}")
        (rescale,) = _numbers("rescale", self.rescale, 1)
        if rescale <= 0:
            raise ConfigError(f"rescale is {self.rescale!r}, expected a positive number such as 1/255.")
        object.__setattr__(self, "rescale", rescale)
        object.__setattr__(self, "mean", _numbers("mean", self.mean, self.channels))
        std = _numbers("std", self.std, self.channels)
        if min(std) <= 0:
            raise ConfigError(f"std is {self.std!r}, expected positive numbers. Pixels are divided by them.")
        object.__setattr__(self, "std", std)
        if self.keras_resize is not None and not isinstance(self.keras_resize, KerasResize):
            object.__setattr__(self, "keras_resize", KerasResize.from_dict(self.keras_resize))

    @property
    def height(self) -> int:
        return _pair(self.size)[0]

    @property
    def width(self) -> int:
        return _pair(self.size)[1]

    def __call__(self, images: Any) -> Any:
        """Returns normalized images, float32 (batch, height, width, channels).

        In tf.data, `ds.map(lambda x, y: (transform(x), y))` accepts uint8 tensors, and float tensors in
        0..255, as keras.utils.image_dataset_from_directory returns them.

        Args:
            images: one image or several, see the class.

        Raises:
            ImageError: an image cannot be read, or has other channels or values.
        """
        tf = sys.modules.get("tensorflow")
        if tf is not None and tf.is_tensor(images):
            batch = tf.numpy_function(self._of_tensor, [images], tf.float32)
            return tf.ensure_shape(batch, (images.shape[0], *self._shape))
        items, several = _items(images)
        return self._stack(list(items), 0 if several else None, np.float32)

    def _of_tensor(self, images: np.ndarray) -> np.ndarray:
        if images.dtype == np.uint8:
            return self(images)
        low, high = images.min(initial=0), images.max(initial=0)
        if 0 < high <= 1 or not (low >= 0 and high <= 255):
            raise ImageError(
                f"The tensor has {images.dtype} values from {low:g} to {high:g}, expected uint8 or float in "
                "0..255, as image_dataset_from_directory returns them. Multiply values in 0..1 by 255."
            )
        return self((images / 255).astype(np.float32))

    @property
    def mode(self) -> str:
        """The mode of the Pillow images that are resized."""
        return "L" if self.channels == 1 else "RGB"

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels

    # Branches: one check after the other, each with its own remedy.
    def check_output(self, images: np.ndarray, *, in_dataset: bool = False) -> None:
        """Checks by shape and values that a batch is the output of this transform, possibly augmented.

        Args:
            images: the inputs of `fit`, `evaluate` or `predict`.
            in_dataset: whether the batch is from a dataset, for the line of code in the error.

        Raises:
            ConfigError: it is not.
        """
        line = "data.map(lambda x, y: (model.processing(x), y))" if in_dataset else "model.processing(x)"
        remedy = f"Pass {line} in place of {'data' if in_dataset else 'x'}"
        if images.shape[1:] != self._shape:
            raise ConfigError(
                f"The images have the shape {images.shape}, but model.processing returns (batch, "
                f"{self.height}, {self.width}, {self.channels}). {remedy}."
            )
        if not images.size or images.dtype.kind not in "biuf":
            return
        smallest, largest = float(images.min()), float(images.max())
        if np.isnan(smallest) or np.isnan(largest):
            raise ConfigError("The images have NaN values. Remove them from the data.")
        std = np.asarray(self.std)
        low, high = -np.asarray(self.mean) / std, (255 * self.rescale - np.asarray(self.mean)) / std
        # Only rescaled, not normalized: dark and bright pixels in 0..1; normalized ones are around 0.
        rescaled = high.min() > 0 > low.max() + ROUNDING and 0 <= smallest < DARK and BRIGHT < largest <= 1
        if not rescaled and _is_within(images, low, high):
            return
        if rescaled and in_dataset:
            remedy = remedy.replace("model.processing(x)", "model.processing(255 * x)")
        elif not rescaled and (smallest < 0 or largest > 255):
            remedy += ", with pixels of 0..255; for another normalization, set its mean= and std="
        elif not in_dataset and not rescaled and images.dtype != np.uint8:
            remedy += ', with pixels of 0..255 as x.astype("uint8")'
        raise ConfigError(
            f"The images have values from {smallest:g} to {largest:g}, but model.processing returns "
            f"{low.min():g} to {high.max():g}. {remedy}."
        )

    def resize(self, images: Images) -> np.ndarray:
        """Returns resized images, uint8 (batch, height, width, channels), for graphs with `raw_pixels`."""
        items, several = _items(images)
        return self._stack(list(items), 0 if several else None, np.uint8)

    def batches(self, images: Images, batch_size: int, *, raw_pixels: bool = False) -> Iterator[np.ndarray]:
        """Yields the output of a call, or of `resize` with `raw_pixels`, in batches.

        Only one batch of images is in memory at a time.
        """
        items, several = _items(images)
        batch_size = whole_number("batch_size", batch_size)
        rest, first = iter(items), 0
        while piece := list(itertools.islice(rest, batch_size)):
            yield self._stack(piece, first if several else None, np.uint8 if raw_pixels else np.float32)
            first += len(piece)

    def sources(self, images: Images, batch_size: int) -> Iterator[list[np.ndarray]]:
        """Yields lists of `batch_size` images, read but not resized: arrays (height, width, channels)."""
        items, several = _items(images)
        batch_size = whole_number("batch_size", batch_size)
        rest, first = iter(items), 0
        while piece := list(itertools.islice(rest, batch_size)):
            yield [
                self._source(item, _name(item, first + i if several else None))
                for i, item in enumerate(piece)
            ]
            first += len(piece)

    def in_source(self, boxes: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """Returns boxes in the pixels of an image of this (height, width) before it was resized.

        Args:
            boxes: left, upper, right and lower edge in pixels of the resized image, (boxes, 4).
            shape: height and width of the image.
        """
        size = (self.height, self.width)
        resize = self.keras_resize
        top, left, high, wide = (0, 0, *shape) if resize is None else resize.region(shape, size)
        scale = np.array([wide / size[1], high / size[0]] * 2)
        placed = boxes * scale + np.array([left, top] * 2)
        return np.clip(placed, 0, np.array([shape[1], shape[0]] * 2))

    def to_preprocessor_config(self, raw_pixels: bool = False) -> dict[str, Any]:
        """Returns Hugging Face's preprocessor_config.json; `raw_pixels` for graphs that normalize."""
        config: dict[str, Any] = {
            "image_processor_type": PROCESSOR_TYPE,
            "do_resize": True,
            "size": {"height": self.height, "width": self.width},
            "resample": int(RESAMPLING[self.resample]),
            "do_convert_rgb": self.channels == 3,  # otherwise transformers.js converts grayscale too
            "do_rescale": not raw_pixels,
            "rescale_factor": self.rescale,
            "do_normalize": not raw_pixels,
            "image_mean": list(_numbers("mean", self.mean, self.channels)),
            "image_std": list(_numbers("std", self.std, self.channels)),
        }
        if self.keras_resize is not None:
            config[KERAS_RESIZE] = dataclasses.asdict(self.keras_resize)
        return config | {RAW_PIXELS: True} if raw_pixels else config

    @classmethod
    def from_preprocessor_config(cls, config: Mapping[str, Any]) -> ImageTransform:
        """Creates a transform from Hugging Face's preprocessor_config.json, read as a dict.

        Missing keys have the defaults of ViTImageProcessor. A value that is not supported raises a
        ConfigError.

        >>> ImageTransform.from_preprocessor_config({"size": {"height": 32, "width": 48}}).size
        (32, 48)
        """
        return cls(**fields_from(config))

    def _stack(self, items: Sequence[Any], first: int | None, dtype: type) -> np.ndarray:
        batch = np.empty((len(items), self.height, self.width, self.channels), dtype)
        finish: Callable[[np.ndarray], np.ndarray] = _to_8_bits if dtype is np.uint8 else self._normalize
        for i, item in enumerate(items):
            batch[i] = finish(self._pixels(item, _name(item, None if first is None else first + i)))
        return batch

    def normalize(self, pixels: np.ndarray) -> np.ndarray:
        """Returns pixels of 0..255 (..., channels), uint8 or float, rescaled and normalized as float32."""
        return self._scaled(pixels, 1.0)

    def _normalize(self, pixels: np.ndarray) -> np.ndarray:
        return self._scaled(pixels, 1.0 if pixels.dtype == np.uint8 else 255.0)

    def _scaled(self, pixels: np.ndarray, unit: float) -> np.ndarray:
        # Factors in float64 make rescale 1/255 with mean 0 and std 1 the identity for float images.
        std = np.asarray(self.std)
        factor = (unit * self.rescale / std).astype(np.float32)
        offset = (np.asarray(self.mean) / std).astype(np.float32)
        return pixels.astype(np.float32) * factor - offset

    def _pixels(self, source: Any, name: str) -> np.ndarray:
        """One image of the right size: (height, width, channels), uint8, or float in 0..1."""
        if isinstance(source, np.ndarray):
            array = self.check_array(source, name)
            if array.shape[:2] == self.size:
                return array
            return self._resample(_to_8_bits(array))
        return self.resize_image(self._opened(source, name))

    def _source(self, source: Any, name: str) -> np.ndarray:
        """One image of its own size: (height, width, channels), uint8, or float in 0..1."""
        if isinstance(source, np.ndarray):
            return self.check_array(source, name)
        image = self._opened(source, name)
        return np.asarray(image).reshape(image.height, image.width, self.channels)

    def _opened(self, source: Any, name: str) -> Image.Image:
        """An image that is not an array, in the mode of the transform."""
        if not isinstance(source, BYTES | str | os.PathLike | Image.Image) and not hasattr(source, "read"):
            raise ImageError(
                f"{name} is {type(source).__module__}.{type(source).__qualname__}, expected a path, bytes, "
                "an open file, a Pillow image or a NumPy array; numpy.asarray makes an array of most tensors."
            )
        if self.channels not in (1, 3):
            raise ImageError(
                f"{name} is an image file, but the transform has channels={self.channels}. Pass a NumPy "
                "array (height, width, channels)."
            )
        return read_image(source, self.mode, name)

    def resize_image(
        self, image: Image.Image, box: tuple[float, float, float, float] | None = None
    ) -> np.ndarray:
        """Returns a Pillow image of the transform's mode, resized: (height, width, channels).

        Its pixels are uint8, or with `keras_resize` float in 0..1.

        Args:
            box: left, upper, right and lower edge of the part of the image that is resized; all by default.
        """
        if box is None and self.keras_resize is not None:
            pixels = np.asarray(image).reshape(image.height, image.width, self.channels)
            return self.keras_resize(pixels, (self.height, self.width))
        if box is not None or image.size != (self.width, self.height):
            image = image.resize((self.width, self.height), RESAMPLING[self.resample], box=box)
        return np.asarray(image).reshape(self.height, self.width, self.channels)

    def check_array(self, array: np.ndarray, name: str) -> np.ndarray:
        """Returns an image (height, width, channels), and raises an ImageError if it has other values."""
        if array.ndim == 2 and self.channels in (1, 3):
            array = np.repeat(array[:, :, None], self.channels, axis=2)
        if array.ndim != 3 or array.shape[-1] != self.channels:
            raise ImageError(
                f"{name} is an array of shape {array.shape}, expected (height, width, {self.channels})"
                f"{_shape_remedy(array.shape, self.channels)}."
            )
        if array.size == 0:
            raise ImageError(f"{name} has no pixels: its shape is {array.shape}.")
        if array.dtype == np.uint8:
            return array
        if not np.issubdtype(array.dtype, np.floating):
            raise ImageError(
                f"{name} has dtype {array.dtype}, expected uint8 (0..255) or float (0..1); "
                "use .astype('uint8') for values in 0..255, or divide by the largest possible value."
            )
        low, high = array.min(), array.max()
        if not (low >= 0 and high <= 1):  # written so that NaN, too, fails
            raise ImageError(
                f"{name} has float values from {low:g} to {high:g}, expected 0..1 and no NaN; for values in "
                "0..255 divide by 255 or use .astype('uint8'). The transform normalizes, so do not do it "
                "before."
            )
        return array

    def _resample(self, array: np.ndarray) -> np.ndarray:
        if self.keras_resize is not None:
            return self.keras_resize(array, (self.height, self.width))
        to, filter_ = (self.width, self.height), RESAMPLING[self.resample]
        # Pillow has no images with two or five channels, and resizes each channel separately anyway.
        planes = [array] if self.channels == 3 else np.moveaxis(array, -1, 0)
        resized = [np.asarray(Image.fromarray(np.ascontiguousarray(p)).resize(to, filter_)) for p in planes]
        return resized[0] if self.channels == 3 else np.stack(resized, axis=-1)


def are_several(images: Any) -> bool:
    """Returns whether this is a list, an iterator, a 4-D batch or a directory, not one image."""
    if isinstance(images, np.ndarray):
        return images.ndim == 4
    if isinstance(images, str | os.PathLike):
        return os.path.isdir(images)
    # Files are iterators of their lines.
    return isinstance(images, list | tuple | Iterator) and not hasattr(images, "read")


def _items(images: Any) -> tuple[Iterable[Any], bool]:
    """The images, and whether they are several, so that errors contain an index."""
    several = are_several(images)
    if several and isinstance(images, str | os.PathLike):
        return pictures_in(images), several
    return (images if several else [images]), several


def _name(source: Any, index: int | None) -> str:
    place = "" if index is None else f"images[{index}]"
    if isinstance(source, str | os.PathLike):
        return f"{place} {os.fspath(source)!r}".lstrip()
    return place or "the image"


def _shape_remedy(shape: tuple[int, ...], channels: int) -> str:
    if len(shape) == 3 and shape[0] == channels:
        return "; if its channels come first, numpy.moveaxis(image, 0, -1)"
    if len(shape) == 3 and shape[-1] == 4 and channels == 3:
        return "; drop its alpha channel: image[..., :3]"
    if len(shape) == 3 and shape[-1] == 1:
        return "; pass a grayscale image as (height, width): image[..., 0]"
    if len(shape) == 3:
        return "; a batch of grayscale images needs a channel axis: images[..., None]"
    if len(shape) == 4:
        return "; pass a 4-D batch directly, not in a list"
    return ""


def _is_within(images: np.ndarray, low: np.ndarray, high: np.ndarray) -> bool:
    """Whether most values are in the range; augmentation moves some of them outside."""
    margin = (high - low) / 2
    outside = float(((images < low - ROUNDING) | (images > high + ROUNDING)).mean())
    far = float(((images < low - margin) | (images > high + margin)).mean())
    return far <= FAR and outside <= OUTSIDE


def _to_8_bits(pixels: np.ndarray) -> np.ndarray:
    return (
        pixels
        if pixels.dtype == np.uint8
        else np.rint(np.clip(pixels.astype(np.float32) * 255, 0, 255)).astype(np.uint8)
    )


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, list | tuple):
        if len(size) != 2:
            raise ConfigError(f"size is {size!r}, expected (height, width) or one number for a square.")
        return whole_number("height in size", size[0]), whole_number("width in size", size[1])
    side = whole_number("size", size)
    return side, side


def _numbers(name: str, value: Any, count: int) -> tuple[float, ...]:
    values = tuple(value) if isinstance(value, list | tuple) else (value,) * count
    if len(values) != count:
        raise ConfigError(
            f"{name} is {value!r}, expected {count} numbers, one for each channel, or one number."
        )
    for each in values:
        if isinstance(each, bool | str) or not _finite(each):
            raise ConfigError(f"{name} is {value!r}, expected finite numbers.")
    return tuple(float(each) for each in values)


def _finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, OverflowError):
        return False
