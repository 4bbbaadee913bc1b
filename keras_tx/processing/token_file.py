"""Token files: the ids of a corpus after a short header, read through a memory map.

The first 4096 bytes are a JSON object and spaces; `head -c 4096 train.tokens` prints it. The ids follow,
little-endian, uint16 if the vocabulary fits, otherwise uint32. Each document ends with the end-of-text token.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError, TextError, whole_number

FORMAT, VERSION = "keras-tx tokens", 1
HEADER = 4096  # bytes; a page, so that the ids are aligned whatever their size
DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}


@dataclasses.dataclass(frozen=True)
class Header:
    """The header of a token file."""

    dtype: str
    tokens: int
    documents: int
    text_bytes: int  # of the texts in UTF-8, for bits per byte
    vocabulary_size: int
    end_of_text: int | None

    def __post_init__(self) -> None:
        for name in ("tokens", "documents", "text_bytes", "vocabulary_size"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}, expected a whole number, 0 or more")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype is {self.dtype!r}, expected {' or '.join(DTYPES)}")
        if not 0 < self.vocabulary_size <= np.iinfo(DTYPES[self.dtype]).max + 1:
            raise ConfigError(f"vocabulary_size is {self.vocabulary_size}, which {self.dtype} cannot hold")
        end = self.end_of_text
        if end is not None and (type(end) is not int or not 0 <= end < self.vocabulary_size):
            raise ConfigError(f"end_of_text is {end!r}, expected an id below {self.vocabulary_size}, or null")


class TokenFile:
    """A token file, opened for reading. Slices of it are read from the file.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "few.tokens")
    >>> with TokenWriter(path, vocabulary_size=50, end_of_text=49) as writer:
    ...     writer.add([7, 8, 9], text_bytes=5)
    ...     writer.end_document()
    >>> tokens = TokenFile(path)
    >>> len(tokens), tokens[1:], tokens.bytes_per_token
    (4, array([ 8,  9, 49]), 1.25)

    Args:
        path: a file written by `keras-tx tokens`, `write_tokens` or a TokenWriter.

    Raises:
        ConfigError: the file is not a token file, or is damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.header = read_header(self.path)
        dtype = DTYPES[self.header.dtype]
        expected = HEADER + self.header.tokens * dtype.itemsize
        size = self.path.stat().st_size
        if size != expected:
            problem = "truncated" if size < expected else "damaged"
            raise ConfigError(
                f"{self.path} is {problem}: it has {size} bytes, but its header states {self.header.tokens} "
                f"tokens of {self.header.dtype}, {expected} bytes. Copy or write it again."
            )
        if not self.header.tokens:
            raise ConfigError(f"{self.path} has no tokens. Write it again from non-empty texts.")
        self._ids = np.memmap(self.path, dtype, "r", HEADER)

    def __len__(self) -> int:
        return self.header.tokens

    def __getitem__(self, part: slice) -> np.ndarray:
        """The ids of a slice as int64, checked against the vocabulary size."""
        return self.checked(np.asarray(self._ids[part], "int64"))

    @property
    def stored(self) -> np.ndarray:
        """The ids as the file has them, a memory map that is not checked."""
        return self._ids

    @property
    def vocabulary_size(self) -> int:
        return self.header.vocabulary_size

    @property
    def end_of_text(self) -> int | None:
        return self.header.end_of_text

    @property
    def bytes_per_token(self) -> float:
        """The mean number of bytes per token, for keras_tx.BitsPerByte; end-of-text tokens have 0."""
        return self.header.text_bytes / self.header.tokens

    def at(self, places: np.ndarray) -> np.ndarray:
        """Returns the ids at these indices."""
        return self.checked(self._ids[places].astype("int64"))

    def documents(self, at_once: int = 1 << 22) -> tuple[np.ndarray, np.ndarray]:
        """Returns the start and the end of each document; reads the whole file in parts."""
        if self.end_of_text is None:
            return np.array([0]), np.array([len(self)])
        places = [
            first + np.flatnonzero(self[first : first + at_once] == self.end_of_text)
            for first in range(0, len(self), at_once)
        ]
        ends = np.concatenate(places) + 1
        if not ends.size or ends[-1] < len(self):
            ends = np.append(ends, len(self))
        return np.concatenate([[0], ends[:-1]]), ends

    def checked(self, ids: np.ndarray) -> np.ndarray:
        """Returns the ids; raises a ConfigError if one is not below the vocabulary size of the header."""
        if ids.size and int(ids.max()) >= self.vocabulary_size:
            raise ConfigError(
                f"{self.path} is damaged: it has the id {int(ids.max())}, but the ids of its header's "
                f"vocabulary are 0 to {self.vocabulary_size - 1}. Write it again."
            )
        return ids


