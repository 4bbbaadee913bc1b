"""Lists of images with their classes: a folder with one subfolder per class, a table, or arrays."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx.data.label_column import LabelCells, sorted_names
from keras_tx.data.labelled_rows import read_labelled_rows
from keras_tx.data.stratified_split import stratified_split
from keras_tx.data.table_file import TableFile, listed_rows
from keras_tx.errors import ConfigError, nearest, user_stacklevel
from keras_tx.processing.image_file import SUFFIXES

LISTED = 3  # names in a message


@dataclasses.dataclass(frozen=True)
class ImageList:
    """Images and their labels.

    Args:
        images: paths, or an array (count, height, width, channels) or (count, height, width).
        names: names of the images, which do not depend on the location of a folder and determine the split.
        targets: class numbers (count,), or numbers (count, ...) for heads without exclusive classes.
        labels: the names of the classes, in order; None if they have none.
    """

    images: Sequence[str] | np.ndarray
    names: list[str]
    targets: np.ndarray
    labels: tuple[str, ...] | None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def has_files(self) -> bool:
        return not isinstance(self.images, np.ndarray)

    @property
    def has_classes(self) -> bool:
        return self.targets.ndim == 1 and self.targets.dtype.kind in "iu"

    def counts(self) -> dict[str, int]:
        """Returns the number of images of each named class."""
        if self.labels is None or not self.has_classes:
            return {}
        numbers = np.bincount(self.targets, minlength=len(self.labels)).tolist()
        return dict(zip(self.labels, numbers, strict=True))

    def part(self, rows: np.ndarray) -> ImageList:
        """Returns the images of these rows."""
        images: Any = self.images
        images = images[rows] if isinstance(images, np.ndarray) else [images[i] for i in rows]
        return ImageList(images, [self.names[i] for i in rows], self.targets[rows], self.labels)

    def split(self, share: float, seed: int) -> tuple[ImageList, ImageList]:
        """Returns a part for training, and a part with `share` of each class.

        Raises:
            ConfigError: as for `stratified_split`.
        """
        classes = self.targets.tolist() if self.has_classes else [0] * len(self)
        parts = stratified_split(self.names, classes, share, seed, name="validation_split")
        train, held_out = map(self.part, parts)
        return train, held_out

    def without(self, rows: Sequence[int]) -> ImageList:
        """Returns the other images. Raises a ConfigError if a class loses all of its images."""
        rest = self.part(np.setdiff1d(np.arange(len(self)), rows))
        if self.has_classes:
            for number in np.setdiff1d(self.targets, rest.targets):
                name = self.labels[number] if self.labels else number
                raise ConfigError(
                    f"No image of class {name!r} can be read. Repair its images, or remove the class."
                )
        return rest

    def digest(self) -> str:
        """Returns a hash of names and targets, and of the pixels of arrays."""
        digest = hashlib.sha256("\0".join(self.names).encode("utf-8", "surrogateescape"))
        digest.update(np.ascontiguousarray(self.targets).tobytes())
        if isinstance(self.images, np.ndarray):
            digest.update(str((self.images.shape, self.images.dtype)).encode())
            digest.update(str([zlib.crc32(image.tobytes()) for image in self.images]).encode())
        return digest.hexdigest()


def list_folder(path: str | os.PathLike[str], classes: Sequence[str] | None) -> ImageList:
    """Lists the images of a folder with one subfolder per class.

    Hidden files and folders are ignored. Files without the suffix of an image cause a warning.

    Raises:
        ConfigError: the folder has another layout.
    """
    root = Path(path)
    if not root.is_dir():
        state = "is not a folder" if root.exists() else "does not exist"
        raise ConfigError(f"{os.fspath(path)!r} {state}. Pass a folder with one subfolder per class.")
    entries = _visible(root)
    folders = [entry.name for entry in entries if entry.is_dir()]
    loose = [entry.path for entry in entries if not entry.is_dir() and _is_image(entry.name)]
    if loose or not folders:
        where = f"has images outside of class folders, such as {loose[0]!r}" if loose else "has no subfolders"
        raise ConfigError(
            f"{os.fspath(path)!r} {where}. Move each image into the subfolder of its class, or pass paths "
            "and labels to image_batches."
        )
    labels = _labels(folders, classes, "subfolder")
    images: list[str] = []
    targets: list[int] = []
    others: list[str] = []
    for name in folders:
        of_class, left_out = _of_class(root / name)
        images += of_class
        targets += [labels.index(name)] * len(of_class)
        others += left_out
    if others:
        warnings.warn(
            f"{len(others):,} files in {os.fspath(path)!r} are left out, because their names do not end in "
            f"{', '.join(SUFFIXES)}: {_some(others)}.",
            stacklevel=user_stacklevel(),
        )
    names = [Path(image).relative_to(root).as_posix() for image in images]
    return ImageList(images, names, np.array(targets, "int64"), labels)


def list_table(file: TableFile, image: str, cells: LabelCells, *, skip_broken: bool = False) -> ImageList:
    """Lists the images of a table; paths are relative to its folder.

    Args:
        file: the table.
        image: the column of the paths.
        cells: collects the cells of the label column.
        skip_broken: whether broken rows are left out, with a warning.

    Raises:
        TextError: the file cannot be read, has no such columns, or has broken rows.
    """
    columns = {"image": image}
    rows = read_labelled_rows(file, columns, cells, content="path", skip_broken=skip_broken)
    if rows.broken:
        warnings.warn(
            f"{len(rows.broken):,} broken rows of {file.path} are left out: {listed_rows(rows.broken)}.",
            stacklevel=user_stacklevel(),
        )
    assert rows.targets is not None
    names = rows.columns["image"]
    root = file.path.parent
    return ImageList([str(root / name) for name in names], names, rows.targets.values, rows.targets.names)


def list_images(images: Any, labels: Any, classes: Sequence[str] | None) -> ImageList:
    """Lists images with a label for each.

    Args:
        images: paths, or an array.
        labels: names of classes, class numbers, or an array of numbers for each image.
        classes: the names of the classes, in order.

    Raises:
        ConfigError: a value is invalid, or the numbers of labels and images differ.
    """
    if isinstance(images, str | os.PathLike):
        raise ConfigError(f"images is {os.fspath(images)!r}, expected a list of paths. See image_folder.")
    if isinstance(images, np.ndarray) and images.dtype.kind not in "OUS":
        if images.ndim not in (3, 4) or images.dtype != np.uint8:
            raise ConfigError(
                f"images is an array {images.shape} of {images.dtype}, expected uint8 (count, height, width, "
                "channels)."
            )
    else:
        images = list(images)
        for index, path in enumerate(images):
            if not isinstance(path, str | os.PathLike):
                raise ConfigError(
                    f"images[{index}] is {type(path).__name__}, expected a path. Pass a list of paths, or a "
                    "uint8 array (count, height, width, channels)."
                )
        images = [os.fspath(path) for path in images]
    if len(labels) != len(images):
        raise ConfigError(f"There are {len(images)} images but {len(labels)} labels.")
    if not len(images):
        raise ConfigError("There are no images.")
    targets, labels = _targets(labels, classes)
    own = [str(i) for i in range(len(images))] if isinstance(images, np.ndarray) else images
    return ImageList(images, own, targets, labels)


def _targets(values: Any, classes: Sequence[str] | None) -> tuple[np.ndarray, tuple[str, ...] | None]:
    array = np.asarray(values)
    if array.dtype.kind == "U":
        labels = _labels(sorted_names(set(array.tolist())), classes, "label")
        numbers = {label: number for number, label in enumerate(labels)}
        return np.array([numbers[value] for value in array.tolist()], "int64"), labels
    if array.dtype.kind not in "biuf":
        raise ConfigError(
            f"labels are {array.dtype}, such as {array.reshape(-1)[0]!r}, expected names of "
            "classes or numbers."
        )
    if array.ndim > 1 or array.dtype.kind == "f":
        return array.astype("float32"), None if classes is None else _labels([], classes, "label")
    array = array.astype("int64")
    if array.min() < 0 or (classes is not None and array.max() >= len(classes)):
        row = int(np.argmax((array < 0) | (array >= (np.inf if classes is None else len(classes)))))
        known = "expected 0 or more" if classes is None else f"there are {len(classes)} classes"
        raise ConfigError(f"labels[{row}] is {array[row]}, but {known}.")
    return array, None if classes is None else _labels([], classes, "label")


def _labels(names: Sequence[str], classes: Sequence[str] | None, kind: str) -> tuple[str, ...]:
    """The names of the classes in order: `classes`, or `names`, which are sorted."""
    if classes is None:
        return tuple(names)
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise ConfigError(f"classes is {classes!r}, expected a list of names.")
    if len(set(classes)) < len(classes) or "" in classes:
        raise ConfigError(f"classes is {classes!r}, which has a duplicate or an empty name.")
    for name in names:
        if name not in classes:
            raise ConfigError(f"The {kind} {name!r} is not one of the classes. {nearest(name, classes)}")
    return tuple(classes)


def _of_class(folder: Path) -> tuple[list[str], list[str]]:
    """The images of a class, and other files."""
    entries = _visible(folder)
    nested = [entry.path for entry in entries if entry.is_dir()]
    if nested:
        raise ConfigError(
            f"{nested[0]!r} is a folder in the class folder {str(folder)!r}. Pass the folder whose "
            "subfolders are the classes, or pass paths and labels to image_batches."
        )
    images = [entry.path for entry in entries if _is_image(entry.name)]
    if not images:
        raise ConfigError(
            f"The class folder {str(folder)!r} has no images: no name ends in {', '.join(SUFFIXES)}. Add "
            "images, or remove the folder."
        )
    return images, [entry.path for entry in entries if not _is_image(entry.name)]


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted((x for x in entries if not x.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise ConfigError(f"{str(folder)!r} cannot be read: {error.strerror}.") from error


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _some(paths: Sequence[str]) -> str:
    more = len(paths) - LISTED
    return ", ".join(map(repr, paths[:LISTED])) + (f" and {more} more" if more > 0 else "")
