"""Shared folders are exported once, and a test that changes one fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_tx import contract
from tests.exported_folders import EXPORTS, ExportedFolders


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> ExportedFolders:
    return ExportedFolders(tmp_path_factory.mktemp("folders"))


def test_a_folder_is_exported_once(folders: ExportedFolders, tmp_path: Path):
    assert folders["vit"] is folders["vit"]
    (folders.copy("vit", tmp_path / "copy") / contract.CONFIG).unlink()
    assert folders.changed() == []
    with pytest.raises(KeyError, match="vitt"):
        _ = folders["vitt"]
    assert len(EXPORTS) > 3


@pytest.mark.parametrize("change", [Path.unlink, Path.touch, lambda path: path.write_text("{}")])
def test_a_changed_folder_is_reported_and_exported_anew(folders: ExportedFolders, change):
    path = folders["vit"].path
    change(path / contract.CONFIG)
    assert folders.changed() == ["vit"]
    assert folders.changed() == []
    assert folders["vit"].path == path and (path / contract.CONFIG).stat().st_size > 2


def test_a_new_file_is_reported(folders: ExportedFolders):
    (folders["vit"].path / "new").touch()
    assert folders.changed() == ["vit"]
