"""Reads image files: an upright 8-bit Pillow image, grayscale ("L") or "RGB". Writes pixels as PNG."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from keras_tx.errors import ImageError

# Pillow's limit against decompression bombs, small files with huge images. 268 MB as RGB.
MAX_PIXELS = 89_478_485

# Pillow reads these with other programs or the operating system, which is unsafe for untrusted files.
REFUSED_FORMATS = frozenset({"EPS", "WMF"})

BYTES = bytes | bytearray | memoryview
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")  # of the supported formats

SIDEWAYS = (5, 6, 7, 8)  # values of the EXIF tag that swap width and height

_READ_INSTEAD = "JPEG, PNG, WebP, TIFF, BMP or GIF"
_TIFF_BITS_PER_SAMPLE = 258
_TIFF_PHOTOMETRIC = 262


def read_image(source: Any, mode: str, name: str) -> Image.Image:
    """Reads an image, rotates it by its EXIF tag and converts it to `mode`, "L" or "RGB".

    Colors are converted by Pillow, as in torchvision, Keras and Hugging Face: transparency is dropped, not
    blended, and of an animation the first frame is read. 16-bit samples are scaled to 8 bits, not clipped.

    Raises:
        ImageError: the image cannot be read; the message begins with `name`.
    """
    with open_image(source, name) as image:
        return decode_image(image, mode, name, in_place=image is not source)


@contextlib.contextmanager
def open_image(source: Any, name: str) -> Iterator[Image.Image]:
    """Opens an image, of which only the header is read, for `decode_image`.

    Raises:
        ImageError: the image cannot be opened; the message begins with `name`.
    """
    if isinstance(source, Image.Image):
        yield source
        return
    if hasattr(source, "read"):
        source = _content(source, name)
    if isinstance(source, BYTES):
        if not source:
            raise ImageError(f"{name} is empty (0 bytes); expected the content of an image file.")
        yield _identify(io.BytesIO(source), name)
        return
    path = Path(source)
    _check_path(path, name)
    try:
        stream = path.open("rb")
    except OSError as error:
        raise ImageError(f"{name} cannot be opened: {error.strerror}. Check its permissions.") from error
    with stream:
        yield _identify(stream, name)


def encode_png(pixels: np.ndarray) -> bytes:
    """The PNG file of uint8 pixels (height, width) or (height, width, 3)."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def pictures_in(directory: str | os.PathLike[str]) -> list[Path]:
    """Returns the image files of a directory, by suffix, sorted by name."""
    try:
        paths = sorted(path for path in Path(directory).iterdir() if path.suffix.lower() in SUFFIXES)
    except OSError as error:
        raise ImageError(f"{os.fspath(directory)!r} cannot be read: {error.strerror}.") from error
    if not paths:
        raise ImageError(
            f"{os.fspath(directory)!r} is a directory without images, expected files that end in "
            f"{', '.join(SUFFIXES)}."
        )
    return paths


def _content(file: Any, name: str) -> bytes:
    """The bytes of an open file, from its start, as in Pillow."""
    try:
        if file.seekable():
            file.seek(0)
        content = file.read()
    except (OSError, ValueError, AttributeError) as error:
        raise ImageError(f"{name} is a file that cannot be read: {error}.") from error
    if not isinstance(content, bytes):
        raise ImageError(f"{name} is a text file, expected a binary file. Open it with open(..., 'rb').")
    return content


def _check_path(path: Path, name: str) -> None:
    try:
        if path.is_dir():
            raise ImageError(
                f"{name} is a directory; expected an image file. Pass a list of the files in it."
            )
        if not path.exists():
            raise ImageError(f"{name} does not exist. The working directory is {Path.cwd()}.")
        if not path.is_file():  # reading a pipe or a device may block
            raise ImageError(f"{name} is not a regular file. Read it yourself and pass its bytes.")
        if path.stat().st_size == 0:
            raise ImageError(f"{name} is empty (0 bytes). Download or copy it again.")
    except OSError as error:
        raise ImageError(f"{name} cannot be reached: {error.strerror}.") from error


