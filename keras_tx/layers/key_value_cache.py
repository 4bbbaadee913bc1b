"""A cache of keys and values for the attention layers of a model without inputs for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from keras import ops

_OPEN: ContextVar[KeyValueCache | None] = ContextVar("open_cache", default=None)


class KeyValueCache:
    """Keys and values of earlier tokens, by layer.

    Within `caching(cache)`, each causal MultiHeadAttention reads its past from `pasts` and writes that of the
    next call to `presents`. Its padding mask covers only the tokens of the call, so `mask` (batch, past +
    tokens) replaces it.
    """

    def __init__(self, mask: Any, pasts: dict[str, tuple[Any, Any]] | None = None):
        self.mask = mask
        self.pasts = pasts or {}
        self.presents: dict[str, tuple[Any, Any]] = {}

    def positions(self, tokens: int) -> Any:
        """The positions (batch, tokens) of the last tokens; padding is not counted."""
        count = ops.cumsum(ops.cast(self.mask, "int32"), axis=1)
        return ops.maximum(count - 1, 0)[:, -tokens:]

    def past_of(self, layer: Any, key: Any, value: Any) -> tuple[Any, Any]:
        """The past of a layer, or an empty one for these new keys and values (batch, heads, tokens, size)."""
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
