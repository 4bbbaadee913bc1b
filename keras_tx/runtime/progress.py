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
    """Drawn over itself; in a notebook too, whose output knows a carriage return."""

    def __init__(self, total: int, what: str) -> None:
        self._total, self._what, self._done = total, what, 0
        self._start = time.monotonic()
        self._drawn = -EVERY

    def advance(self, count: int) -> None:
        self._done += count
        now = time.monotonic() - self._start
        if now - self._drawn >= EVERY or self._done >= self._total:
            self._drawn = now
            self._draw(now)

    def _draw(self, seconds: float) -> None:
        share = self._done / self._total if self._total else 1.0
        left = seconds / share - seconds if share else 0.0
        filled = "#" * round(share * WIDTH)
        print(
            f"\r[{filled:<{WIDTH}}] {self._done:,} of {self._total:,} {self._what}, {left:.0f} s left ",
            end="",
            file=sys.stderr,
            flush=True,
        )


@contextmanager
def bar(shown: bool, total: int, what: str) -> Iterator[Any]:
    """A Bar, or something that takes `advance` and shows nothing."""
    if not shown or not total:
        yield _Silent()
        return
    drawn = Bar(total, what)
    try:
        yield drawn
    finally:
        print(file=sys.stderr)


class _Silent:
    def advance(self, count: int) -> None:
        pass
