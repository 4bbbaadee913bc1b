"""The wire format of protobuf messages, read and written without the protobuf package.

A message is a sequence of fields. A field has a number, a wire type and a value: an integer (VARINT), a
string of bytes or a nested message (BYTES), or a number of 4 or 8 bytes.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_FIELD = 2**29 - 1

Buffer = bytes | mmap.mmap


class Field(NamedTuple):
    """A field of a message.

    Attributes:
        number: of the field.
        wire_type: VARINT, FIXED64, BYTES or FIXED32.
        start: the first byte of the field.
        first: the first byte of its value.
        end: the byte after its value.
    """

    number: int
    wire_type: int
    start: int
    first: int
    end: int


def read_fields(buffer: Buffer, start: int = 0, end: int | None = None) -> Iterator[Field]:
    """Yields the fields of the message in a part of a buffer; raises a ValueError for damaged bytes.

    >>> message = write_field(3, b"abc") + write_field(1, 7)
    >>> [(field.number, field.wire_type) for field in read_fields(message)]
    [(3, 2), (1, 0)]
    """
    position = start
    end = len(buffer) if end is None else end
    while position < end:
        begin = position
        tag, position = read_varint(buffer, position, end)
        number, wire_type = tag >> 3, tag & 7
        first = position
        if wire_type == BYTES:
            length, first = read_varint(buffer, position, end)
            position = first + length
        elif wire_type == VARINT:
            _, position = read_varint(buffer, position, end)
        else:
            position += {FIXED32: 4, FIXED64: 8}.get(wire_type, end + 1)  # groups are not in use
        if position > end or not 1 <= number <= _MAX_FIELD:
            raise ValueError(f"damaged at byte {first}")
        yield Field(number, wire_type, begin, first, position)


def read_varint(buffer: Buffer, position: int, end: int) -> tuple[int, int]:
    """Returns an integer and the position after it; raises a ValueError if it has no end."""
    value = 0
    for place in range(position, min(position + 10, end)):
        value |= (buffer[place] & 0x7F) << 7 * (place - position)
        if buffer[place] < 0x80:
            return value, place + 1
    raise ValueError(f"damaged at byte {position}")


def write_field(number: int, value: int | bytes) -> bytes:
    """Returns the bytes of a field: VARINT for an integer, else BYTES."""
    if isinstance(value, int):
        return _varint(number << 3 | VARINT) + _varint(value)
    return _varint(number << 3 | BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """An integer of 0 or more in groups of 7 bits, the lowest first."""
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])
