"""Answers as JSON: a large one is encoded in pieces, between which other requests are answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from starlette.responses import Response

# Values of a piece. The json package lets no other thread run before a piece is complete.
PIECE = 2000
_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=np.ndarray.tolist
)


async def json_response(value: Any) -> Response:
    """A value, which may have arrays, as JSON; a large one is encoded in a thread."""
    is_short = count_values(value) <= PIECE
    content = encode(value) if is_short else await asyncio.to_thread(encode, value)
    return Response(content, media_type="application/json")


def encode(value: Any) -> bytes:
    """A value, which may have arrays, as JSON."""
    return "".join(_pieces(value)).encode()


def _pieces(value: Any) -> Iterator[str]:
    if count_values(value) <= PIECE:
        yield _ENCODER.encode(value)
    elif isinstance(value, dict):
        yield "{"
        for index, (key, item) in enumerate(value.items()):
            yield f"{',' if index else ''}{_ENCODER.encode(key)}:"
            yield from _pieces(item)
        yield "}"
    else:
        step = _items_of_a_piece(value)
        yield "["
        for start in range(0, len(value), step):
            yield "," if start else ""
            if step == 1:
                yield from _pieces(value[start])
            else:
                yield _ENCODER.encode(value[start : start + step])[1:-1]
        yield "]"


def count_values(value: Any) -> int:
    """The number of values in nested lists and arrays, counted up to a piece."""
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list | tuple):
        return 1
    count = len(value)
    for item in value:
        if count > PIECE:
            break
        count += count_values(item)
    return count


def _items_of_a_piece(values: Any) -> int:
    """How many items of a list or array are encoded together; 1 for items that are large themselves."""
    if isinstance(values, np.ndarray):
        return max(1, PIECE * len(values) // values.size)
    return 1 if isinstance(values[0], dict | list | tuple | np.ndarray) else PIECE
