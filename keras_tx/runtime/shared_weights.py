"""Weights that two graphs of a folder have in common, in memory once."""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx.runtime.external_data import ExternalTensor, external_tensors

LEAST = 2**20  # bytes of a weight that is worth a mapping of its own
ALIGNMENT = 64  # bytes, as onnxruntime allocates tensors
PAGE = mmap.PAGESIZE
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14, which Python's mmap does not name
DTYPES = {1: "float32", 2: "uint8", 3: "int8", 10: "float16"}  # by the number of the type in ONNX


class SharedWeights:
    """Large weights that two graphs store with the same name and values, as values for their sessions.

    A session alone maps its data file into memory. All pages of a token table that it packs for the logits
    and also reads embeddings from stay in memory. Here both sessions share the mapping, and the pages that
    they do not read after loading leave the memory. A page that a session then reads would come with its
    neighbors, 64 kB and more; `populate` copies only the pages of the rows that are read.

    Attributes:
        arrays: the weights by name.
    """

    def __init__(self, arrays: dict[str, np.ndarray], mappings: list[mmap.mmap]) -> None:
        self.arrays = arrays
        self._mappings = mappings
        self._populated: dict[str, np.ndarray] = {}  # by array, whether the pages of a row are in memory
        self._values: list[Any] = []  # onnxruntime refers to them

    @classmethod
    def of(cls, first: Path, second: Path) -> SharedWeights:
        """The common weights of two graphs in external files; none on systems that cannot release pages.

        Raises:
            FolderError: if a graph is damaged.
        """
        arrays: dict[str, np.ndarray] = {}
        files = _Files()
        if hasattr(mmap, "MADV_DONTNEED"):  # Windows also forbids to replace a mapped file
            for one, other in _pairs(first, second):
                array = files.common_array(first.parent, one, second.parent, other)
                if array is not None:
                    arrays[other.name] = array
        weights = cls(arrays, list(files.mappings.values()))
        weights.release()
        return weights

    def with_tables(self, graph: Path, count: int) -> SharedWeights:
        """These weights and the other large tables of one graph, for its session.

        The int8 graph of a decoder stores its token table transposed, so that only the encoder has rows.

        Args:
            graph: path of the graph.
            count: number of rows of the tables.
        """
        arrays, files = dict(self.arrays), _Files()
        for tensor in external_tensors(graph) if hasattr(mmap, "MADV_DONTNEED") else ():
            if tensor.name not in arrays and tensor.shape[:1] == (count,) and _is_large(tensor):
                array = files.array(graph.parent / tensor.location, tensor)
                if array is not None:
                    arrays[tensor.name] = array
        return SharedWeights(arrays, [*self._mappings, *files.mappings.values()])

    def add_to(self, options: Any, onnxruntime: Any) -> None:
        """Makes a session that is created with these SessionOptions read the weights."""
        for name, array in self.arrays.items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
            self._values.append(value)
            options.add_initializer(name, value)

    def release(self) -> None:
        """Removes the pages of the weights from memory; a page that is used is read from the file again."""
        self._populated.clear()
        for mapping in self._mappings:
            mapping.madvise(mmap.MADV_DONTNEED)

    def populate(self, ids: np.ndarray, count: int) -> None:
        """Reads the pages with these rows into memory, without their neighbors.

        Args:
            ids: indices of rows, such as token ids.
            count: the size of the vocabulary; tables with another number of rows are left out.
        """
        for name, array in self.arrays.items():
            if array.ndim != 2 or len(array) != count:
                continue
            populated = self._populated.setdefault(name, np.zeros(count, "bool"))
            for row in np.unique(ids[~populated[ids]]).tolist():
                self._populate(array[row])
                populated[row] = True

    def _populate(self, row: np.ndarray) -> None:
        """Copies the pages of a row; does nothing where the system cannot."""
        if sys.platform != "linux":
            return
        for mapping in self._mappings:
            start = row.ctypes.data - _address(mapping)
            if 0 <= start < len(mapping):
                first = start - start % PAGE
                with contextlib.suppress(OSError, ValueError):  # of older systems
                    mapping.madvise(POPULATE_WRITE, first, start + row.nbytes - first)


class _Files:
    """Files that are mapped into memory, each once."""

    def __init__(self) -> None:
        self.mappings: dict[Path, mmap.mmap] = {}

    def common_array(
        self, folder: Path, one: ExternalTensor, other_folder: Path, other: ExternalTensor
    ) -> np.ndarray | None:
        """The values of two tensors; None if they differ, or if a file does not hold them."""
        array = self.array(other_folder / other.location, other)
        if array is None or (folder / one.location, one.offset) == (
            other_folder / other.location,
            other.offset,
        ):
            return array
        equal = self.array(folder / one.location, one)
        return array if equal is not None and np.array_equal(array, equal) else None

    def array(self, path: Path, tensor: ExternalTensor) -> np.ndarray | None:
        """The values of a tensor; None if the file does not hold them."""
        if path not in self.mappings:
            try:
                with path.open("rb") as file:
                    # Private, so that a page can be populated alone, by copying it.
                    self.mappings[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            except (OSError, ValueError):  # a missing or empty file, which onnxruntime refuses
                return None
        mapping, dtype = self.mappings[path], np.dtype(DTYPES[tensor.data_type])
        count = math.prod(tensor.shape)
        if tensor.offset < 0 or tensor.offset + count * dtype.itemsize > len(mapping):
            return None
        return np.frombuffer(mapping, dtype, count, tensor.offset).reshape(tensor.shape)


def _address(mapping: mmap.mmap) -> int:
    return np.frombuffer(mapping, "uint8", 1).ctypes.data


def _pairs(first: Path, second: Path) -> Iterator[tuple[ExternalTensor, ExternalTensor]]:
    """The large tensors of two graphs with the same name, type and shape."""
    others = {tensor.name: tensor for tensor in external_tensors(second)}
    for one in external_tensors(first):
        other = others.get(one.name)
        if (
            other is not None
            and (one.data_type, one.shape) == (other.data_type, other.shape)
            and _is_large(one)
            and _is_large(other)
        ):
            yield one, other


def _is_large(tensor: ExternalTensor) -> bool:
    """Whether a tensor is worth a mapping, and can have one."""
    if tensor.data_type not in DTYPES or tensor.offset % ALIGNMENT:
        return False
    return math.prod(tensor.shape) * np.dtype(DTYPES[tensor.data_type]).itemsize >= LEAST
