"""Reads and writes safetensors files: a checked header, and views of one read-only memory map.

The package's `safe_open` copies each tensor, which adds the largest tensor to the peak of memory. It also
accepts two tensors with one name and unknown keys in an entry, and does not read float8 for NumPy.
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
LONGEST_HEADER = 32 * 2**20  # bytes; some 250,000 tensors
MOST_AXES = 32
# The first bytes of other formats with this suffix.
OTHERS = {
    b"PK\x03\x04": "It is a zip archive, as PyTorch's pickles are, which may execute code.",
    b"\x80": "It is a pickle, which may execute code when it is opened.",
    b"version https://git-lfs": "It is a pointer of Git LFS: run `git lfs pull` in its repository.",
}


class _Unsound(Exception):
    """A problem of a header; raised as a ConfigError with the path of the file."""


def open_tensors(path: str | os.PathLike[str]) -> Tensors:
    """Opens a safetensors file and checks that its header describes each of its bytes.

    Only the header is read; `read` returns views of a memory map, which stays open as long as the views.

    Raises:
        ConfigError: the file cannot be read, or is not a valid safetensors file.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            begin, header = _header(file, size)
            places = _places(header, size - begin)
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error
    except _Unsound as error:
        raise ConfigError(
            f"{path} is not a sound safetensors file: {error} Download or copy it again."
        ) from None

    def read(name: str) -> np.ndarray:
        dtype, shape, first = places[name]
        count = math.prod(shape)
        if not count:
            return np.empty(shape, dtype)
        return np.frombuffer(whole, dtype, count, begin + first).reshape(shape)

    return Tensors(
        where=str(path),
        shapes={name: shape for name, (_, shape, _) in places.items()},
        read=read,
        nbytes=size - begin,
        dtypes={name: dtype for name, (dtype, _, _) in places.items()},
    )


def _header(file: Any, size: int) -> tuple[int, dict[str, Any]]:
    """The offset of the data, and the header."""
    beginning = file.read(32)
    for bytes_of, meaning in OTHERS.items():
        # A header's length may begin with any byte, but a brace follows it, as in none of these others.
        if beginning.startswith(bytes_of) and beginning[8:9] != b"{":
            raise _Unsound(meaning)
    if size < 8:
        raise _Unsound(f"it has {size} bytes, expected at least the 8 of the header's length.")
    length = int.from_bytes(beginning[:8], "little")
    if length > min(size - 8, LONGEST_HEADER):
        raise _Unsound(
            f"its header is said to have {length} bytes, but the file has {size} in all, and no more than "
            f"{LONGEST_HEADER} are read."
        )
    file.seek(8)
    text = file.read(length)
    if not text.startswith(b"{"):
        raise _Unsound("its header does not begin with a brace.")
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _Unsound(f"its header is not JSON ({error}).") from None
    return 8 + length, header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        name = collections.Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise _Unsound(f"{_short(name)} stands in its header twice.")
    return found


def _places(header: dict[str, Any], size: int) -> dict[str, tuple[np.dtype, tuple[int, ...], int]]:
    """Dtype, shape and offset of each tensor; checks that they cover the data without gaps or overlaps."""
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _Unsound(f"{METADATA} is not an object of strings.")
    found: dict[str, tuple[np.dtype, tuple[int, ...], int]] = {}
    ends: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if not isinstance(entry, dict) or set(entry) != KEYS:
            raise _Unsound(f"the entry of {name!r} is not an object of {', '.join(sorted(KEYS))}.")
        dtype, shape = _dtype(name, entry["dtype"]), _shape(name, entry["shape"])
        first, end = _offsets(name, entry["data_offsets"], size)
        if end - first != math.prod(shape) * dtype.itemsize:
            raise _Unsound(
                f"{name!r} is {entry['dtype']} of shape {list(shape)}, which is "
                f"{math.prod(shape) * dtype.itemsize} bytes, but has {end - first}."
            )
        found[name] = (dtype, shape, first)
        ends.append((first, end, name))
    reached = 0
    for first, end, name in sorted(ends):
        if first != reached:
            fault = "overlaps what is before it" if first < reached else "leaves a gap before it"
            raise _Unsound(f"{name!r} begins at byte {first} of the data, expected {reached}: it {fault}.")
        reached = end
    if reached != size:
        raise _Unsound(f"its tensors have {reached} bytes, but {size} are there.")
    return found


def _dtype(name: str, given: Any) -> np.dtype:
    if not isinstance(given, str) or given not in DTYPES:
        raise _Unsound(f"{name!r} has the dtype {_short(given)}, expected one of {', '.join(DTYPES)}.")
    return DTYPES[given]


def _shape(name: str, given: Any) -> tuple[int, ...]:
    if not isinstance(given, list) or len(given) > MOST_AXES or not all(_is_count(axis) for axis in given):
        raise _Unsound(f"{name!r} has the shape {_short(given)}, expected a list of whole numbers.")
    return tuple(given)


def _offsets(name: str, given: Any, size: int) -> tuple[int, int]:
    if not isinstance(given, list) or len(given) != 2 or not all(_is_count(offset) for offset in given):
        raise _Unsound(f"{name!r} has the data_offsets {_short(given)}, expected two whole numbers.")
    first, end = given
    if not first <= end <= size:
        raise _Unsound(f"{name!r} is said to be at bytes {first} to {end} of the data, which has {size}.")
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
) -> None:
    """Writes a safetensors file tensor by tensor, under a temporary name that is replaced at the end.

    Args:
        path: of the file.
        tensors: dtype and shape of each tensor. Wider dtypes are written first, so that all are aligned.
        read: returns the values of a tensor.
    """
    path = Path(path)
    names = sorted(tensors, key=lambda name: -tensors[name][0].itemsize)
    header: dict[str, Any] = {METADATA: {"format": "pt"}}  # required by transformers
    reached = 0
    for name in names:
        dtype, shape = tensors[name]
        end = reached + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [reached, end]}
        reached = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    aside = path.with_name(f".{path.name}.partial")
    try:
        with aside.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in names:
                value = np.asarray(read(name), order="C")
                assert (value.dtype, value.shape) == tensors[name], name
                file.write(value.reshape(-1).view(np.uint8).data)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
