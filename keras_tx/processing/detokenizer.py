"""Tokens back to text while they come: whole characters only, and nothing of what stops the text."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any

REPLACEMENT = "\ufffd"
BEFORE = 4  # tokens of the prompt that are decoded too: a space may belong to what is before it


def read_tokenizer(path: str | os.PathLike[str]) -> Any:
    """The tokenizers.Tokenizer of a tokenizer.json."""
    import tokenizers

    return tokenizers.Tokenizer.from_file(os.fspath(path))


class Pieces:
    """Gives the text of tokens piece by piece; the pieces together are the text of all.

    A character whose bytes are spread over tokens comes when it is whole. What may be the beginning of a stop
    string is held back until it is clear, and a stop string itself is never given.

    >>> pieces = Pieces(lambda ids: bytes(ids).decode(errors="replace"))
    >>> [pieces.add(byte) for byte in "é!".encode()], pieces.end()
    (['', 'é', '!'], '')

    Args:
        decode: gives the text of ids.
        stop: strings that end the text.
        prompt: what the tokens continue.
    """

    def __init__(
        self, decode: Callable[[list[int]], str], stop: Sequence[str] = (), prompt: Sequence[int] = ()
    ):
        self._decode = decode
        self._stop = tuple(stop)
        self._ids = list(prompt[-BEFORE:])
        self._given = len(_certain(decode(self._ids))) if self._ids else 0  # characters of the ids' text
        self._held = ""
        self.stopped = False

    def copy(self) -> Pieces:
        """The same place in the text, to go on from in another way."""
        found = copy.copy(self)
        found._ids = list(self._ids)
        return found

    def add(self, token: int) -> str:
        """What is new and certain."""
        if self.stopped:
            return ""
        before = len(self._ids)
        self._ids.append(token)
        text = self._decode(self._ids)
        certain = _certain(text)
        new = certain[self._given :]
        self._given = max(self._given, len(certain))
        if certain is text and before > 2 * BEFORE:  # whole: a few tokens are enough to go on with
            self._ids = self._ids[-BEFORE:]
            self._given = len(self._decode(self._ids))
        return self._without_stop(new)

    def end(self) -> str:
        """What was held back, once there are no more tokens."""
        if self.stopped:
            return ""
        text = self._decode(self._ids) if self._ids else ""
        rest = self._held + text[self._given :]
        self._held, self._given = "", max(self._given, len(text))
        return rest

    def _without_stop(self, new: str) -> str:
        text = self._held + new
        found = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            return text[: min(found)]
        most = min(len(text), max(map(len, self._stop), default=1) - 1)
        keep = next((n for n in range(most, 0, -1) if any(s.startswith(text[-n:]) for s in self._stop)), 0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _certain(text: str) -> str:
    """Without a character at the end whose bytes may still be to come."""
    return text[:-1] if text.endswith(REPLACEMENT) else text
