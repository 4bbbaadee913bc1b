"""Text files as a stream of documents; of a long document never more than a part is in memory."""

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
    """Some text of a document. `read` is how many bytes of the files have been read when it comes."""

    text: str
    ends: bool  # whether the document ends behind it
    read: int


def whole_files(paths: Sequence[str | os.PathLike[str]]) -> list[Part]:
    """The files with something in them, each from beginning to end; what is no file is an error."""
    parts = []
    for path in map(Path, paths):
        if not path.is_file():
            what = "is a folder; name the files in it" if path.is_dir() else "is not there, or not a file"
            raise TextError(f"{path} {what}. Expected a text file.")
        parts.append(Part(path, 0, path.stat().st_size))
    if not any(part.end for part in parts):
        raise TextError(f"There is no text in {', '.join(str(part.path) for part in parts) or 'no file'}.")
    return [part for part in parts if part.end]


def cut_at_line(part: Part, share: float) -> tuple[Part, Part]:
    """A file in two, the second of about this share, cut behind the end of a line."""
    place = part.start + round((part.end - part.start) * (1 - share))
    with part.path.open("rb") as file:
        file.seek(place)
        while line := file.readline(READ):
            if line.endswith(b"\n"):
                break
        cut = min(file.tell(), part.end)
        if cut == part.end:  # then the line before
            first = max(part.start, place - READ)
            file.seek(first)
            cut = first + file.read(place - first).rfind(b"\n") + 1
            cut = cut if cut > first else part.end
    if not part.start < cut < part.end:
        raise TextError(
            f"{part.path} has no end of a line around where its last {share:.0%} begin, and cannot be cut "
            "there. Put line breaks into it, or ask for no validation and take another text for that."
        )
    return Part(part.path, part.start, cut), Part(part.path, cut, part.end)


def documents(parts: Sequence[Part], per: str = "file", separator: str | None = None) -> Iterator[Chunk]:
    """The documents one after the other, each as one or several chunks; empty ones are left out.

    Args:
        per: "file": each is a document. "paragraph": blank lines stand between documents. "line": each line
            is one.
        separator: lines with nothing but this text stand between documents, in place of `per`.
    """
    if per not in DOCUMENT_PER:
        raise ConfigError(f"document_per={per!r} is unknown. {nearest(str(per), DOCUMENT_PER)}")
    if separator is not None and (not separator.strip() or "\n" in separator):
        raise ConfigError(f"separator={separator!r}, expected the text of one line.")
    read = 0
    for part in parts:
        texts = _decoded(part)
        if separator is not None or per != "file":
            texts = _split(texts, "" if separator is None else separator.strip(), per == "line")
        held: str | None = None  # what comes last in a document has to know that it does
        for text, size in texts:
            read += size
            if text == "":
                continue
            if text is None:
                if held is not None:
                    yield Chunk(held.rstrip("\r\n"), True, read)
                held = None
            elif held is None:
                held = text
            else:
                yield Chunk(held, False, read)
                held = text
        if held is not None:
            lines = separator is not None or per != "file"
            yield Chunk(held.rstrip("\r\n") if lines else held, True, read)


def _decoded(part: Part) -> Iterator[tuple[str | None, int]]:
    """Text, and the bytes that it was read from."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    place = part.start
    with part.path.open("rb") as file:
        file.seek(place)
        while place < part.end:
            block = file.read(min(READ, part.end - place))
            if not block:
                raise TextError(f"{part.path} became shorter while it was read. Start again.")
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=place + len(block) >= part.end)
            except UnicodeDecodeError as error:
                raise TextError(
                    f"{part.path} is not UTF-8 text: byte {place - pending + error.start} is "
                    f"{error.reason}. Convert it (iconv -t UTF-8), or leave the file out."
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
        if len(rest) > READ:  # nothing that separates is as long
            yield rest, 0
            rest, at_start = "", False
    if not (at_start and rest.strip() == separator):
        yield rest, 0
    yield None, 0
