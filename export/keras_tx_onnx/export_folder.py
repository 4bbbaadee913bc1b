"""An export is written aside, and takes the place of nothing but a former one."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from keras_tx import atomic_write, contract
from keras_tx.errors import ExportError


def check_target(folder: Path, overwrite: bool) -> None:
    """Raises where the folder cannot be written, before any work is done."""
    if folder.suffix == ".onnx":
        raise ExportError(
            f"The name {folder.name!r} is that of a file, but an export is a folder: its graph is "
            f"FOLDER/{contract.MODEL}. Choose a name such as {folder.stem!r}."
        )
    atomic_write.check_place(folder, overwrite, ExportError)
    if folder.exists() and any(folder.iterdir()):
        _check_former_export(folder)


def _check_former_export(folder: Path) -> None:
    """Only what an export wrote may be replaced."""
    try:
        manifest = contract.Manifest.from_json((folder / contract.MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ExportError(
            f"The folder {folder} exists and holds no {contract.MANIFEST} of an export: it is not an "
            "export, and is not overwritten. Choose another name."
        ) from None
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    foreign = sorted(present - {contract.MANIFEST, *manifest.files})
    if foreign:
        raise ExportError(
            f"The folder {folder} holds {foreign[0]!r}, which no export wrote, and is not overwritten. "
            "Move it away, or choose another name."
        )


def atomic_directory(folder: Path) -> AbstractContextManager[Path]:
    return atomic_write.atomic_directory(folder, ExportError)
