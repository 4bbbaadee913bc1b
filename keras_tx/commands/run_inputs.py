"""Inputs of `keras-tx run`: texts and images from arguments, files, directories and standard input."""

from __future__ import annotations

import csv
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_tx.errors import ImageError, InputError, KerasTxError, TextError, nearest

STDIN = "-"
TABLES = (".csv", ".tsv")
TEXT_FILES = (".txt", *TABLES)  # suffixes that make an argument without spaces a path
DELIMITERS = ",;\t"


@dataclasses.dataclass(frozen=True)
class Input:
    """A text or image and its name in the output, or the error of reading it."""

    name: str
    value: Any = None
    problem: KerasTxError | None = None


def check_column(inputs: Sequence[str], column: str | None) -> None:
    """Raises an InputError if `--column` is missing, unknown or unused."""
    tables = [name for name in inputs if Path(name).suffix.lower() in TABLES and os.path.isfile(name)]
    if tables and column is None:
        names = ", ".join(map(repr, _header(Path(tables[0]))[0]))
        raise InputError(f"{tables[0]} is a table with the columns {names}. Choose one with --column NAME.")
    if column is not None and not tables:
        raise InputError(f"--column is {column!r}, but no input is a {' or '.join(TABLES)} file. Omit it.")
    for name in tables:
        header, _ = _header(Path(name))
        if column not in header:
            raise InputError(f"{name} has no column {column!r}. {nearest(str(column), header)}")


def texts(inputs: Sequence[str], column: str | None, whole: bool) -> Iterator[Input]:
    """Yields texts: arguments, lines of files and of standard input, cells of tables.

    Args:
        inputs: the arguments.
        column: the column of tables.
        whole: whether a file, or standard input, is one text.
    """
    for source in inputs:
        path = Path(source)
        if source == STDIN:
            yield from _lines(sys.stdin, whole)
        elif os.path.isdir(source):
            files = sorted(one for one in path.iterdir() if one.suffix.lower() == ".txt")
            if not files:
                problem = f"{source} has no .txt files."
                yield Input(source, problem=TextError(problem))
            for file in files:
                yield from _file(file, whole)
        elif os.path.isfile(source):
            yield from _cells(path, str(column)) if path.suffix.lower() in TABLES else _file(path, whole)
        elif path.suffix.lower() in TEXT_FILES and not any(map(str.isspace, source)):
            problem = f"{source} does not exist. If it is a text, pass it on standard input."
            yield Input(source, problem=TextError(problem))
        else:
            yield Input(source, source)


def pictures(inputs: Sequence[str], column: str | None) -> Iterator[Input]:
    """Yields images: paths, files of directories, paths in tables, or the bytes of standard input."""
    from keras_tx.processing.image_file import pictures_in

    for source in inputs:
        if source == STDIN:
            yield Input(source, sys.stdin.buffer.read())
        elif os.path.isdir(source):
            try:
                yield from (Input(str(path), path) for path in pictures_in(source))
            except ImageError as problem:
                yield Input(source, problem=problem)
        elif Path(source).suffix.lower() in TABLES and os.path.isfile(source):
            for cell in _cells(Path(source), str(column)):
                path = None if cell.value is None else Path(source).parent / cell.value
                yield dataclasses.replace(cell, value=path)
        else:
            yield Input(source, source)


def _file(path: Path, whole: bool) -> Iterator[Input]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield from _lines(file, whole)
    except (OSError, UnicodeDecodeError) as error:
        yield _unreadable(path, error)


def _lines(file: Any, whole: bool) -> Iterator[Input]:
    for line in [file.read()] if whole else file:
        text = line if whole else line.rstrip("\r\n")
        yield Input(text, text)


def _cells(path: Path, column: str) -> Iterator[Input]:
    try:
        header, delimiter = _header(path)
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter=delimiter)
            next(rows)
            place = header.index(column)
            for row in rows:
                if not row:
                    continue  # a blank line
                if len(row) > place:
                    yield Input(row[place], row[place])
                else:
                    problem = f"{path}, line {rows.line_num}, has {len(row)} columns, expected {len(header)}."
                    yield Input(f"{path}:{rows.line_num}", problem=TextError(problem))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        yield _unreadable(path, error)


def _header(path: Path) -> tuple[list[str], str]:
    """The names of the columns, and the delimiter: the most frequent one in the first line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            line = file.readline()
            delimiter = max(DELIMITERS, key=line.count)
            file.seek(0)
            return next(csv.reader(file, delimiter=delimiter), []), delimiter
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        problem = _unreadable(path, error).problem
        assert problem is not None
        raise problem from error


def _unreadable(path: Path, error: Exception) -> Input:
    reason = error.strerror if isinstance(error, OSError) else error
    remedy = "Save it as UTF-8." if isinstance(error, UnicodeDecodeError) else "Check the file."
    return Input(str(path), problem=TextError(f"{path} cannot be read: {reason}. {remedy}"))
