"""Reads and writes safetensors files. Tensors are views of a read-only memory map.

`safe_open` of the safetensors package copies each tensor, which adds the largest tensor to the peak memory.
It also accepts two tensors with one name and unknown keys in an entry, and does not read float8 for NumPy.
"""

from __future__ import annotations

import collections
import json
import math
import mmap
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from keras_tx.errors import ConfigError
from keras_tx.weights.tensor_source import Tensors

DTYPES: dict[str, np.dtype] = {
    name: np.dtype(dtype)
    for name, dtype in {
        "BOOL": np.bool_,
        "U8": np.uint8,
        "I8": np.int8,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "U16": np.uint16,
        "I16": np.int16,
        "F16": np.float16,
        "BF16": ml_dtypes.bfloat16,
        "U32": np.uint32,
        "I32": np.int32,
        "F32": np.float32,
        "U64": np.uint64,
        "I64": np.int64,
        "F64": np.float64,
    }.items()
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
METADATA = "__metadata__"
KEYS = {"dtype", "shape", "data_offsets"}
LONGEST_HEADER = 32 * 2**20  # bytes; about 250,000 tensors
MOST_AXES = 32
# First bytes of other formats.
OTHER_FORMATS = {
    b"PK\x03\x04": "it is a zip archive, such as a PyTorch pickle, which can execute code.",
    b"\x80": "it is a pickle, which can execute code.",
    b"version https://git-lfs": "it is a Git LFS pointer; run `git lfs pull` in its repository.",
}


class _InvalidFile(Exception):
    """The reason why a file is not valid; raised as a ConfigError with the path."""


def open_tensors(path: str | os.PathLike[str]) -> Tensors:
    """Opens a safetensors file and checks that its header describes all of its bytes.

    Only the header is read. `Tensors.read` returns views of a memory map, which stays open as long as the
    views exist.

    Args:
        path: path of the file.

    Returns:
        The tensors of the file.

    Raises:
        ConfigError: the file cannot be read, or is not a valid safetensors file.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin, header = _header(file, size)
            metadata = header.get(METADATA, {})
            entries = _entries(header, size - begin)
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error
    except _InvalidFile as error:
        raise ConfigError(
            f"{path} is not a valid safetensors file: {error} Download or copy it again."
        ) from None

    def read(name: str) -> np.ndarray:
        dtype, shape, first = entries[name]
        count = math.prod(shape)
        if not count:
            return np.empty(shape, dtype)
        return np.frombuffer(whole, dtype, count, begin + first).reshape(shape)

    def release() -> None:
        if hasattr(mmap, "MADV_DONTNEED"):  # Windows has no such call
            whole.madvise(mmap.MADV_DONTNEED)

    return Tensors(
        where=str(path),
        shapes={name: shape for name, (_, shape, _) in entries.items()},
        read=read,
        nbytes=size - begin,
        dtypes={name: dtype for name, (dtype, _, _) in entries.items()},
        metadata=metadata,
        release=release,
    )


def _header(file: Any, size: int) -> tuple[int, dict[str, Any]]:
    """Returns the offset of the data, and the header."""
    start = file.read(32)
    for first_bytes, reason in OTHER_FORMATS.items():
        # The length of a header may begin with any byte, but only a header has a brace as the ninth byte.
        if start.startswith(first_bytes) and start[8:9] != b"{":
            raise _InvalidFile(reason)
    if size < 8:
        raise _InvalidFile(f"it has {size} bytes, expected at least 8.")
    length = int.from_bytes(start[:8], "little")
    if length > min(size - 8, LONGEST_HEADER):
        raise _InvalidFile(
            f"its header length is {length} bytes, but the file has {size} bytes and the largest supported "
            f"header {LONGEST_HEADER}."
        )
    file.seek(8)
    text = file.read(length)
    if not text.startswith(b"{"):
        raise _InvalidFile("its header does not begin with '{'.")
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _InvalidFile(f"its header is not JSON ({error}).") from None
    return 8 + length, header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        name = collections.Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise _InvalidFile(f"its header contains {_short(name)} twice.")
    return unique


def _entries(header: dict[str, Any], size: int) -> dict[str, tuple[np.dtype, tuple[int, ...], int]]:
    """Returns dtype, shape and offset of each tensor; they must cover the data without gaps or overlaps."""
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _InvalidFile(f"{METADATA} is not a JSON object of strings.")
    entries: dict[str, tuple[np.dtype, tuple[int, ...], int]] = {}
    ends: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if not isinstance(entry, dict) or set(entry) != KEYS:
            raise _InvalidFile(f"the entry of {name!r} is not a JSON object of {', '.join(sorted(KEYS))}.")
        dtype, shape = _dtype(name, entry["dtype"]), _shape(name, entry["shape"])
        first, end = _offsets(name, entry["data_offsets"], size)
        if end - first != math.prod(shape) * dtype.itemsize:
            raise _InvalidFile(
                f"{name!r} has {end - first} bytes, but {entry['dtype']} of shape {list(shape)} requires "
                f"{math.prod(shape) * dtype.itemsize}."
            )
        entries[name] = (dtype, shape, first)
        ends.append((first, end, name))
    position = 0
    for first, end, name in sorted(ends):
        if first != position:
            problem = "an overlap" if first < position else "a gap"
            raise _InvalidFile(
                f"{name!r} begins at byte {first} of the data, expected {position} ({problem})."
            )
        position = end
    if position != size:
        raise _InvalidFile(f"its tensors have {position} bytes, but its data has {size}.")
    return entries


def _dtype(name: str, value: Any) -> np.dtype:
    if not isinstance(value, str) or value not in DTYPES:
        raise _InvalidFile(f"{name!r} has the dtype {_short(value)}, expected one of {', '.join(DTYPES)}.")
    return DTYPES[value]


def _shape(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > MOST_AXES or not all(_is_count(axis) for axis in value):
        raise _InvalidFile(f"{name!r} has the shape {_short(value)}, expected a list of integers.")
    return tuple(value)


def _offsets(name: str, value: Any, size: int) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2 or not all(_is_count(offset) for offset in value):
        raise _InvalidFile(f"{name!r} has the data_offsets {_short(value)}, expected two integers.")
    first, end = value
    if not first <= end <= size:
        raise _InvalidFile(f"{name!r} has the data_offsets {first} to {end}, but the data has {size} bytes.")
    return first, end


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def write_tensors(
    path: str | os.PathLike[str],
    tensors: Mapping[str, tuple[np.dtype, tuple[int, ...]]],
    read: Callable[[str], np.ndarray],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Writes a safetensors file tensor by tensor, under a temporary name that is replaced at the end.

    Args:
        path: path of the file.
        tensors: dtype and shape of each tensor. Wider dtypes are written first, so that all are aligned.
        read: function that returns the values of a tensor by name.
        metadata: strings to store with the tensors.
    """
    path = Path(path)
    names = sorted(tensors, key=lambda name: -tensors[name][0].itemsize)
    header: dict[str, Any] = {METADATA: {"format": "pt", **(metadata or {})}}  # required by transformers
    position = 0
    for name in names:
        dtype, shape = tensors[name]
        end = position + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with temporary.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in names:
                value = np.asarray(read(name), order="C")
                assert (value.dtype, value.shape) == tensors[name], name
                file.write(value.reshape(-1).view(np.uint8).data)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
