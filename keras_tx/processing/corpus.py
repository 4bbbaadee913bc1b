"""Tokenizes text files into a folder of token files, in one pass and little memory."""

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
LONG = 1 << 16  # characters; longer documents are encoded in chunks
LONGEST = 1 << 26  # characters without a place to split that raise an error
AROUND = 100  # characters that are compared on each side of a split
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
    """Tokenizes text files into a folder with train.tokens, validation.tokens and the tokenizer.

    Each document ends with the transform's end-of-text token. Special tokens in the texts are read as text.
    The folder is written under a temporary name and renamed at the end.

    Args:
        folder: a new folder.
        texts: UTF-8 files.
        transform: the tokenizer.
        document_per: "file", "paragraph" or "line".
        separator: the text of the lines between documents; overrides `document_per`.
        validation: the share of the documents for validation.tokens, evenly spread; for a few files, the
            last part of each.
        progress: called with the number of bytes read and of all bytes.

    Returns:
        The header of each token file, by its name.

    Raises:
        TextError: a text cannot be read or encoded.
        ConfigError: an argument is invalid, or the folder exists.
    """
    target = Path(folder)
    check_target(target)
    if not 0 <= validation < 1:
        raise ConfigError(f"validation={validation!r}, expected a share from 0 up to, not including, 1.")
    parts = whole_files(texts)
    single = len(parts) == 1 and document_per == "file" and separator is None
    if transform.eos_token is None and not single:
        raise ConfigError(
            "The tokenizer has no eos_token, which separates documents. Pass a tokenizer with an eos_token, "
            "or a single file that is one document."
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
    """Raises a ConfigError if `write_tokens` cannot write the folder."""
    if folder.exists() or folder.is_symlink():
        raise ConfigError(f"{folder} exists. Remove it, or choose another name.")
    if not folder.parent.is_dir():
        raise ConfigError(f"{folder} cannot be written: {folder.parent} is not a folder.")


def _streams(
    parts: list[Part], per: str, separator: str | None, validation: float
) -> Iterator[tuple[str, Chunk]]:
    """Chunks, each with the name of its token file."""
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
        is_validation = int((count + 1) * validation) > int(count * validation)
        yield VALIDATION if is_validation else TRAIN, chunk
        count += chunk.ends
    if validation and int(count * validation) < 1:
        raise TextError(
            f"validation={validation} of {count} documents is less than one. Pass a larger share, or smaller "
            "documents with document_per='paragraph' or 'line'."
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
        raise TextError("The texts have no documents.")
    return {name: writer.header for name, writer in sorted(writers.items())}


def _encoded(
    streams: Iterator[tuple[str, Chunk]], transform: TextTransform
) -> Iterator[tuple[str, list[int], Chunk]]:
    """The ids of each chunk; many chunks are encoded together."""
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
    tokenizer.encode_special_tokens = True  # as text: a document may contain <|endoftext|>
    return tokenizer


def _encode(
    waiting: list[tuple[str, Chunk]], tokenizer: Tokenizer, transform: TextTransform
) -> Iterator[tuple[str, list[int], Chunk]]:
    texts = [chunk.text for _, chunk in waiting]
    try:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    except Exception:  # tokenizers raises no narrower class; the transform raises the reason
        transform.pieces([text for text in texts if text])
        raise
    for (name, chunk), encoding in zip(waiting, encodings, strict=True):
        yield name, encoding.ids, chunk


def _pieces(streams: Iterable[tuple[str, Chunk]], tokenizer: Tokenizer) -> Iterator[tuple[str, Chunk]]:
    """Documents; long ones in chunks that have the same tokens as the whole."""
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
                f"A document has {len(held)} characters, after {held[:30]!r}, without a place to split its "
                "tokens. Insert line breaks, or use a character tokenizer."
            )


def _place_to_cut(text: str, tokenizer: Tokenizer) -> int | None:
    """A place near LONG, preferably before white space, where a split does not change the tokens."""
    place = LONG
    for _ in range(TRIES):
        place = max(text.rfind("\n", 0, place), text.rfind(" ", place - AROUND, place))
        if place <= AROUND:
            break
        if _can_split(text, place, tokenizer):
            return place
    return LONG if len(text) > LONG + AROUND and _can_split(text, LONG, tokenizer) else None


def _can_split(text: str, place: int, tokenizer: Tokenizer) -> bool:
    """Compares the tokens around the place; more distant text does not affect them."""
    left, right = text[place - AROUND : place], text[place : place + AROUND]

    def ids(part: str) -> list[int]:
        encoded: Any = tokenizer.encode(part, add_special_tokens=False)
        return encoded.ids

    return ids(left) + ids(right) == ids(left + right)