def _identify(stream: BinaryIO, name: str) -> Image.Image:
    """Reads the header only."""
    try:
        return Image.open(stream)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(f"{name} declares too many pixels: {error} {_remedy_for_size()}") from error
    except UnidentifiedImageError as error:
        stream.seek(0)
        raise ImageError(
            f"{name} is not an image that Pillow {Image.__version__} can read, or its header is damaged: "
            f"it begins with {stream.read(12)!r}. Expected {_READ_INSTEAD}."
        ) from error
    except Exception as error:  # Pillow's plugins raise many classes for damaged headers
        raise ImageError(_damaged(name, error)) from error


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Returns width and height of an opened image after the rotation by its EXIF tag."""
    try:
        sideways = image.getexif().get(ExifTags.Base.Orientation) in SIDEWAYS
    except Exception:  # a damaged tag, which decode_image reports
        return image.size
    return (image.height, image.width) if sideways else image.size


def check_header(image: Image.Image, name: str) -> None:
    """Raises an ImageError for an opened image whose format or size is not supported."""
    if image.format in REFUSED_FORMATS:
        raise ImageError(f"{name} is {image.format}, which is not supported. Convert it to {_READ_INSTEAD}.")
    if image.width * image.height > MAX_PIXELS:
        raise ImageError(
            f"{name} has {image.width} x {image.height} pixels, expected at most {MAX_PIXELS}. "
            + _remedy_for_size()
        )
    if image.width * image.height == 0:
        raise ImageError(f"{name} has no pixels: it is {image.width} x {image.height}.")


def decode_image(
    image: Image.Image, mode: str, name: str, *, reduction: int = 1, in_place: bool = False
) -> Image.Image:
    """Decodes an opened image, upright and in `mode`, as `read_image` does.

    Args:
        reduction: 1, 2, 4 or 8. A JPEG file is decoded at this fraction of its size, which is faster; other
            formats are decoded at their size.
        in_place: whether `image` itself may be rotated, which saves a copy.

    Raises:
        ImageError: the image cannot be read; the message begins with `name`.
    """
    check_header(image, name)
    try:
        if reduction > 1:
            image.draft(None, (image.width // reduction, image.height // reduction))
        if in_place:
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            upright = image
        else:
            upright = ImageOps.exif_transpose(image)
        if upright.mode in ("I", "F") or upright.mode.startswith("I;"):
            upright = _deep_grey_to_8_bits(upright, image, name)
        return _convert(upright, mode)
    except ImageError:
        raise
    except Exception as error:  # see _identify
        raise ImageError(_damaged(name, error)) from error


def _deep_grey_to_8_bits(upright: Image.Image, opened: Image.Image, name: str) -> Image.Image:
    tags = getattr(opened, "tag_v2", {})  # of TIFF files; the upright copy has none
    if upright.mode.startswith("I;16"):
        white = (1 << tags.get(_TIFF_BITS_PER_SAMPLE, (16,))[0]) - 1
    elif upright.mode == "I" and opened.format in ("PNG", "PPM"):
        white = 65535  # some versions of Pillow widen their 16 bits to 32
    else:
        raise ImageError(
            f"{name} has 32-bit samples (Pillow mode {upright.mode!r}), whose range is unknown. Scale them "
            "yourself and pass a NumPy array, uint8 or float in 0..1."
        )
    samples = np.asarray(upright).astype(np.int64)
    if tags.get(_TIFF_PHOTOMETRIC) == 0:
        samples = white - samples  # "white is zero": Pillow inverts it up to 8 bits only
    return Image.fromarray(((samples * 255 + white // 2) // white).astype(np.uint8))


def _convert(image: Image.Image, mode: str) -> Image.Image:
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # direct conversion to RGB warns about dropped transparency
    if mode == "L" and image.mode not in ("1", "L", "LA", "RGB", "RGBA"):
        image = image.convert("RGB")  # CMYK, YCbCr, HSV: Pillow has no direct conversion to grayscale
    return image if image.mode == mode else image.convert(mode)


def _damaged(name: str, error: Exception) -> str:
    return f"{name} is damaged or truncated ({error}). Download or copy it again."


def _remedy_for_size() -> str:
    return "Reduce it first: pass Image.open(file).reduce(4)."
