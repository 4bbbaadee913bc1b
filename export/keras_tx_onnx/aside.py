"""Writes a folder aside and gives it its name when it is whole."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keras_tx import contract
from keras_tx.errors import ExportError


def check_target(folder: Path, overwrite: bool) -> None:
    """Raises where the folder cannot be written, before any work is done."""
    parent = folder.parent
    if not parent.is_dir():
        raise ExportError(f"The folder {folder} cannot be written: {parent} does not exist.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ExportError(f"The folder {folder} cannot be written: no permission to write in {parent}.")
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir() or folder.is_symlink():
        raise ExportError(f"{folder} exists and is not a folder. Choose another name.")
    if not overwrite:
        raise ExportError(f"The folder {folder} exists. Pass overwrite=True, or choose another name.")
    if any(folder.iterdir()):
        _check_former_export(folder)


def _check_former_export(folder: Path) -> None:
    """Only what an export wrote may be replaced."""
    try:
        manifest = contract.Manifest.from_json((folder / contract.MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ExportError(
            f"The folder {folder} exists and holds no {contract.MANIFEST} of an export: it is not an "
            "export, and is "
            "not overwritten. Choose another name."
        ) from None
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    foreign = sorted(present - {contract.MANIFEST, *manifest.files})
    if foreign:
        raise ExportError(
            f"The folder {folder} holds {foreign[0]!r}, which no export wrote, and is not overwritten. "
            "Move it away, or "
            "choose another name."
        )


@contextmanager
def written_aside(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`; it takes that name at the end, or is removed if anything fails."""
    aside: Path | None = None
    try:
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
        yield aside
        aside.chmod(0o777 & ~_umask())  # mkdtemp's folders are for their owner only
        _replace(aside, folder)
    except OSError as error:
        raise ExportError(f"The folder {folder} could not be written: {error.strerror or error}.") from error
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
