"""Reads folders that another process may replace during the read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from keras_tx.errors import KerasTxError

Result = TypeVar("Result")

PATIENCE = 10.0  # seconds; a busy machine may replace a folder several times in a row


def read_consistently(
    folder: Path,
    read: Callable[[], Result],
    error: type[KerasTxError],
    discard: Callable[[Result], None] | None = None,
) -> Result:
    """Returns `read()` of one state of the folder: either the old or the new folder, never parts of both.

    `read` opens files by path, and is called again if the path refers to another folder afterwards.
    `keras_tx.atomic_write` replaces a folder as a whole, so a folder that is the same before and after `read`
    did not change during it.

    Args:
        folder: path of the folder.
        read: function without arguments. Its exceptions are raised only if the folder was not replaced.
        error: class of the error for an OSError, and for a folder that is replaced faster than it is read.
        discard: function that is called with each result that is not returned.

    Returns:
        The result of `read`.

    Raises:
        KerasTxError: of the class `error`.
    """
    end = time.monotonic() + PATIENCE
    attempts = 0
    while True:
        attempts += 1
        if attempts > 3 and time.monotonic() > end:
            raise error(
                f"{folder} was replaced during every read for {PATIENCE:g} seconds. Replace it less often."
            )
        with _identity(folder) as before:
            try:
                result = read()
            except Exception as fault:
                if _stat(folder) != before:
                    continue
                if isinstance(fault, OSError):
                    place = folder if fault.filename is None else fault.filename
                    raise error(f"{place} cannot be read: {fault.strerror or fault}.") from fault
                raise
            if _stat(folder) == before:
                return result
        if discard is not None:
            discard(result)


@contextmanager
def _identity(folder: Path) -> Iterator[tuple[int, int] | None]:
    """Device and inode of the folder. It is kept open, so that no later folder gets the same inode."""
    handle = None
    if hasattr(os, "O_DIRECTORY"):  # Windows cannot open directories
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # `read` reports it
            handle = None
    try:
        yield _stat(folder if handle is None else handle)
    finally:
        if handle is not None:
            os.close(handle)


def _stat(folder: Path | int) -> tuple[int, int] | None:
    try:
        info = os.stat(folder)
    except OSError:
        return None
    return info.st_dev, info.st_ino
