"""Stop strings as transformers has them: a text ends with the token that completes one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

MOST_TOKENS = 4  # of a character
BEFORE = 4  # tokens that are decoded too: a space may depend on the token before it


class StopStringCriterion:
    """Whether a text has a stop string that its last token completes.

    The string may begin in the prompt, and other characters of the token may follow it.

    >>> criterion = StopStringCriterion(lambda ids: bytes(ids).decode(), ["me."], b"Tell ")
    >>> [criterion.add(byte) for byte in b"me. Me"]
    [False, False, True, False, False, False]

    Args:
        decode: a function from ids to text, special tokens included.
        strings: the stop strings.
        prompt: ids before the first token.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], strings: Sequence[str], prompt: Sequence[int]
    ) -> None:
        self._decode = decode
        self._strings = tuple(strings)
        self._most = MOST_TOKENS * max(map(len, strings)) + BEFORE
        self._ids = list(prompt)[-self._most :]

    def copy(self) -> StopStringCriterion:
        """An independent copy with the same state."""
        return StopStringCriterion(self._decode, self._strings, self._ids)

    def add(self, token: int) -> bool:
        """Appends a token; returns whether one of its own characters completes a stop string."""
        self._ids = [*self._ids, token][-self._most :]
        before, text = self._decode(self._ids[:-1]), self._decode(self._ids)
        pairs = zip(before, text, strict=False)
        new = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        return any(text.find(one, max(0, new + 1 - len(one))) >= 0 for one in self._strings)
