"""Reads a folder that another process may replace in the meantime."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from keras_tx.errors import KerasTxError

Result = TypeVar("Result")

PATIENCE = 10.0  # seconds; on a busy machine one replacement may follow the other many times


def read_consistently(
    folder: Path,
    read: Callable[[], Result],
    error: type[KerasTxError],
    discard: Callable[[Result], None] | None = None,
) -> Result:
    """Returns `read()` of one state of the folder: the old folder or the new one, never parts of both.

    `read` opens what it needs by path, and is called again if the path names another folder
    afterwards. `keras_tx.atomic_write` replaces folders as a whole, so a folder that is the same before
    and after was the same throughout.

    Args:
        read: called without arguments. Its exceptions are raised only if the folder was not replaced.
        error: raised for an OSError, and for a folder that is replaced faster than it can be read.
        discard: called with a result that is not returned.
    """
    end = time.monotonic() + PATIENCE
    attempts = 0
    while True:
        attempts += 1
        if attempts > 3 and time.monotonic() > end:
            raise error(
                f"{folder} was replaced again and again for {PATIENCE:g} seconds while it was being read, "
                "expected a folder that does not change. Replace it less often."
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
