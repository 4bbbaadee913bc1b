"""Reads the images of a list in parallel, with the code that prepares images for serving."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from keras_tx.data.image_crop import Box, draw_crop
from keras_tx.data.image_list import ImageList
from keras_tx.errors import ConfigError, ImageError, user_stacklevel
from keras_tx.processing import ImageTransform
from keras_tx.processing.image_file import check_header, decode_image, open_image, upright_size
from keras_tx.progress_bar import ProgressBar

MARGIN = 2  # a reduced JPEG has at least this multiple of the pixels, in height and width
MANY = 1000  # images from which a progress bar is shown
CHUNK = 1024  # images that wait for a thread
LISTED = 10  # broken images in a message

Broken = dict[int, str]  # reasons by row


class ImageReader:
    """Reads single images of a list as uint8 arrays of the transform's size.

    Args:
        images: the list.
        processing: the transform.
        crop: smallest and largest area of a random crop; None for whole images.
        reduced_decoding: whether JPEG files are decoded at 1/2, 1/4 or 1/8 of their size where this leaves at
            least twice the pixels of the result in height and width.
        workers: number of threads.
    """

    def __init__(
        self,
        images: ImageList,
        processing: ImageTransform,
        *,
        crop: tuple[float, float] | None,
        reduced_decoding: bool,
        workers: int,
    ):
        if processing.channels not in (1, 3) and (crop is not None or images.has_files):
            reason = "images is a list of files" if images.has_files else f"crop={crop!r}"
            raise ConfigError(
                f"The transform has channels={processing.channels}, but {reason}, which requires 1 or 3."
            )
        self.images, self.processing = images, processing
        self.crop, self.reduced_decoding = crop, reduced_decoding
        self.workers = workers
        self._threads: ThreadPoolExecutor | None = None

    def map(self, function: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        """Calls a function in the threads, and yields its results in order."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.workers, "keras_tx images")
        for some in _chunks(zip(*arguments, strict=True)):
            yield from self._threads.map(function, *zip(*some, strict=True))

    def read(self, row: int, random: np.random.Generator | None = None) -> np.ndarray:
        """Returns an image, or with a crop a random part of it, as uint8 (height, width, channels).

        Raises:
            ImageError: it cannot be read.
        """
        return self.read_with_size(row, random)[0]

    def read_with_size(
        self, row: int, random: np.random.Generator | None = None
    ) -> tuple[np.ndarray, tuple[int, int]]:
        """Returns the result of `read`, and the width and height of the image before it is resized."""
        if not self.images.has_files:
            return self._of_array(self.images.images[row], random)
        path = self.images.images[row]
        name = repr(path)
        with open_image(path, name) as image:
            size, box = upright_size(image), None
            if self.crop is not None and random is not None:
                box = self._drawn(size, random)
            reduction = self._reduction(size, box) if self.reduced_decoding else 1
            upright = decode_image(image, self.processing.mode, name, reduction=reduction, in_place=True)
        if box is not None:
            box = scaled_box(box, size, upright.size)
        return self.processing.resize_image(upright, box), size

    def _of_array(
        self, pixels: Any, random: np.random.Generator | None
    ) -> tuple[np.ndarray, tuple[int, int]]:
        size = (pixels.shape[1], pixels.shape[0])
        if self.crop is None or random is None:
            return self.processing.resize(pixels)[0], size
        image = pillow_image(self.processing.check_array(pixels, "the image"))
        return self.processing.resize_image(image, self._drawn(size, random)), size

    def _drawn(self, size: tuple[int, int], random: np.random.Generator) -> Box:
        assert self.crop is not None
        return draw_crop(size, (self.processing.width, self.processing.height), self.crop, random)

    def _reduction(self, size: tuple[int, int], box: Box | None) -> int:
        left, upper, right, lower = box or (0, 0, *size)
        width, height = MARGIN * self.processing.width, MARGIN * self.processing.height
        for reduction in (8, 4, 2):
            if right - left >= reduction * width and lower - upper >= reduction * height:
                return reduction
        return 1

    def check_headers(self) -> Broken:
        """Opens all files, without decoding them, and returns the reasons of those that are broken."""
        if not self.images.has_files:
            return {}

        def reason(path: str) -> str | None:
            try:
                with open_image(path, repr(path)) as image:
                    check_header(image, repr(path))
            except ImageError as error:
                return str(error)
            return None

        broken: Broken = {}
        count = len(self.images)
        with ProgressBar(count, "images checked", shown=count > MANY) as bar:
            for row, problem in enumerate(self.map(reason, self.images.images)):
                if problem is not None:
                    broken[row] = problem
                bar.advance()
        return broken


def _chunks(items: Iterator[Any]) -> Iterator[list[Any]]:
    while chunk := list(itertools.islice(items, CHUNK)):
        yield chunk


def scaled_box(box: Box, size: tuple[int, int], other: tuple[int, int]) -> Box:
    """Returns the box of an image for the same image in another size."""
    if size == other:
        return box
    x, y = other[0] / size[0], other[1] / size[1]
    return box[0] * x, box[1] * y, min(box[2] * x, other[0]), min(box[3] * y, other[1])


def pillow_image(pixels: np.ndarray) -> Image.Image:
    """Returns uint8 pixels (height, width, 1 or 3) as a Pillow image."""
    return Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels))


def report_broken(broken: Broken, count: int, skip_broken: bool) -> None:
    """Raises an ImageError about broken images, or warns if they are left out."""
    lines = [f"  {reason}" for reason in list(broken.values())[:LISTED]]
    if len(broken) > LISTED:
        lines.append(f"  and {len(broken) - LISTED:,} more")
    subject = f"{len(broken):,} of {count:,} images"
    if not skip_broken or len(broken) == count:
        remedy = "Repair or remove them, or pass skip_broken=True to leave them out"
        raise ImageError("\n".join([f"{subject} cannot be read. {remedy}:", *lines]))
    warnings.warn("\n".join([f"{subject} are left out:", *lines]), stacklevel=user_stacklevel())


def default_workers() -> int:
    """The number of cores of this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
