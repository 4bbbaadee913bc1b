import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import keras_tx.generation
import keras_tx.runtime

ROOT = Path(__file__).parents[2]


def run(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_no_framework(without_training_packages: Callable[[str], list[str]]):
    code = "import keras_tx.runtime\nprint({'numpy', 'PIL', 'onnxruntime'} & set(sys.modules))"
    assert run(without_training_packages(code)) == "set()\n"


def test_folder_runs_without_keras(make_image_folder, without_training_packages: Callable[[str], list[str]]):
    folder = make_image_folder(external=True).path
    image = folder.parent / "image.npy"
    np.save(image, np.full((4, 6, 3), (255, 0, 0), "uint8"))
    code = (
        "import numpy, keras_tx.runtime as runtime\n"
        f"with runtime.load({str(folder)!r}, provider='cpu', threads=1) as model:\n"
        f"    print(model(numpy.load({str(image)!r}), top_k=1)[0]['label'])\n"
    )
    assert run(without_training_packages(code)) == "rose\n"


@pytest.mark.parametrize("package", [keras_tx.runtime, keras_tx.generation])
def test_public_names(package):
    for name in package.__all__:
        assert getattr(package, name).__doc__
        assert name in dir(package)


def test_unknown_name_raises():
    with pytest.raises(AttributeError, match=r"module 'keras_tx\.runtime' has no attribute 'lod'"):
        _ = keras_tx.runtime.lod  # pyright: ignore[reportAttributeAccessIssue]
