"""Output for terminals: tables, bars, small images, and safe text."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any

EIGHTHS = " ▏▎▍▌▋▊▉█"
SHADES = " ░▒▓█"
PLAIN_SHADES = " .:*#"


def draws_blocks() -> bool:
    """Whether standard output can encode block characters."""
    try:
        (EIGHTHS + SHADES).encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def bar(share: float, width: int = 20) -> str:
    """A share of 1 as a bar, to an eighth of a character."""
    if not draws_blocks():
        return "#" * round(share * width)
    eighths = round(share * width * 8)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def picture(image: Any) -> list[str]:
    """A grayscale uint8 image (height, width) as lines of shades, two characters per pixel."""
    shades = SHADES if draws_blocks() else PLAIN_SHADES
    return ["".join(shades[int(value) * len(shades) // 256] * 2 for value in row) for row in image]


def table(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Aligned columns, two spaces apart; those whose index is in `right` are aligned to the right.

    >>> print(table([["size", "ms"], ["1", "12.5"], ["16", "8"]], right={1}))
    size    ms
    1     12.5
    16       8
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = enumerate(zip(row, widths, strict=True))
        return "  ".join(x.rjust(width) if i in right else x.ljust(width) for i, (x, width) in cells).rstrip()

    return "\n".join(map(line, rows))


def beside(columns: Sequence[list[str]], gap: int = 3) -> str:
    """Blocks of lines, side by side.

    >>> beside([["ab", "c"], ["d"]], gap=1)
    'ab d\\nc'
    """
    height = max(len(lines) for lines in columns)
    widths = [max(len(line) for line in lines) for lines in columns]
    rows = [
        (" " * gap).join(
            (lines[row] if row < len(lines) else "").ljust(width)
            for lines, width in zip(columns, widths, strict=True)
        )
        for row in range(height)
    ]
    return "\n".join(row.rstrip() for row in rows)


def printable(text: str) -> str:
    """Text with control characters and unencodable characters escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    safe = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return safe.encode(encoding, "backslashreplace").decode(encoding)
