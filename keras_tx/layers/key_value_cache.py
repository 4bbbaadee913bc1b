"""A cache of keys and values around a model that knows nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from keras import ops

_OPEN: ContextVar[KeyValueCache | None] = ContextVar("open_cache", default=None)


class KeyValueCache:
    """Keys and values of earlier tokens, by layer.

    Within `caching(cache)` each causal MultiHeadAttention continues from here, and leaves here what the next
    call needs. What the layer is given as padding mask covers the tokens of the call alone, so `mask`
    (batch, past and tokens) stands in for it.
    """

    def __init__(self, mask: Any, pasts: dict[str, tuple[Any, Any]] | None = None):
        self.mask = mask
        self.pasts = pasts or {}
        self.presents: dict[str, tuple[Any, Any]] = {}

    def past_of(self, layer: Any, key: Any, value: Any) -> tuple[Any, Any]:
        """The past of a layer whose new keys and values are (batch, heads, tokens, size), or an empty one."""
        if layer.path in self.pasts:
            return self.pasts[layer.path]
        shapes = [(*x.shape[:2], 0, x.shape[3]) for x in (key, value)]
        return ops.zeros(shapes[0], dtype=key.dtype), ops.zeros(shapes[1], dtype=value.dtype)


@contextmanager
def caching(cache: KeyValueCache) -> Iterator[KeyValueCache]:
    token = _OPEN.set(cache)
    try:
        yield cache
    finally:
        _OPEN.reset(token)


def open_cache() -> KeyValueCache | None:
    return _OPEN.get()
