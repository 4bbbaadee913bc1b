"""The keys and values of sequences: rows of one shared cache, or a cache for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tx.runtime.cached_decoder import CachedDecoder
from keras_tx.runtime.shared_cache import SharedCache, SharedCacheDecoder

SMALLEST = 256  # tokens of a row of the shared cache, if the context is not smaller


def bytes_per_token(decoder: SharedCacheDecoder | CachedDecoder) -> int:
    """The memory of a token in rows. A step of a CachedDecoder has an old and a new cache."""
    copies = 1 if isinstance(decoder, SharedCacheDecoder) else 2
    return copies * decoder.bytes_per_token


class SharedRows:
    """Rows of one shared cache, which decode together. Views of rows are bound once for each shape.

    The operating system provides memory for a row's tokens when they are first written. The next run may
    overwrite the logits.
    """

    def __init__(self, decoder: SharedCacheDecoder, most: int) -> None:
        self._decoder = decoder
        self._most = most
        self._tokens = np.zeros((2, most, 1), "int64")  # ids and positions
        self._use(decoder.empty_cache(most, 0), [])

    def _use(self, cache: SharedCache, reserved: Sequence[int]) -> None:
        self._cache = cache
        self._places = np.arange(cache.room)
        self._mask = np.zeros((self._most, cache.room), "int64")
        self._views: dict[tuple[int, int, bool], tuple[SharedCache, np.ndarray]] = {}
        self._touched = [*reserved, *[0] * (self._most - len(reserved))]  # tokens that have memory

    @property
    def num_bytes(self) -> int:
        """The memory of the rows, once their texts are complete."""
        return sum(self._touched) * bytes_per_token(self._decoder)

    def _view(self, first: int, end: int, decodes: bool) -> tuple[SharedCache, np.ndarray]:
        """Some rows and their mask, always the same objects, so that they stay bound."""
        key = first, end, decodes
        if key not in self._views:
            self._views[key] = self._cache.view(slice(first, end)), self._mask[first:end]
        return self._views[key]

    def open(self, row: int, reserved: int, lengths: Sequence[int]) -> None:
        """Makes room for a sequence of at most `reserved` tokens; the rows have `lengths` tokens."""
        room = min(self._decoder.context, max(SMALLEST, 1 << (reserved - 1).bit_length()))
        if room > self._cache.room:
            self._copy(room, lengths, self._touched)
        self._touched[row] = max(self._touched[row], reserved)

    def trim(self, reserved: Sequence[int], lengths: Sequence[int]) -> None:
        """Returns the memory of closed rows."""
        self._copy(self._cache.room, lengths, reserved)

    def _copy(self, room: int, lengths: Sequence[int], reserved: Sequence[int]) -> None:
        old, cache = self._cache.arrays, self._decoder.empty_cache(self._most, room)
        self._views.clear()
        for new in cache.arrays:
            source = old.pop(0)
            for index, length in enumerate(lengths):
                new[index, :, :length] = source[index, :, :length]
        self._use(cache, reserved)

    def move(self, source: int, target: int, length: int) -> None:
        for array in self._cache.arrays:
            array[target, :, :length] = array[source, :, :length]
        self._touched[target] = max(self._touched[source], self._touched[target])

    def close(self, row: int) -> None:
        """Frees a row; its memory is used again."""

    def read(self, row: int, start: int, end: int) -> list[np.ndarray]:
        """A copy of the keys and values of some tokens."""
        return [array[row, :, start:end].copy() for array in self._cache.arrays]

    def write(self, row: int, start: int, values: list[np.ndarray]) -> None:
        """Sets keys and values that `read` returned."""
        for array, value in zip(self._cache.arrays, values, strict=True):
            array[row, :, start : start + value.shape[1]] = value

    def run(self, row: int, ids: Sequence[int], start: int, all_logits: bool = False) -> np.ndarray:
        """Logits (tokens, vocabulary) of the last or of all tokens, which follow `start` cached ones."""
        total = start + len(ids)
        view, _ = self._view(row, row + 1, False)
        mask = np.ones((1, total), "int64")
        positions = self._places[None, start:total]
        return view.run(np.array([ids]), mask, positions, len(ids) if all_logits else 1)[0]

    def prefill(self, first: int, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        """Logits (rows, vocabulary) after whole prompts, in rows from the first on."""
        lengths = np.array([len(prompt) for prompt in prompts])
        longest, shortest = int(lengths.max()), int(lengths.min())
        ids = np.zeros((len(prompts), longest), "int64")
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = prompt
        real = (self._places[:longest] < lengths[:, None]).astype("int64")
        view, _ = self._view(first, first + len(prompts), False)
        logits = view.run(ids, real, self._places[None, :longest], longest - shortest + 1)
        return logits[np.arange(len(prompts)), lengths - shortest]

    def decode(self, tokens: Sequence[int], positions: Sequence[int]) -> np.ndarray:
        """Logits (rows, vocabulary) after the next token of each of the first rows."""
        count = len(tokens)
        view, mask = self._view(0, count, True)
        ids, places = self._tokens[:, :count]
        ids[:, 0], places[:, 0] = tokens, positions
        np.less_equal(self._places, places, out=mask, casting="unsafe")
        return view.run(ids, mask, places, 1)[:, 0]


class PlainRows:
    """A cache for each sequence, which decode one by one: for a graph that copies its cache in each step."""

    def __init__(self, decoder: CachedDecoder) -> None:
        self._decoder = decoder
        self._pasts: dict[int, Any] = {}
        self._reserved: dict[int, int] = {}

    @property
    def num_bytes(self) -> int:
        return sum(self._reserved.values()) * bytes_per_token(self._decoder)

    def open(self, row: int, reserved: int, lengths: Sequence[int]) -> None:
        self._pasts[row], self._reserved[row] = None, reserved

    def move(self, source: int, target: int, length: int) -> None:
        self._pasts[target] = self._pasts.pop(source)
        self._reserved[target] = self._reserved.pop(source)

    def close(self, row: int) -> None:
        del self._pasts[row], self._reserved[row]

    def trim(self, reserved: Sequence[int], lengths: Sequence[int]) -> None:
        pass

    def run(self, row: int, ids: Sequence[int], start: int, all_logits: bool = False) -> np.ndarray:
        mask = np.ones((1, start + len(ids)), "int64")
        positions = np.arange(start, start + len(ids))[None]
        logits, past = self._decoder.run(np.array([ids]), mask, positions, self._pasts[row], all_logits)
        self._pasts[row] = past
        return logits[0]
