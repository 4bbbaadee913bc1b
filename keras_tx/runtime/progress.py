"""A line on standard error that says how far a long list is."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WIDTH = 30
EVERY = 0.1  # seconds; more often nobody sees it


class Bar:
    """Drawn over itself; in a notebook too, whose output knows a carriage return.

    Where nobody knows the total, it is None, and the line says how many there were and how fast.
    """

    def __init__(self, total: int | None, what: str) -> None:
        self._total, self._what, self._done = total, what, 0
        self._start = time.monotonic()
        self._drawn = -EVERY
        self._width = 0  # of the longest line so far, which a shorter one has to cover

    def advance(self, count: int) -> None:
        self._done += count
        now = time.monotonic() - self._start
        if now - self._drawn >= EVERY or self._done == self._total:
            self._drawn = now
            self._draw(now)

    def end(self) -> None:
        """Draws what was not drawn for being too soon."""
        if self._done != self._total:
            self._draw(time.monotonic() - self._start)

    def _draw(self, seconds: float) -> None:
        line = self._line(seconds)
        self._width = max(self._width, len(line))
        print(f"\r{line:<{self._width}} ", end="", file=sys.stderr, flush=True)

    def _line(self, seconds: float) -> str:
        if self._total is None:
            return f"{self._done:,} {self._what}, {self._done / max(seconds, 1e-9):,.0f} a second"
        share = self._done / self._total if self._total else 1.0
        left = seconds / share - seconds if share else 0.0
        filled = "#" * round(share * WIDTH)
        return f"[{filled:<{WIDTH}}] {self._done:,} of {self._total:,} {self._what}, {left:.0f} s left"


@contextmanager
def bar(shown: bool, total: int | None, what: str) -> Iterator[Any]:
    """A Bar, or something that takes `advance` and shows nothing."""
    if not shown or total == 0:
        yield _Silent()
        return
    drawn = Bar(total, what)
    try:
        yield drawn
    finally:
        drawn.end()
        print(file=sys.stderr)


class _Silent:
    def advance(self, count: int) -> None:
        pass
