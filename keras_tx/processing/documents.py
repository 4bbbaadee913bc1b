"""Text files as a stream of documents; only a part of a long document is in memory."""

from __future__ import annotations

import codecs
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from keras_tx.errors import ConfigError, TextError, nearest

DOCUMENT_PER = ("file", "paragraph", "line")
READ = 1 << 20  # bytes at once; a line may be longer


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a file, in bytes."""

    path: Path
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Some text of a document, and the number of bytes read from all files so far."""

    text: str
    ends: bool  # whether the document ends after it
    read: int


def whole_files(paths: Sequence[str | os.PathLike[str]]) -> list[Part]:
    """Returns the files that are not empty, each as one part; a path without a file raises a TextError."""
    parts = []
    for path in map(Path, paths):
        if not path.is_file():
            problem = "is a folder. Pass the files in it" if path.is_dir() else "is not a file"
            raise TextError(f"{path} {problem}.")
        parts.append(Part(path, 0, path.stat().st_size))
    if not any(part.end for part in parts):
        raise TextError(f"{', '.join(str(part.path) for part in parts) or 'texts'} has no text.")
    return [part for part in parts if part.end]


def cut_at_line(part: Part, share: float) -> tuple[Part, Part]:
    """Splits a file after a line, so that the second part has about this share of it.

    Where a line is long, the file is split after a space, or between two characters if there is no space.
    """
    place = part.start + round((part.end - part.start) * (1 - share))
    second = part.end - place
    first, last = max(part.start, place - min(second, READ)), place + min(second // 2, READ)
    with part.path.open("rb") as file:
        file.seek(first)
        before, after = file.read(place - first), file.read(last - place)
    if b"\n" in after:
        cut = place + after.index(b"\n") + 1
    else:
        cut = first + (before.rfind(b"\n") + 1 or before.rfind(b" ") + 1 or _last_character(before))
    if not part.start < cut < part.end:
        raise TextError(f"{part.path} is too short to be split, {share:.0%} for validation. Add text.")
    return Part(part.path, part.start, cut), Part(part.path, cut, part.end)


def _last_character(text: bytes) -> int:
    """The start of the last character of a text in UTF-8, which may be incomplete."""
    place = len(text) - 1
    while place > 0 and text[place] & 0xC0 == 0x80:
        place -= 1
    return max(place, 0)


def documents(parts: Sequence[Part], per: str = "file", separator: str | None = None) -> Iterator[Chunk]:
    """Yields the documents, each as one or several chunks, without empty ones.

    Args:
        per: "file", "paragraph" (blank lines between documents) or "line".
        separator: the text of the lines between documents; overrides `per`.
    """
    if per not in DOCUMENT_PER:
        raise ConfigError(f"document_per={per!r} is unknown. {nearest(str(per), DOCUMENT_PER)}")
    if separator is not None and (not separator.strip() or "\n" in separator):
        raise ConfigError(f"separator={separator!r}, expected the text of one line.")
    read, by_line = 0, separator is not None or per != "file"
    for part in parts:
        texts = _decoded(part)
        if by_line:
            texts = _split(texts, "" if separator is None else separator.strip(), per == "line")
        yield from _chunks(texts, by_line, read)
        read += part.end - part.start


def _chunks(texts: Iterator[tuple[str | None, int]], by_line: bool, read: int) -> Iterator[Chunk]:
    held: str | None = None  # until it is known whether the document ends
    for text, size in texts:
        read += size
        if text == "":
            continue
        if held is not None:
            yield Chunk(held.rstrip("\r\n") if text is None else held, text is None, read)
        held = text
    if held is not None:
        yield Chunk(held.rstrip("\r\n") if by_line else held, True, read)


def _decoded(part: Part) -> Iterator[tuple[str | None, int]]:
    """Texts with their number of bytes in the file."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    place = part.start
    with part.path.open("rb") as file:
        file.seek(place)
        while place < part.end:
            block = file.read(min(READ, part.end - place))
            if not block:
                raise TextError(f"{part.path} was truncated while it was read. Start again.")
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=place + len(block) >= part.end)
            except UnicodeDecodeError as error:
                raise TextError(
                    f"{part.path} is not UTF-8 text: byte {place - pending + error.start} is "
                    f"{error.reason}. Convert it with iconv -t UTF-8, or remove the file."
                ) from None
            place += len(block)
            yield text, len(block)


def _split(
    texts: Iterator[tuple[str | None, int]], separator: str, each_line: bool
) -> Iterator[tuple[str | None, int]]:
    """Lines, with None where a document ends."""
    rest, at_start = "", True
    for text, size in texts:
        assert text is not None
        lines = (rest + text).split("\n")
        rest = lines.pop()
        yield "", size
        for line in lines:
            if at_start and line.strip() == separator:
                yield None, 0
            else:
                yield f"{line}\n", 0
                if each_line:
                    yield None, 0
            at_start = True
        if len(rest) > READ:  # longer than any separator
            yield rest, 0
            rest, at_start = "", False
    if not (at_start and rest.strip() == separator):
        yield rest, 0
    yield None, 0
