"""Writes a folder or a file under a temporary name and renames it when it is complete."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keras_tx import contract
from keras_tx.errors import ExportError, KerasTxError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

PARTIAL = ".keras_tx.partial"  # suffix of the name of a folder that is being written


def check_target(
    folder: Path, overwrite: bool, error: type[KerasTxError], written: Callable[[Path], Collection[str]]
) -> None:
    """Raises `error` if the folder cannot be written, or if it holds files of others.

    Args:
        overwrite: whether an existing folder may be replaced.
        written: returns the paths, relative to an existing folder, of the files that may be replaced.
    """
    parent = next(path for path in folder.absolute().parents if os.path.lexists(path))
    if not parent.is_dir():
        raise error(f"The folder {folder} cannot be written: {parent} is not a folder.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise error(f"The folder {folder} cannot be written: no permission to write in {parent}.")
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir() or folder.is_symlink():
        raise error(f"{folder} exists and is not a folder. Choose another name.")
    if not overwrite:
        raise error(f"The folder {folder} exists. Pass overwrite=True, or choose another name.")
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    foreign = sorted(files.difference(written(folder))) if files else []
    if foreign:
        raise error(
            f"The folder {folder} holds {foreign[0]!r}, which keras-tx did not write, and is not "
            "overwritten. Move the file away, or choose another name."
        )


def check_file_target(path: Path, name: str, error: type[KerasTxError]) -> None:
    """Raises `error` if a file cannot be written to `path`, which is the argument `name`."""
    if path.is_dir():
        raise error(f"{name} is {str(path)!r}, which is a folder. Pass the path of a file.")
    if not path.absolute().parent.is_dir():
        raise error(f"{name} is {str(path)!r}, but the folder {path.parent} does not exist. Create it.")
    if not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise error(f"{name} is {str(path)!r}, but {path.parent} has no permission to write.")


def write_file(path: Path, content: bytes, error: type[KerasTxError]) -> None:
    """Writes a file under a temporary name beside `path`, and renames it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as fault:
        raise error(f"The file {path} could not be written: {fault.strerror or fault}.") from fault


def check_export_target(folder: Path, overwrite: bool) -> None:
    """Raises an ExportError if an export cannot be written to `folder`; only exports are overwritten."""
    if folder.suffix == ".onnx":
        raise ExportError(
            f"folder={folder.name!r} is the name of a file, but an export is a folder with the graph in "
            f"{contract.MODEL}. Choose a name such as {folder.stem!r}."
        )
    check_target(folder, overwrite, ExportError, _exported_files)


def _exported_files(folder: Path) -> Collection[str]:
    try:
        manifest = contract.Manifest.from_json((folder / contract.MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ExportError(
            f"The folder {folder} is not an export (it has no valid {contract.MANIFEST}), and is not "
            "overwritten. Choose another name."
        ) from None
    return {contract.MANIFEST, *manifest.files}


@contextmanager
def atomic_directory(folder: Path, error: type[KerasTxError]) -> Iterator[Path]:
    """Yields a new folder beside `folder`, which replaces it at the end, or is removed if anything fails.

    Missing parent folders are created, and removed as well if anything fails.
    """
    try:
        with partial_folder(folder) as aside:
            yield aside
            aside.chmod(0o777 & ~_umask())  # mkdtemp's folders are for their owner only
            _replace(aside, folder)
    except OSError as fault:
        raise error(f"The folder {folder} could not be written: {fault.strerror or fault}.") from fault


@contextmanager
def partial_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, removed at the end unless it was renamed.

    Partial folders that killed processes left in the same parent are removed first. Missing parents are
    created; those that are empty at the end are removed.
    """
    missing = [path for path in folder.absolute().parents if not path.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        _remove_stale(folder.parent)
        path, handle = _locked_folder(folder)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            if handle is not None:
                os.close(handle)
    finally:
        for path in missing:  # innermost first
            with contextlib.suppress(OSError):  # it is not empty
                path.rmdir()


def _locked_folder(folder: Path) -> tuple[Path, int | None]:
    """A new partial folder and the handle that holds its lock; None where folders cannot be locked."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=PARTIAL, dir=folder.parent))
        handle = _lock(path, wait=True)
        # Between the two lines above another process may have removed it as a stale one.
        if path.exists() and (handle is None or path.stat().st_ino == os.fstat(handle).st_ino):
            return path, handle
        if handle is not None:
            os.close(handle)


def _remove_stale(parent: Path) -> None:
    """Removes the partial folders of keras_tx that no running process holds."""
    for path in parent.glob(f".*{PARTIAL}"):
        handle = _lock(path, wait=False)
        if handle is not None:
            shutil.rmtree(path, ignore_errors=True)  # another process may be removing it as well
            os.close(handle)


def _lock(folder: Path, wait: bool) -> int | None:
    """Locks a folder until the handle is closed or the process ends.

    None where another process has the lock, where the folder is gone, and where the system (Windows) or the
    file system (NFS) has no locks for folders.
    """
    if fcntl is None:
        return None
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _replace(new: Path, folder: Path) -> None:
    """Renames the new folder to `folder`. An existing folder is swapped with it, or removed.

    On Linux and macOS the two folders swap their names in one step. On a file system that cannot do that,
    such as NFS, the old folder is renamed first, and for a moment no folder has the name.
    """
    if not folder.exists():
        new.rename(folder)
        return
    if _exchange(new, folder):
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


def _exchange(one: Path, other: Path) -> bool:
    """Swaps the names of two folders in one step; returns False where that is not supported."""
    libc: Any = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
    here, names = -100, (os.fsencode(one), os.fsencode(other))  # AT_FDCWD
    if hasattr(libc, "renameat2"):  # Linux
        failed = libc.renameat2(here, names[0], here, names[1], ctypes.c_uint(2))  # RENAME_EXCHANGE
    elif hasattr(libc, "renamex_np"):  # macOS
        failed = libc.renamex_np(*names, ctypes.c_uint(2))  # RENAME_SWAP
    else:
        return False
    code = ctypes.get_errno()
    if failed and code not in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):
        raise OSError(code, os.strerror(code), os.fspath(other))
    return not failed


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
