"""Caches of prepared images: uint8 arrays in memory, or memory-mapped from a folder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx.atomic_write import atomic_directory, check_target
from keras_tx.data.image_crop import draw_crop
from keras_tx.data.image_list import ImageList
from keras_tx.data.image_reader import Broken, ImageReader, pillow_image, report_broken, scaled_box
from keras_tx.errors import ConfigError, ImageError
from keras_tx.progress_bar import ProgressBar

MEMORY = "memory"
MEMORY_LIMIT = 4 * 2**30  # bytes of a cache in memory
CANVAS = 2  # with crops, images are cached at this multiple of the height and width
SHOWN = 100  # images from which a progress bar is shown
ABOUT, PIXELS, SIZES = "about.json", "pixels.npy", "sizes.npy"
KIND = "keras_tx image cache 1"


class CachedReader:
    """Reads the images of an ImageReader from a cache.

    With crops, the cache holds whole images of twice the height and width, from which crops are resized.

    Args:
        reader: reads the images of the list.
        cache: "memory", or the path of a folder.
        skip_broken: whether broken images are left out.
    """

    def __init__(self, reader: ImageReader, cache: str | os.PathLike[str], skip_broken: bool):
        self.processing, self.crop = reader.processing, reader.crop
        self.map = reader.map
        canvas = self.processing
        if self.crop is not None:
            size = (CANVAS * canvas.height, CANVAS * canvas.width)
            canvas = dataclasses.replace(canvas, size=size)
        self._source = ImageReader(
            reader.images,
            canvas,
            crop=None,
            reduced_decoding=reader.reduced_decoding,
            workers=reader.workers,
        )
        count = len(reader.images)
        self.shape = (count, canvas.height, canvas.width, canvas.channels)
        if cache == MEMORY:
            self._check_memory()
            self._pixels, self._sizes = np.empty(self.shape, "uint8"), np.empty((count, 2), "int64")
            self.broken = self._fill(self._pixels, self._sizes, skip_broken)
        else:
            self.broken = self._open(Path(cache), skip_broken)
        self._rows = np.setdiff1d(np.arange(count), list(self.broken))
        self.images = reader.images.without(list(self.broken)) if self.broken else reader.images

    def read(self, row: int, random: np.random.Generator | None = None) -> np.ndarray:
        """Returns the same image as `ImageReader.read`."""
        pixels = self._pixels[self._rows[row]]
        if self.crop is None or random is None:
            return pixels
        image = pillow_image(pixels)
        size = (int(self._sizes[self._rows[row], 0]), int(self._sizes[self._rows[row], 1]))
        box = draw_crop(size, (self.processing.width, self.processing.height), self.crop, random)
        return self.processing.resize_image(image, scaled_box(box, size, image.size))

    def _check_memory(self) -> None:
        needed = int(np.prod(self.shape))
        if needed > MEMORY_LIMIT:
            raise ConfigError(
                f"cache='memory' needs {needed / 1e9:,.1f} GB for {self.shape[0]:,} images, but is limited "
                f"to {MEMORY_LIMIT / 1e9:.1f} GB. Pass the path of a folder as cache, which is memory-mapped."
            )

    def _fill(self, pixels: np.ndarray, sizes: np.ndarray, skip_broken: bool) -> Broken:
        broken: Broken = {}

        def prepare(row: int) -> None:
            try:
                pixels[row], sizes[row] = self._source.read_with_size(row)
            except ImageError as error:
                broken[row] = str(error)

        count = self.shape[0]
        with ProgressBar(count, "images cached", shown=count > SHOWN) as bar:
            for _ in self.map(prepare, range(count)):
                bar.advance()
        broken = dict(sorted(broken.items()))
        if broken:
            report_broken(broken, count, skip_broken)
        return broken

    def _open(self, folder: Path, skip_broken: bool) -> Broken:
        fingerprint = self._fingerprint()
        about = _about(folder)
        if about is None or about["fingerprint"] != fingerprint:
            if about is not None:
                before = about["fingerprint"]
                changed = [name for name in fingerprint if fingerprint[name] != before.get(name)]
                print(f"{folder} is written again: changed {', '.join(changed)}.", file=sys.stderr)
            about = {"kind": KIND, "fingerprint": fingerprint}
            about["broken"] = self._write(folder, about, skip_broken)
        elif about["broken"]:
            report_broken({int(k): v for k, v in about["broken"].items()}, self.shape[0], skip_broken)
        self._pixels = np.load(folder / PIXELS, mmap_mode="r", allow_pickle=False)
        self._sizes = np.load(folder / SIZES, allow_pickle=False)
        if self._pixels.shape != self.shape or self._pixels.dtype != np.uint8:
            raise ConfigError(f"The cache {str(folder)!r} is damaged. Remove it to write it again.")
        return {int(row): reason for row, reason in about["broken"].items()}

    def _write(self, folder: Path, about: dict[str, Any], skip_broken: bool) -> Broken:
        check_target(folder, True, ConfigError, lambda _: (ABOUT, PIXELS, SIZES))
        parent = next(path for path in folder.absolute().parents if path.exists())
        needed, free = int(np.prod(self.shape)), shutil.disk_usage(parent).free
        if needed > free:
            raise ConfigError(
                f"cache={str(folder)!r} needs {needed / 1e9:,.1f} GB, but {parent} has {free / 1e9:,.1f} GB. "
                "Choose another disk, or a smaller image size."
            )
        with atomic_directory(folder, ConfigError) as partial:
            pixels = np.lib.format.open_memmap(partial / PIXELS, "w+", np.uint8, self.shape)
            sizes = np.empty((self.shape[0], 2), "int64")
            broken = self._fill(pixels, sizes, skip_broken)
            pixels.flush()
            np.save(partial / SIZES, sizes)
            (partial / ABOUT).write_text(json.dumps({**about, "broken": broken}), encoding="utf-8")
        return broken

    def _fingerprint(self) -> dict[str, Any]:
        images, canvas = self._source.images, self._source.processing
        return {
            "number of images": len(images),
            "images": _digest(images),
            "size": [canvas.height, canvas.width],
            "channels": canvas.channels,
            "resample": canvas.resample,
            "reduced_decoding": self._source.reduced_decoding,
        }


def _digest(images: ImageList) -> str:
    """A hash of names, sizes and times of the files, or of the pixels of an array."""
    if isinstance(images.images, np.ndarray):
        return images.digest()
    digest = hashlib.sha256()
    for path, name in zip(images.images, images.names, strict=True):
        try:
            status = os.stat(path)
            line = f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n"
        except OSError:  # reading the file names the reason
            line = f"{name}\0missing\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _about(folder: Path) -> dict[str, Any] | None:
    """The description of a cache; None if the folder does not exist."""
    if not folder.exists():
        return None
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        if (
            about["kind"] == KIND
            and isinstance(about["fingerprint"], dict)
            and isinstance(about["broken"], dict)
        ):
            return about
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise ConfigError(
        f"cache={str(folder)!r} exists, and is not a cache of images. Choose another path, or remove it."
    )
