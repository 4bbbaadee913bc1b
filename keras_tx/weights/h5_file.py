"""Reads the datasets of HDF5 files as views of a memory map. Links and code in a file are never followed."""

from __future__ import annotations

import io
import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import h5py
import ml_dtypes
import numpy as np

from keras_tx.errors import ConfigError
from keras_tx.weights.tensor_source import Tensors

if TYPE_CHECKING:  # so that h5py can be loaded late
    NamedDatasets = Iterable[tuple[str, h5py.Dataset]]


def open_datasets(
    path: Path, list_datasets: Callable[[h5py.File], NamedDatasets], begin: int, size: int
) -> Tensors:
    """Opens datasets of an HDF5 file that is a range of bytes of a file.

    Args:
        path: path of the file.
        list_datasets: function from the opened file to the names and datasets to read.
        begin: first byte of the range.
        size: size of the range in bytes.

    Raises:
        ConfigError: if a dataset is compressed, in chunks, outside of the range, or there twice.
        OSError: if the range is not an HDF5 file.
    """
    places: dict[str, tuple[np.dtype, tuple[int, ...], int]] = {}
    with path.open("rb") as file, h5py.File(_Part(file, begin, size), "r") as opened:
        for name, dataset in list_datasets(opened):
            first, shape = dataset.id.get_offset(), tuple(dataset.shape)
            nbytes = math.prod(shape) * dataset.dtype.itemsize
            if first is None or dataset.external or first + nbytes > size:
                raise ConfigError(
                    f"{path}: the data of {name} is compressed, in chunks, or outside of the file. Pass the "
                    "file as Keras or transformers wrote it."
                )
            if name in places:
                raise ConfigError(f"{path} has the variable {name} twice. Save or copy it again.")
            kind = ml_dtypes.bfloat16 if dataset.attrs.get("dtype") == "bfloat16" else dataset.dtype
            places[name] = (np.dtype(kind), shape, begin + first)
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    nbytes = sum(math.prod(shape) * dtype.itemsize for dtype, shape, _ in places.values())
    if nbytes > size:
        raise ConfigError(
            f"{path} declares {nbytes} bytes of weights, but has {size} bytes. Save or copy it again."
        )

    def read(name: str) -> np.ndarray:
        dtype, shape, first = places[name]
        return np.frombuffer(whole, dtype, math.prod(shape), first).reshape(shape)

    shapes = {name: shape for name, (_, shape, _) in places.items()}
    return Tensors(str(path), shapes, read, nbytes, {name: x[0] for name, x in places.items()})


def datasets_in(
    group: Any, path: Path, name_of: Callable[[str, h5py.Group], str | None], prefix: str = ""
) -> Iterator[tuple[str, h5py.Dataset]]:
    """The datasets in a group and in its groups, by the names of those groups and their own.

    Args:
        group: of an opened file.
        path: of the file.
        name_of: function from the key of a group and the group to its name; None if it has no name.
        prefix: before all names.

    Raises:
        ConfigError: if a group has a link to another place.
    """
    for key in group:
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            raise ConfigError(f"{path} has a link at {group.name}/{key}. Links are not supported.")
        inner = group[key]
        if isinstance(inner, h5py.Dataset):
            yield f"{prefix}{key}", inner
        elif isinstance(inner, h5py.Group):
            name = name_of(key, inner)
            yield from datasets_in(inner, path, name_of, prefix if name is None else f"{prefix}{name}/")


class _Part(io.RawIOBase):
    """A range of a file as a file."""

    def __init__(self, file: BinaryIO, begin: int, size: int) -> None:
        self._file, self._begin, self._size, self._at = file, begin, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._begin + self._at)
        data = self._file.read(max(0, min(len(buffer), self._size - self._at)))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
