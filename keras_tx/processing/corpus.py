"""From text files to a folder of token files with their tokenizer, in one pass and little memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from keras_tx.errors import ConfigError, TextError
from keras_tx.processing.documents import Chunk, Part, cut_at_line, documents, whole_files
from keras_tx.processing.text import TextTransform
from keras_tx.processing.token_file import Header, TokenWriter

TRAIN, VALIDATION = "train.tokens", "validation.tokens"
LONG = 1 << 16  # characters from which on a document is encoded in pieces
LONGEST = 1 << 26  # and up to which a place to cut it is looked for
AROUND = 100  # characters on each side of a cut that are compared
TRIES = 20
AT_ONCE = 1 << 19  # characters encoded together, on all cores

Progress = Callable[[int, int], None]


def write_tokens(
    folder: str | os.PathLike[str],
    texts: Sequence[str | os.PathLike[str]],
    transform: TextTransform,
    *,
    document_per: str = "file",
    separator: str | None = None,
    validation: float = 0.0,
    progress: Progress | None = None,
) -> dict[str, Header]:
    """Text files as token files: train.tokens, validation.tokens, and the files of the tokenizer.

    Each document ends with the transform's end-of-text token. Special tokens that a text spells out are text.
    The folder gets its name when all is written. Returns what each file holds.

    Args:
        folder: a new one.
        texts: UTF-8 files.
        document_per, separator: where documents end; see keras_tx.processing.documents.
        validation: the share for validation.tokens: of the documents, evenly spread. Where files are
            documents, and too few for that, the last part of each.
        progress: called with the bytes read, and those that there are.
    """
    target = Path(folder)
    check_target(target)
    if not 0 <= validation < 1:
        raise ConfigError(f"validation={validation!r}, expected a share from 0 up to, not including, 1.")
    parts = whole_files(texts)
    single = len(parts) == 1 and document_per == "file" and separator is None
    if transform.eos_token is None and not single:
        raise ConfigError(
            "The tokenizer has no end-of-text token, so documents would run into one another. Give one with "
            "an eos_token, or a single file that is one document."
        )
    streams = _streams(parts, document_per, separator, validation)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        transform.save(aside)
        headers = _write(aside, streams, transform, sum(part.end for part in parts), progress)
        aside.chmod(0o755)
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return headers


def check_target(folder: Path) -> None:
    """Raises where `write_tokens` cannot write."""
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"{folder} exists. Remove it, or choose another name.")
    if not folder.parent.is_dir():
        raise ConfigError(f"{folder} cannot be written: {folder.parent} is not a folder.")


def _streams(
    parts: list[Part], per: str, separator: str | None, validation: float
) -> Iterator[tuple[str, Chunk]]:
    """Chunks, each with the file that it goes into."""
    if validation and per == "file" and separator is None and int(len(parts) * validation) < 1:
        return _ends_of_files([cut_at_line(part, validation) for part in parts])
    return _spread(documents(parts, per, separator), validation)


def _ends_of_files(cut: list[tuple[Part, Part]]) -> Iterator[tuple[str, Chunk]]:
    read = 0
    for pair in cut:
        for name, part in zip((TRAIN, VALIDATION), pair, strict=True):
            for chunk in documents([part]):
                yield name, Chunk(chunk.text, chunk.ends, read + chunk.read)
            read += part.end - part.start


def _spread(chunks: Iterator[Chunk], validation: float) -> Iterator[tuple[str, Chunk]]:
    count = 0
    for chunk in chunks:
        taken = int((count + 1) * validation) > int(count * validation)
        yield VALIDATION if taken else TRAIN, chunk
        count += chunk.ends
    if validation and int(count * validation) < 1:
        raise TextError(
            f"There are {count} documents, of which a share of {validation} for validation takes none. Take "
            "a larger share, or smaller documents: paragraphs, or lines."
        )


def _write(
    aside: Path,
    streams: Iterator[tuple[str, Chunk]],
    transform: TextTransform,
    total: int,
    progress: Progress | None,
) -> dict[str, Header]:
    end = None if transform.eos_token is None else transform.id_of(transform.eos_token)
    writers: dict[str, TokenWriter] = {}
    with ExitStack() as stack:
        for name, ids, chunk in _encoded(streams, transform):
            if name not in writers:
                writer = TokenWriter(aside / name, transform.vocabulary_size, end)
                writers[name] = stack.enter_context(writer)
            writers[name].add(ids, len(chunk.text.encode("utf-8")))
            if chunk.ends:
                writers[name].end_document()
            if progress is not None:
                progress(chunk.read, total)
    if TRAIN not in writers:
        raise TextError("There is no document in the texts.")
    return {name: writer.header for name, writer in sorted(writers.items())}


def _encoded(
    streams: Iterator[tuple[str, Chunk]], transform: TextTransform
) -> Iterator[tuple[str, list[int], Chunk]]:
    """The ids of each piece of text, many encoded at once."""
    tokenizer = _plain(transform)
    waiting: list[tuple[str, Chunk]] = []
    size = 0
    for name, chunk in _pieces(streams, tokenizer):
        waiting.append((name, chunk))
        size += len(chunk.text)
        if size >= AT_ONCE:
            yield from _encode(waiting, tokenizer, transform)
            waiting, size = [], 0
    yield from _encode(waiting, tokenizer, transform)


def _plain(transform: TextTransform) -> Tokenizer:
    tokenizer = Tokenizer.from_str(transform.tokenizer)
    tokenizer.encode_special_tokens = True  # a text that spells <|endoftext|> out does not end there
    return tokenizer


def _encode(
    waiting: list[tuple[str, Chunk]], tokenizer: Tokenizer, transform: TextTransform
) -> Iterator[tuple[str, list[int], Chunk]]:
    texts = [chunk.text for _, chunk in waiting]
    try:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    except Exception:  # tokenizers raises nothing more precise; the transform finds the text and says why
        transform.pieces([text for text in texts if text])
        raise
    for (name, chunk), encoding in zip(waiting, encodings, strict=True):
        yield name, encoding.ids, chunk


def _pieces(streams: Iterable[tuple[str, Chunk]], tokenizer: Tokenizer) -> Iterator[tuple[str, Chunk]]:
    """Documents, the long ones in pieces that together have the tokens of the whole."""
    held = ""
    for name, chunk in streams:
        held += chunk.text
        while len(held) >= LONG:
            place = _place_to_cut(held, tokenizer)
            if place is None:
                break
            yield name, Chunk(held[:place], False, chunk.read)
            held = held[place:]
        if chunk.ends:
            yield name, Chunk(held, True, chunk.read)
            held = ""
        elif len(held) > LONGEST:
            raise TextError(
                f"A document goes on for {len(held)} characters, after {held[:30]!r}, without a place where "
                "its tokens could be cut apart. Put line breaks into the text, or take a tokenizer of "
                "characters."
            )


def _place_to_cut(text: str, tokenizer: Tokenizer) -> int | None:
    """A place near LONG where the tokens on both sides are those of the whole: before white space, or any."""
    place = LONG
    for _ in range(TRIES):
        place = max(text.rfind("\n", 0, place), text.rfind(" ", place - AROUND, place))
        if place <= AROUND:
            break
        if _falls_apart(text, place, tokenizer):
            return place
    return LONG if len(text) > LONG + AROUND and _falls_apart(text, LONG, tokenizer) else None


def _falls_apart(text: str, place: int, tokenizer: Tokenizer) -> bool:
    """Seen on what is around the place; what is further away does not reach it."""
    left, right = text[place - AROUND : place], text[place : place + AROUND]

    def ids(part: str) -> list[int]:
        encoded: Any = tokenizer.encode(part, add_special_tokens=False)
        return encoded.ids

    return ids(left) + ids(right) == ids(left + right)
