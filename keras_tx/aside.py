"""Writes a folder aside and gives it its name when it is whole."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keras_tx.errors import KerasTxError


def check_place(folder: Path, overwrite: bool, error: type[KerasTxError]) -> None:
    """Raises where the folder cannot be written, before any work is done."""
    parent = folder.parent
    if not parent.is_dir():
        raise error(f"The folder {folder} cannot be written: {parent} does not exist.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise error(f"The folder {folder} cannot be written: no permission to write in {parent}.")
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir() or folder.is_symlink():
        raise error(f"{folder} exists and is not a folder. Choose another name.")
    if not overwrite:
        raise error(f"The folder {folder} exists. Pass overwrite=True, or choose another name.")


@contextmanager
def written_aside(folder: Path, error: type[KerasTxError]) -> Iterator[Path]:
    """A new folder beside `folder`; it takes that name at the end, or is removed if anything fails."""
    aside: Path | None = None
    try:
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
        yield aside
        aside.chmod(0o777 & ~_umask())  # mkdtemp's folders are for their owner only
        _replace(aside, folder)
    except OSError as fault:
        raise error(f"The folder {folder} could not be written: {fault.strerror or fault}.") from fault
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)


def _replace(new: Path, folder: Path) -> None:
    if not folder.exists():
        new.rename(folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".old", dir=folder.parent))
    folder.rename(old / folder.name)
    try:
        new.rename(folder)
    except OSError:
        (old / folder.name).rename(folder)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
