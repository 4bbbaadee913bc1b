"""Which files an ONNX graph would open beside itself, read from its bytes without the onnx package.

onnxruntime follows every `location` it finds, so all of them must be known before it sees the file. This
reads the protobuf wire format only as far as a tensor can hide in it, and steps over everything else.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from keras_tx.errors import FolderError

# The messages below which a TensorProto can be found, by field number, as onnx.proto numbers them.
# A test compares this table with the descriptors of the onnx package.
SCHEMA: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TensorProto": {13: "StringStringEntryProto"},  # external_data: key 1, value 2
}

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_FIELD = 2**29 - 1

Buffer = bytes | mmap.mmap


class _Damaged(Exception):
    """The bytes are not a protobuf message; becomes a FolderError that names the file."""


def external_locations(graph: str | os.PathLike[str]) -> tuple[str, ...]:
    """Every external-data location that the graph file names, sorted, as it stands in the file.

    >>> external_locations("flowers/onnx/model.onnx")  # doctest: +SKIP
    ('model.onnx_data',)
    """
    path = Path(graph)
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise _Damaged("it is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
                return tuple(sorted(_locations(buffer)))
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror}. Copy or export it again.") from error
    except _Damaged as error:
        raise FolderError(
            f"{path} is not a sound ONNX file: {error}. It is damaged or truncated: copy or export it again."
        ) from None


def _locations(buffer: Buffer) -> set[str]:
    found: set[str] = set()
    # a list of what is still to be read, not recursion: a file may nest deeper than Python's stack
    pending = [("ModelProto", 0, len(buffer))]
    while pending:
        message, start, end = pending.pop()
        children = SCHEMA[message]
        for number, first, last in _submessages(buffer, start, end):
            child = children.get(number)
            if child == "StringStringEntryProto":
                found.update(_location(buffer, first, last))
            elif child is not None:
                pending.append((child, first, last))
    return found


def _location(buffer: Buffer, start: int, end: int) -> Iterator[str]:
    """The value under the key "location"; of repeated fields all, since readers differ on which counts."""
    keys: set[bytes] = set()
    values: list[bytes] = []
    for number, first, last in _submessages(buffer, start, end):
        if number == 1:
            keys.add(bytes(buffer[first:last]))
        elif number == 2:
            values.append(bytes(buffer[first:last]))
    if b"location" in keys:
        for value in values or [b""]:
            try:
                yield value.decode("utf-8")
            except UnicodeDecodeError:
                raise _Damaged(f"an external-data location is not UTF-8: {value[:80]!r}") from None


def _submessages(buffer: Buffer, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each length-delimited field; the content of none is touched."""
    position = start
    while position < end:
        tag, position = _varint(buffer, position, end)
        number, wire_type = tag >> 3, tag & 7
        if not 1 <= number <= _MAX_FIELD:
            raise _Damaged(f"field number {number} at byte {position}")
        if wire_type == _BYTES:
            length, position = _varint(buffer, position, end)
            if length > end - position:
                raise _Damaged(f"a field of {length} bytes at byte {position}, where {end - position} remain")
            yield number, position, position + length
            position += length
        elif wire_type == _VARINT:
            _, position = _varint(buffer, position, end)
        elif wire_type in (_FIXED32, _FIXED64):
            position += 4 if wire_type == _FIXED32 else 8
            if position > end:
                raise _Damaged(f"a number is cut off at byte {end}")
        else:
            raise _Damaged(f"wire type {wire_type} at byte {position}, which ONNX does not use")


def _varint(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise _Damaged(f"a number is cut off at byte {end}")
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise _Damaged(f"a number of more than ten bytes at byte {position - 10}")