def read_header(path: Path) -> Header:
    """Returns the header of a token file; raises a ConfigError if there is none."""
    try:
        with path.open("rb") as file:
            first = file.read(HEADER)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}. Pass a file written by keras-tx tokens."
        ) from error
    try:
        if len(first) < HEADER:
            raise ConfigError(f"it has {len(first)} bytes, but a header has {HEADER}")
        content = json.loads(first.decode("ascii"))
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ConfigError(f"its header has no format {FORMAT!r}")
        version = content.pop("version", None)
        if version != VERSION:
            raise ConfigError(f"its version is {version!r}, expected {VERSION}")
        names = [field.name for field in dataclasses.fields(Header)]
        if sorted(content) != sorted(names):
            raise ConfigError(f"its header has {sorted(content)}, expected {sorted(names)}")
        return Header(**content)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ConfigError) else "it does not begin with a header"
        raise ConfigError(
            f"{path} is not a token file: {reason}. Write one with keras-tx tokens FOLDER TEXT."
        ) from None


class TokenWriter:
    """Writes a token file under a temporary name and renames it at the end; use it in a `with` statement.

    Args:
        path: of the file; an existing one is replaced.
        vocabulary_size: number of ids.
        end_of_text: the id after each document, or None.
    """

    def __init__(
        self, path: str | os.PathLike[str], vocabulary_size: int, end_of_text: int | None = None
    ) -> None:
        self.path = Path(path)
        vocabulary_size = whole_number("vocabulary_size", vocabulary_size)
        dtype = "uint16" if vocabulary_size <= 1 << 16 else "uint32"
        self._header = Header(dtype, 0, 0, 0, vocabulary_size, end_of_text)
        self._aside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        self._file: Any = None

    def __enter__(self) -> TokenWriter:
        self._file = self._aside.open("wb")
        self._file.write(bytes(HEADER))
        return self

    @property
    def header(self) -> Header:
        """The header of the tokens written so far."""
        return self._header

    def add(self, ids: Sequence[int] | np.ndarray, text_bytes: int = 0) -> None:
        """Writes ids of the current document; `text_bytes` is the number of bytes of their text."""
        array = np.asarray(ids)
        if array.size:
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise TextError(f"ids are {array.dtype} {array.shape}, expected a list of whole numbers.")
            if int(array.min()) < 0 or int(array.max()) >= self._header.vocabulary_size:
                wrong = int(array.min()) if int(array.min()) < 0 else int(array.max())
                raise TextError(f"ids contain {wrong}, expected 0 to {self._header.vocabulary_size - 1}.")
            self._file.write(array.astype(DTYPES[self._header.dtype]).tobytes())
        self._count(tokens=array.size, text_bytes=text_bytes)

    def end_document(self) -> None:
        if self._header.end_of_text is not None:
            self.add([self._header.end_of_text])
        self._count(documents=1)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None:
                text = json.dumps({"format": FORMAT, "version": VERSION, **dataclasses.asdict(self._header)})
                self._file.seek(0)
                self._file.write(text.encode("ascii").ljust(HEADER - 1) + b"\n")
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
            if kind is None:
                os.replace(self._aside, self.path)
        finally:
            self._file.close()
            self._aside.unlink(missing_ok=True)

    def _count(self, **more: int) -> None:
        counted = {name: getattr(self._header, name) + number for name, number in more.items()}
        self._header = dataclasses.replace(self._header, **counted)
