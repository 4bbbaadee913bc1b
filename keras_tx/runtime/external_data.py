"""The external files and tensors that an ONNX graph refers to, read from its bytes without the onnx package.

onnxruntime reads these files when it loads the graph. Which locations its versions refuse, measured
with graphs that keep a tensor in an external file:

    location                          1.24 to 1.26 (extra "gpu")    1.28 and 1.31
    absolute, "..", symbolic link     sparse tensors are read       refused
    address in memory                 sparse tensors are read       refused
    hard link to a file outside       read                          read
    file inside, not in the manifest  read                          read

Therefore every location must be a file that the manifest lists, and `open_folder` refuses links. Only the
parts of the protobuf format that can hold a tensor are decoded.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from keras_tx.errors import FolderError
from keras_tx.protobuf import BYTES, VARINT, Buffer, read_fields, read_varint

# The messages that can hold a TensorProto, by field number, as in onnx.proto. A test compares this table with
# the onnx package.
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


def external_locations(graph: str | os.PathLike[str]) -> tuple[str, ...]:
    """All locations of external data in a graph, sorted; raises a FolderError for a damaged file.

    >>> external_locations("flowers/onnx/model.onnx")  # doctest: +SKIP
    ('model.onnx_data',)
    """
    with _opened(Path(graph)) as buffer:
        return tuple(sorted(_locations(buffer)))


class ExternalTensor(NamedTuple):
    """An initializer in an external file: its type in ONNX's numbers, its shape, and its place."""

    name: str
    data_type: int
    shape: tuple[int, ...]
    location: str
    offset: int


def external_tensors(graph: str | os.PathLike[str]) -> tuple[ExternalTensor, ...]:
    """The initializers of a graph in external files; raises a FolderError for a damaged file.

    >>> external_tensors("flowers/onnx/model.onnx")[0]  # doctest: +SKIP
    ExternalTensor(name='kernel', data_type=1, shape=(768, 3072), location='model.onnx_data', offset=0)
    """
    with _opened(Path(graph)) as buffer:
        return tuple(
            _external_tensor(buffer, first, last)
            for model, start, end in _fields(buffer, 0, len(buffer))
            if SCHEMA["ModelProto"].get(model) == "GraphProto"
            for number, first, last in _fields(buffer, start, end)
            if SCHEMA["GraphProto"].get(number) == "TensorProto"
            and any(field in SCHEMA["TensorProto"] for field, _, _ in _fields(buffer, first, last))
        )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Buffer]:
    """The bytes of a graph; converts errors to a FolderError."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            yield buffer
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror}. Copy or export it again.") from error
    except ValueError as error:  # of read_fields, of a name that is not UTF-8, and of mmap for an empty file
        raise FolderError(f"{path} is not a valid ONNX file ({error}). Copy or export it again.") from error


def _external_tensor(buffer: Buffer, start: int, end: int) -> ExternalTensor:
    """The tensor of a TensorProto, which has sizes in field 1, its type in 2, and its name in 8."""
    numbers = [(number, read_varint(buffer, a, b)[0]) for number, a, b in _fields(buffer, start, end, VARINT)]
    texts = [(number, a, b) for number, a, b in _fields(buffer, start, end)]
    place = {}
    for number, first, last in texts:
        if number in SCHEMA["TensorProto"]:
            entry = {key: bytes(buffer[a:b]).decode("utf-8") for key, a, b in _fields(buffer, first, last)}
            place[entry.get(1)] = entry.get(2, "")
    return ExternalTensor(
        "".join(bytes(buffer[a:b]).decode("utf-8") for number, a, b in texts if number == 8),
        next((value for number, value in numbers if number == 2), 0),
        tuple(value for number, value in numbers if number == 1),
        place.get("location", ""),
        int(place.get("offset") or 0),
    )


def _locations(buffer: Buffer) -> set[str]:
    locations: set[str] = set()
    pending = [("ModelProto", 0, len(buffer))]  # a stack: graphs may be nested deeper than Python's calls
    while pending:
        message, start, end = pending.pop()
        for number, first, last in _fields(buffer, start, end):
            child = SCHEMA[message].get(number)
            if child == "StringStringEntryProto":
                locations |= _location(buffer, first, last)
            elif child is not None:
                pending.append((child, first, last))
    return locations


def _location(buffer: Buffer, start: int, end: int) -> set[str]:
    """The value of the key "location"; all values if fields repeat, since readers differ in which counts."""
    fields = [(number, bytes(buffer[first:last])) for number, first, last in _fields(buffer, start, end)]
    if (1, b"location") not in fields:
        return set()
    return {value.decode("utf-8") for number, value in fields if number == 2} or {""}


def _fields(buffer: Buffer, start: int, end: int, wire_type: int = BYTES) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of the value of each field of a wire type."""
    for field in read_fields(buffer, start, end):
        if field.wire_type == wire_type:
            yield field.number, field.first, field.end
