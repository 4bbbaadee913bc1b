"""PrefixCache: keys and values of beginnings of texts that were computed before."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

BLOCK = 32  # tokens that are stored together

Key = tuple[object, tuple[int, ...]]  # the adapter or the number of the block before; tokens


class _Block(NamedTuple):
    number: int
    arrays: list[np.ndarray]


class PrefixCache:
    """Blocks of tokens, each after certain others; the least recently used blocks are removed first.

    Args:
        most_bytes: maximum memory.

    Attributes:
        num_bytes: memory in use.
        hits: number of texts whose beginning was known.
    """

    def __init__(self, most_bytes: int) -> None:
        self.num_bytes = self.hits = 0
        self._most_bytes = most_bytes
        self._blocks: OrderedDict[Key, _Block] = OrderedDict()  # the least recently used first
        self._count = 0

    def find(self, adapter: str | None, ids: Sequence[int]) -> list[list[np.ndarray]]:
        """Keys and values of the blocks at the beginning of a text."""
        keys: list[Key] = []
        before: object = adapter
        for key in _keys(ids):
            if (before, key) not in self._blocks:
                break
            keys.append((before, key))
            before = self._blocks[keys[-1]].number
        self._touch(keys)
        self.hits += bool(keys)
        return [self._blocks[key].arrays for key in keys]

    def store(
        self,
        adapter: str | None,
        ids: Sequence[int],
        bytes_per_token: int,
        read: Callable[[int, int], list[np.ndarray]],
    ) -> None:
        """Adds the blocks of a text that are not stored.

        Args:
            ids: the tokens.
            bytes_per_token: memory of their keys and values.
            read: a function that copies the keys and values of the tokens from a start to an end.
        """
        keys: list[Key] = []
        before: object = adapter
        for index, key in enumerate(_keys(ids[: self._most_bytes // bytes_per_token])):
            keys.append((before, key))
            if keys[-1] not in self._blocks:
                self._remove_until(self._most_bytes - BLOCK * bytes_per_token)
                self._count += 1
                arrays = read(index * BLOCK, (index + 1) * BLOCK)
                self._blocks[keys[-1]] = _Block(self._count, arrays)
                self.num_bytes += BLOCK * bytes_per_token
            self._blocks.move_to_end(keys[-1])  # so that later blocks of this text do not remove it
            before = self._blocks[keys[-1]].number
        self._touch(keys)

    def _remove_until(self, num_bytes: int) -> None:
        while self.num_bytes > num_bytes:
            _, block = self._blocks.popitem(last=False)
            self.num_bytes -= sum(array.nbytes for array in block.arrays)

    def _touch(self, keys: list[Key]) -> None:
        """Marks blocks as used, so that a block is removed before the one that it follows."""
        for key in reversed(keys):
            self._blocks.move_to_end(key)


def _keys(ids: Sequence[int]) -> list[tuple[int, ...]]:
    """The tokens of each whole block."""
    return [tuple(ids[start : start + BLOCK]) for start in range(0, len(ids) - BLOCK + 1, BLOCK)]
