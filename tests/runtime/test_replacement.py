"""A folder that is replaced during loading is the old export or the new one, never a mixture."""

import contextlib
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from keras_tx import atomic_write, consistent_read, contract
from keras_tx.errors import ConfigError, FolderError
from keras_tx.runtime import load, open_folder, session, verify_hashes
from keras_tx.runtime.tasks import image_classification

ROOT = Path(__file__).parents[2]
RED = np.full((4, 6, 3), (255, 0, 0), "uint8")
LABELS = {"old": ("old 0", "old 1", "old 2", "old 3"), "new": ("new 0", "new 1", "new 2", "new 3")}
BEST = {"old": "old 0", "new": "new 3"}  # of RED: the columns of the weights are reversed

WEIGHTS = np.array([[2.0, 0.0, -1.0, 0.5], [0.0, 3.0, 1.0, -0.5], [-2.0, 1.0, 0.0, 4.0]], "float32")
WEIGHTS_OF = {"old": WEIGHTS, "new": np.ascontiguousarray(WEIGHTS[:, ::-1])}

REPLACE = """
import itertools, random, shutil, sys, time
from pathlib import Path
from keras_tx.atomic_write import atomic_directory
from keras_tx.errors import ExportError
target, *versions = map(Path, sys.argv[1:])
for version in itertools.cycle(versions):
    with atomic_directory(target, ExportError) as new:
        shutil.copytree(version, new, dirs_exist_ok=True)
    time.sleep(random.uniform(0, 0.03))  # without a pause, a busy machine never loads a whole folder
"""


@pytest.fixture
def versions(make_image_folder) -> list[Path]:
    """Two exports whose files have the same names and sizes."""
    return [
        make_image_folder(name=name, labels=LABELS[name], weights=weights, external=True).path
        for name, weights in WEIGHTS_OF.items()
    ]


@contextlib.contextmanager
def replaced_in_a_loop(target: Path, versions: list[Path]) -> Iterator[None]:
    command = [sys.executable, "-c", REPLACE, str(target), *map(str, versions)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield
            assert process.poll() is None, process.stderr and process.stderr.read()
        finally:
            process.kill()


@pytest.mark.parametrize("loads", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_loads_during_replacements(versions, tmp_path, loads):
    target = tmp_path / "served"
    shutil.copytree(versions[0], target)
    seen: Counter[str] = Counter()
    with replaced_in_a_loop(target, versions):
        for _ in range(loads):
            with load(target, provider="cpu", threads=1) as model:
                name = model.labels[0][:3]
                assert model.labels == LABELS[name]
                assert model(RED)[0]["label"] == BEST[name]
                seen[name] += 1
    assert min(seen.values()) > loads / 10, seen


def replace(target: Path, version: Path) -> None:
    with atomic_write.atomic_directory(target, FolderError) as new:
        shutil.copytree(version, new, dirs_exist_ok=True)


@pytest.mark.parametrize("step", ["onnxruntime opens the graph", "the labels are read"])
def test_folder_replaced_during_load(versions, tmp_path, monkeypatch, step):
    target = tmp_path / "served"
    shutil.copytree(versions[0], target)
    where = {
        "onnxruntime opens the graph": (session, "_create"),
        "the labels are read": (image_classification, "labels_of"),
    }
    module, name = where[step]
    original, calls = getattr(module, name), []

    def replaced_before(*arguments):
        if not calls:
            replace(target, versions[1])
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(module, name, replaced_before)
    with load(target, provider="cpu") as model:
        assert model(RED)[0]["label"] == BEST["new"]
    assert len(calls) == 2


def test_folder_deleted_during_load(versions, monkeypatch):
    original = session._create

    def deleted_before(*arguments):
        shutil.rmtree(versions[0])
        return original(*arguments)

    monkeypatch.setattr(session, "_create", deleted_before)
    with pytest.raises(FolderError, match="old "):
        load(versions[0], provider="cpu")


def test_overwritten_files_raise(versions, monkeypatch):
    old, new = versions
    original = session._create

    def copied_before(*arguments):
        shutil.copyfile(new / contract.MODEL_DATA, old / contract.MODEL_DATA)
        return original(*arguments)

    monkeypatch.setattr(session, "_create", copied_before)
    with pytest.raises(FolderError, match=r"model\.onnx_data was changed"):
        load(old, provider="cpu")


def test_verify_hashes_of_replaced_folder_raises(versions, tmp_path):
    target = tmp_path / "served"
    shutil.copytree(versions[0], target)
    folder = open_folder(target)
    verify_hashes(folder)
    replace(target, versions[1])
    with pytest.raises(FolderError, match="served was replaced after it was opened"):
        verify_hashes(folder)


def test_folder_replaced_continuously_raises(versions, tmp_path, monkeypatch):
    monkeypatch.setattr(consistent_read, "PATIENCE", 0.5)
    target = tmp_path / "served"
    shutil.copytree(versions[0], target)
    discarded = []
    with pytest.raises(FolderError, match=r"served was replaced .* for 0\.5 seconds"):
        consistent_read.read_consistently(
            target, lambda: replace(target, versions[1]), FolderError, discarded.append
        )
    assert len(discarded) >= 3


def test_system_errors_name_the_file(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.json cannot be read: No such file"):
        consistent_read.read_consistently(tmp_path, (tmp_path / "none.json").read_text, ConfigError)


def test_names_are_exchanged_atomically(versions):
    old, new = versions
    files = {path: (path / contract.MANIFEST).read_bytes() for path in versions}
    if not atomic_write._exchange(old, new):
        pytest.skip("this file system cannot swap names")
    assert (old / contract.MANIFEST).read_bytes() == files[new]
    assert (new / contract.MANIFEST).read_bytes() == files[old]
    with pytest.raises(FileNotFoundError, match="nothing"):
        atomic_write._exchange(old, old.with_name("nothing"))


def test_replacement_without_exchange(versions, monkeypatch):
    old, new = versions
    monkeypatch.setattr(atomic_write, "_exchange", lambda one, other: False)
    replace(old, new)
    assert open_folder(old).manifest.labels == LABELS["new"]
    assert sorted(path.name for path in old.parent.iterdir()) == ["new", "old"]
