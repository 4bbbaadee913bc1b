"""Streaming detokenization: whole characters only, without stop strings."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any

REPLACEMENT = "\ufffd"
BEFORE = 4  # tokens of the prompt that are decoded too: a space may depend on the token before it
LONGEST = 4  # bytes of a character


def read_tokenizer(path: str | os.PathLike[str]) -> Any:
    """Returns the tokenizers.Tokenizer of a tokenizer.json."""
    import tokenizers

    return tokenizers.Tokenizer.from_file(os.fspath(path))


class Detokenizer:
    """Decodes tokens one by one; the returned strings together are the text of all tokens.

    A character whose bytes are in several tokens is returned when it is complete. A possible start of a stop
    string is held back; stop strings are never returned.

    >>> detokenizer = Detokenizer(lambda ids: bytes(ids).decode(errors="replace"))
    >>> [detokenizer.add(byte) for byte in "é!".encode()], detokenizer.end()
    (['', 'é', '!'], '')

    Args:
        decode: a function from ids to text.
        stop: strings that end the text.
        prompt: ids before the first token.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], stop: Sequence[str] = (), prompt: Sequence[int] = ()
    ):
        self._decode = decode
        self._stop = tuple(stop)
        self._ids = self._last(list(prompt))
        self._returned = len(_complete(decode(self._ids))) if self._ids else 0  # characters of the ids' text
        self._held = ""
        self.stopped = False

    def copy(self) -> Detokenizer:
        """An independent copy with the same state."""
        other = copy.copy(self)
        other._ids = list(self._ids)
        return other

    def add(self, token: int) -> str:
        """Returns the new complete characters."""
        if self.stopped:
            return ""
        before = len(self._ids)
        self._ids.append(token)
        text = self._decode(self._ids)
        complete = _complete(text)
        new = complete[self._returned :]
        self._returned = max(self._returned, len(complete))
        if complete is text and before > 2 * BEFORE:  # the last tokens suffice
            self._ids = self._last(self._ids)
            self._returned = len(self._decode(self._ids))
        return self._without_stop(new)

    def end(self) -> str:
        """Returns the characters that were held back, after the last token."""
        if self.stopped:
            return ""
        text = self._decode(self._ids) if self._ids else ""
        rest = self._held + text[self._returned :]
        self._held, self._returned = "", max(self._returned, len(text))
        return rest

    def _last(self, ids: list[int]) -> list[int]:
        """The last tokens, from the start of a character: bytes without their first one cannot be decoded."""
        for count in range(BEFORE, BEFORE + LONGEST):
            if REPLACEMENT not in self._decode(ids[-count:]):
                return ids[-count:]
        return ids[-BEFORE:]

    def _without_stop(self, new: str) -> str:
        text = self._held + new
        places = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        if places:
            self.stopped = True
            return text[: min(places)]
        most = min(len(text), max(map(len, self._stop), default=1) - 1)
        keep = next((n for n in range(most, 0, -1) if any(s.startswith(text[-n:]) for s in self._stop)), 0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _complete(text: str) -> str:
    """The text without an incomplete character at its end, which may be several replacement characters."""
    return text.rstrip(REPLACEMENT) if text.endswith(REPLACEMENT) else text
