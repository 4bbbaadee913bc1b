"""Temporary folders of killed processes are removed by the next writer, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_tx.atomic_write import atomic_directory, check_export_target, partial_folder
from keras_tx.errors import ExportError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no locks for folders")

KILLED = """
import os, signal, sys
from pathlib import Path
from keras_tx.atomic_write import atomic_directory
with atomic_directory(Path(sys.argv[1]), OSError) as folder:
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"1234")
    print("written", flush=True)
    if sys.argv[2] == "wait":
        sys.stdin.read()
    else:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def start(folder: Path, then: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder), then],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def write(folder: Path) -> None:
    with atomic_directory(folder, ExportError) as aside:
        (aside / "a").touch()


def names(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()}


def test_folders_of_killed_processes_are_removed(tmp_path: Path):
    with start(tmp_path / "killed", "die") as process:
        process.wait(60)
    assert process.returncode == -signal.SIGKILL
    (left,) = names(tmp_path)
    assert left.endswith(".partial")
    write(tmp_path / "one")
    assert names(tmp_path) == {"one"}


def test_the_folder_of_a_running_process_stays(tmp_path: Path):
    with start(tmp_path / "slow", "wait") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        write(tmp_path / "one")
        assert len(names(tmp_path)) == 2
        process.communicate(b"", timeout=60)
    assert names(tmp_path) == {"one", "slow"}
    assert (tmp_path / "slow" / "onnx" / "model.onnx").read_bytes() == b"1234"


def test_the_folder_of_another_thread_or_call_stays(tmp_path: Path):
    with partial_folder(tmp_path / "outer") as outer:
        write(tmp_path / "one")
        write(outer / "inner")
        assert names(outer) == {"inner"}
    assert names(tmp_path) == {"one"}


def test_files_of_others_are_kept(tmp_path: Path):
    foreign = {".one.12345678.partial", ".one.partial", "one.keras_tx.partial"}
    for name in foreign:
        (tmp_path / name).mkdir()
    target = tmp_path / "kept"
    target.mkdir()
    (target / "file").touch()
    (tmp_path / ".link.12345678.keras_tx.partial").symlink_to(target)
    (tmp_path / ".file.12345678.keras_tx.partial").touch()
    before = names(tmp_path)
    write(tmp_path / "one")
    assert names(tmp_path) == before | {"one"}
    assert names(target) == {"file"}


@pytest.mark.parametrize("name", ["file", "link", "model.onnx", "file/folder"])
def test_targets_that_are_not_folders_raise(name: str, tmp_path: Path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    with pytest.raises(ExportError, match=Path(name).parts[0]):
        check_export_target(tmp_path / name, overwrite=True)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_parent_without_permission_raises(tmp_path: Path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(ExportError, match=r"permission .*closed"):
        check_export_target(tmp_path / "closed" / "out", overwrite=False)
