"""What a user gets from `pip install`: built for real, straight from the tree and by way of the sdist."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

import pytest

import keras_tx

ROOT = Path(__file__).parents[2]
INFO = f"keras_tx-{keras_tx.__version__}.dist-info"


@pytest.fixture(scope="module", params=["from the tree", "from the sdist"])
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Without isolation: the test extra brings the build's dependencies, so nothing is downloaded."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    command += (
        ["--wheel"] if request.param == "from the tree" else []
    )  # neither option: sdist, then wheel from it
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture
def metadata(wheel: zipfile.ZipFile) -> Message:
    return BytesParser().parsebytes(wheel.read(f"{INFO}/METADATA"))


def test_top_level_has_two_packages(wheel: zipfile.ZipFile):
    assert {name.split("/")[0] for name in wheel.namelist()} == {"keras_tx", "keras_tx_onnx", INFO}


def test_wheel_contains_exactly_the_modules(wheel: zipfile.ZipFile):
    trees = {"keras_tx": ROOT / "keras_tx", "keras_tx_onnx": ROOT / "export" / "keras_tx_onnx"}
    expected = {
        f"{package}/{path.relative_to(tree).as_posix()}"
        for package, tree in trees.items()
        for path in tree.rglob("*")
        if path.suffix in (".css", ".html", ".js", ".json", ".py") or path.name == "py.typed"
    }
    assert {name for name in wheel.namelist() if not name.startswith(INFO)} == expected
    assert not any("bench" in name.rpartition("/")[0] for name in wheel.namelist())
    assert {"keras_tx/py.typed", "keras_tx_onnx/py.typed"} <= expected


def test_metadata_of_the_wheel(wheel: zipfile.ZipFile, metadata: Message):
    assert metadata["Version"] == keras_tx.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert f"{INFO}/licenses/LICENSE" in wheel.namelist()
    assert set(str(metadata["Requires-Python"]).split(",")) == {">=3.11", "<3.14"}
    assert b"keras-tx = keras_tx.cli:main" in wheel.read(f"{INFO}/entry_points.txt")


def test_without_an_extra_it_asks_for_numpy_only(metadata: Message):
    always = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert [line.split("<")[0].split(">")[0] for line in always] == ["numpy"]


def test_the_sdist_has_what_its_tests_need(tmp_path: Path):
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--sdist",
        "--outdir",
        str(tmp_path),
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        inside = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        ".ci/lowest.txt",
        ".mkdocs.yml",
    } <= inside
    assert {"tests/packaging/test_wheel.py", "docs/index.md", "examples/vit_digits.ipynb"} <= inside
    if (ROOT / ".git").exists():  # an unpacked sdist has none
        listed = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
        there = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.splitlines()
        assert inside - {"PKG-INFO"} == {name for name in there if (ROOT / name).is_file()}
