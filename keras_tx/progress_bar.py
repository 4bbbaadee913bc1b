"""A progress bar for the terminal and for notebooks."""

from __future__ import annotations

import sys
import time
from types import TracebackType

WIDTH = 30
INTERVAL = 0.1  # seconds between two redraws


class ProgressBar:
    """A progress bar on standard error, redrawn in place.

    Without a total, the line shows the count and the rate.

    >>> with ProgressBar(3, "texts", shown=False) as bar:
    ...     bar.advance(2)

    Args:
        total: the number of units, or None where it is unknown.
        unit: the plural name of the units.
        scale: the size of one unit, such as 10**6 where bytes are shown as "MB".
        shown: whether anything is printed.
    """

    def __init__(self, total: int | None, unit: str, *, scale: int = 1, shown: bool = True) -> None:
        self._total, self._unit, self._scale = total, unit, scale
        self._shown = shown and total != 0
        self._done = 0
        self._start = time.monotonic()
        self._drawn_at = -INTERVAL
        self._drawn: int | None = None  # the count of the last redraw
        self._width = 0  # of the longest line, which a shorter one has to cover

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            if self._drawn != self._done:
                self._draw(time.monotonic() - self._start)
            print(file=sys.stderr)

    def advance(self, count: int = 1) -> None:
        """Adds `count` to what is done."""
        self.update(self._done + count)

    def update(self, done: int) -> None:
        """Sets how much is done."""
        self._done = done
        seconds = time.monotonic() - self._start
        if self._shown and (seconds - self._drawn_at >= INTERVAL or done == self._total):
            self._draw(seconds)

    def _draw(self, seconds: float) -> None:
        self._drawn_at, self._drawn = seconds, self._done
        line = self._line(seconds)
        self._width = max(self._width, len(line))
        print(f"\r{line:<{self._width}} ", end="", file=sys.stderr, flush=True)

    def _line(self, seconds: float) -> str:
        if self._total is None:
            return f"{self._count(self._done)} {self._unit}, {self._done / max(seconds, 1e-9):,.0f} a second"
        share = self._done / self._total
        left = seconds / share - seconds if share else 0.0
        count = f"{self._count(self._done)} of {self._count(self._total)} {self._unit}"
        return f"[{'#' * round(share * WIDTH):<{WIDTH}}] {count}, {left:.0f} s left"

    def _count(self, number: int) -> str:
        return f"{number:,}" if self._scale == 1 else f"{number / self._scale:,.1f}"
