"""Rows of CSV, TSV and JSON Lines files, read as a stream, with the location of broken rows."""

from __future__ import annotations

import codecs
import contextlib
import csv
import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_tx.errors import ConfigError, TextError, nearest

DELIMITERS = ",;\t"
JSON_LINES = (".jsonl", ".ndjson")
SUFFIXES = (".csv", ".tsv", *JSON_LINES)
MARKS = {  # at the start of a file; UTF-32's begins with that of UTF-16
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
MISSING = {"", "nan", "NaN", "NAN", "<NA>", "NULL", "null"}  # markers of missing values
LONGEST_CELL = 2**31 - 1
SHOWN = 3


@dataclasses.dataclass(frozen=True)
class BrokenRow:
    """A row that cannot be used.

    Args:
        path: path of the file.
        place: location of the row in the file, such as "line 17".
        column: the name of the column; None if the whole row is broken.
        reason: why the row cannot be used.
    """

    path: Path
    place: str
    column: str | None
    reason: str

    def __str__(self) -> str:
        column = "" if self.column is None else f", column {self.column!r}"
        return f"{self.place}{column}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class TableFile:
    """A CSV, TSV or JSON Lines file.

    Args:
        path: path of the file. The suffix determines the format.
        columns: names of the columns of a CSV or TSV file without a header.
        encoding: encoding of the file; by default UTF-8, or that of a byte order mark.
        quotes: whether fields may be in quotes; False if quotes are ordinary characters.

    Raises:
        TextError: the file cannot be read, or has another format.
    """

    path: Path
    columns: Sequence[str] | None = None
    encoding: str | None = None
    quotes: bool = True

    def __post_init__(self) -> None:
        if self.path.suffix.lower() not in SUFFIXES:
            raise TextError(
                f"{self.path} is not a table. Pass a file whose name ends in {_listed(SUFFIXES)}."
            )
        if not self.path.is_file():
            raise TextError(f"{self.path} does not exist. The working directory is {Path.cwd()}.")
        if self.columns is not None and self.is_json:
            raise ConfigError("columns= is for CSV and TSV files; each line of a JSON Lines file has names.")
        if self.encoding is not None:
            try:
                codecs.lookup(self.encoding)
            except LookupError:
                raise ConfigError(
                    f"encoding={self.encoding!r} is unknown. Pass 'utf-8', 'cp1252' ..."
                ) from None

    @property
    def is_json(self) -> bool:
        return self.path.suffix.lower() in JSON_LINES

    def header(self) -> list[str]:
        """Returns the names of the columns: the first line, or the keys of the first JSON object."""
        if self.columns is not None:
            return list(self.columns)
        with self._opened() as file:
            try:
                if not self.is_json:
                    names = next(self._reader(file, self._delimiter()), None)
                else:
                    line = next((line for line in file if line.strip()), None)
                    names = None if line is None else list(self._object(line))
            except (csv.Error, TextError) as error:
                raise TextError(f"{self.path}, line 1, cannot be read: {error}. Correct the file.") from None
        if not names:
            raise TextError(f"{self.path} is empty. Expected a header and one row per sample.")
        return names

    def places(self, names: Sequence[str], arguments: Sequence[str]) -> list[int]:
        """Returns the indices of columns in the header.

        Args:
            names: names of the columns.
            arguments: the names of the arguments with which the columns were passed, for messages.

        Raises:
            TextError: the file does not have a column, or has it twice.
        """
        header = self.header()
        for name, argument in zip(names, arguments, strict=True):
            if header.count(name) > 1:
                raise TextError(f"{self.path} has {header.count(name)} columns named {name!r}. Rename them.")
            if name not in header:
                close = nearest(name, header)
                remedy = close if close.startswith("Did") else f"Pass {argument}= with one of them."
                raise TextError(
                    f"{self.path} has no column {name!r}; its columns are {_listed(header)}. {remedy}"
                )
        return [header.index(name) for name in names]

    def rows(
        self, names: Sequence[str], arguments: Sequence[str]
    ) -> Iterator[tuple[int, list[Any] | BrokenRow]]:
        """Yields the line number and the cells of each row, or its problem; blank lines are skipped.

        Args:
            names, arguments: as for `places`.
        """
        places = self.places(names, arguments)
        yield from self._json_rows(names) if self.is_json else self._delimited_rows(names, places)

    def _json_rows(self, names: Sequence[str]) -> Iterator[tuple[int, list[Any] | BrokenRow]]:
        with self._opened() as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    values = self._object(line)
                except TextError as problem:
                    yield number, BrokenRow(self.path, f"line {number}", None, str(problem))
                    continue
                missing = next((name for name in names if name not in values), None)
                if missing is None:
                    yield number, [values[name] for name in names]
                else:
                    yield number, BrokenRow(self.path, f"line {number}", missing, "is missing")

    def _delimited_rows(
        self, names: Sequence[str], places: Sequence[int]
    ) -> Iterator[tuple[int, list[Any] | BrokenRow]]:
        width = len(self.header())
        with self._opened() as file, _long_cells():
            reader = self._reader(file, self._delimiter())
            if self.columns is None:
                next(reader)
            while True:
                line = reader.line_num + 1
                try:
                    row = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    yield line, self._broken_quote(line, reader.line_num, error)
                    continue
                if len(row) == width:
                    yield line, [row[place] for place in places]
                elif row:
                    reason = f"has {len(row)} fields, expected {width}"
                    yield line, BrokenRow(self.path, _lines(line, reader.line_num), None, reason)

    def _broken_quote(self, line: int, last: int, error: csv.Error) -> BrokenRow:
        if "end of data" in str(error):  # the rest of the file, which must not count as one row
            raise TextError(
                f"{self.path}, line {line}: a quote is opened and not closed. Close it, or pass quotes=False "
                "if quotes are ordinary characters in this file."
            ) from None
        if "expected after" in str(error):
            reason = (
                "a quote within a field is not doubled; pass quotes=False if quotes are ordinary characters"
            )
        else:
            reason = str(error)
        return BrokenRow(self.path, _lines(line, last), None, reason)

    def _object(self, line: str) -> Mapping[str, Any]:
        try:
            value = json.loads(line)
        except ValueError as error:
            raise TextError(f"is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise TextError(f"is {value!r:.40}, expected a JSON object")
        return value

    def _reader(self, file: Any, delimiter: str) -> Any:
        quoting = csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE
        return csv.reader(file, delimiter=delimiter, quoting=quoting, strict=True)

    def _delimiter(self) -> str:
        if self.path.suffix.lower() == ".tsv":
            return "\t"
        with self._opened() as file:
            line = file.readline()
        return max(DELIMITERS, key=line.count)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        encoding = self.encoding or _marked_encoding(self.path)
        # A byte that is not UTF-8 becomes a surrogate, so that its row can be named.
        errors = "surrogateescape" if encoding.startswith("utf-8") else "strict"
        try:
            with self.path.open(encoding=encoding, errors=errors, newline="") as file:
                yield file
        except UnicodeError as error:
            raise TextError(
                f"{self.path} is not {encoding}: {error}. Pass encoding= with its encoding, or save it "
                "as UTF-8."
            ) from None
        except OSError as error:
            raise TextError(
                f"{self.path} cannot be read: {error.strerror or error}. Check the file."
            ) from error


def _marked_encoding(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(4)
    return next((name for mark, name in MARKS.items() if start.startswith(mark)), "utf-8")


@contextlib.contextmanager
def _long_cells() -> Iterator[None]:
    """Removes the csv module's global limit of 131,072 characters per cell."""
    before = csv.field_size_limit(LONGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def cell_problem(cell: Any, content: str = "text") -> str | None:
    """Returns the reason why a cell is not a text, or None; `content` is its name, such as "path"."""
    if is_missing(cell):
        empty = not cell or not str(cell).strip()
        return f"the {content} is empty" if empty else f"the {content} is {cell!r}, a missing value"
    if not isinstance(cell, str):
        return f"{cell!r:.40} is a {type(cell).__name__}, expected a {content}"
    return encoding_problem(cell)


def encoding_problem(cell: str) -> str | None:
    """Returns the reason why the characters of a cell are invalid, or None."""
    if "\0" in cell:
        return "it contains a NUL character; if the file is UTF-16, pass encoding='utf-16'"
    if cell.isascii():
        return None
    wrong = next((character for character in cell if "\ud800" <= character <= "\udfff"), None)
    if wrong is None:
        return None
    if "\udc80" <= wrong <= "\udcff":
        return f"byte 0x{ord(wrong) - 0xDC00:02x} is not UTF-8; pass encoding= with the file's encoding"
    return f"{wrong!r} is half of a character (a lone surrogate)"


def is_missing(cell: Any) -> bool:
    """Whether a cell is empty or contains a marker of a missing value."""
    if isinstance(cell, float):
        return math.isnan(cell)
    return cell is None or (isinstance(cell, str) and cell.strip() in MISSING)


def refuse_broken(path: str | os.PathLike[str], broken: Sequence[BrokenRow], rows: int) -> None:
    """Raises a TextError that names the first broken rows."""
    if not broken:
        return
    plural = "" if len(broken) == 1 else "s"
    raise TextError(
        f"{path} has {len(broken):,} broken row{plural} of {rows:,}: {listed_rows(broken)}. Correct the "
        "file, or pass skip_broken=True to leave them out."
    )


def listed_rows(broken: Sequence[BrokenRow]) -> str:
    """Returns the first broken rows, for a message."""
    more = f"; and {len(broken) - SHOWN} more" if len(broken) > SHOWN else ""
    return "; ".join(map(str, broken[:SHOWN])) + more


def _lines(first: int, last: int) -> str:
    return f"line {first}" if last <= first else f"lines {first} to {last}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
