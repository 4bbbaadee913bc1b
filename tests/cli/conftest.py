"""Small exported folders, made once, and copies that a test may damage."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

import keras_tx
from keras_tx.cli import main
from keras_tx.contract import MANIFEST, Manifest, describe_file
from keras_tx_onnx import export_onnx

LABELS = ["daisy", "rose", "tulip"]


@dataclasses.dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def tx(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs a command line in this process."""

    def run(*arguments: object) -> Ran:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier, an embedder, a generic model, and the .keras file of the first."""
    parent = tmp_path_factory.mktemp("exports")
    keras.utils.set_random_seed(0)
    classifier = keras_tx.vit("Mu/2", image_size=8, num_classes=len(LABELS))
    classifier.save(parent / "flowers.keras")
    export_onnx(classifier, parent / "flowers", labels=LABELS)
    export_onnx(keras_tx.vit("Mu/2", image_size=8), parent / "features")
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    export_onnx(keras.Model([a, b], keras.layers.Dense(2)(a + b)), parent / "generic")
    return parent


@pytest.fixture
def copied(exports: Path, tmp_path: Path) -> Callable[[str], Path]:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(exports / name, tmp_path / name))

    return copy


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "rose.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), "uint8")).save(path)
    return path


@pytest.fixture
def reseal() -> Callable[..., None]:
    """Writes the manifest anew, as if the export had made what is there now."""

    def seal(folder: Path, **changes: object) -> None:
        manifest = Manifest.from_json((folder / MANIFEST).read_text())
        files = {name: describe_file(folder / name) for name in manifest.files}
        dataclasses.replace(manifest, **{"files": files, **changes}).save(folder)

    return seal
