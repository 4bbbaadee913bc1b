"""keras-tx export imports less of Keras, and selects its NumPy backend for Hugging Face folders."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import keras_tx
from keras_tx.commands import light_imports
from keras_tx.environment import keras_backend
from keras_tx.runtime import open_folder
from keras_tx.runtime.session import Session
from tests.drawing import as_numpy, redraw
from tests.tolerances import assert_close

SCRIPT = """
import json, sys
from keras_tx.cli import main
code = main(sys.argv[1:])
import keras
loaded = [name for name in ("sklearn", "matplotlib", "tensorflow", "jax", "sympy") if name in sys.modules]
print(json.dumps([code, keras.backend.backend(), loaded]))
"""

FAMILIES = """
import json, sys
import keras_tx as tx
from keras_tx_onnx import export_onnx
models = {
    "bert": lambda: tx.bert("tiny", head=tx.MaskedLMHead()),
    "gpt": lambda: tx.gpt("pico"),
    "llama": lambda: tx.gpt("llama-tiny"),
    "vit": lambda: tx.vit("Mu/2", image_size=8, num_classes=3),
    "t5": lambda: tx.t5("tiny"),
    "modernbert": lambda: tx.modernbert("tiny"),
    "deberta": lambda: tx.deberta("tiny"),
}
differences = {}
for name, make in models.items():
    source = tx.save_checkpoint(make(), f"{sys.argv[1]}/{name}")
    report = export_onnx(tx.from_checkpoint(source), f"{sys.argv[1]}/{name}-out")
    differences[name] = report.manifest.parity.max_difference
print(json.dumps(differences))
"""
ON_NUMPY = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, light_imports.PACKAGES)), reason='pip install "keras-tx[jax]"'
)


@pytest.fixture
def environment(tmp_path: Path, monkeypatch) -> dict[str, str]:
    """Without a selected backend."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    for name in ("KERAS_BACKEND", *light_imports.THREADS):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.mark.thorough
@ON_NUMPY
def test_huggingface_folder_is_exported_on_numpy(environment, tmp_path: Path):
    model = redraw(keras_tx.bert("tiny", vocabulary_size=50, depth=1, num_classes=3))
    source = keras_tx.save_checkpoint(model, tmp_path / "bert")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "export", str(source), str(tmp_path / "out")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, "numpy", []]
    assert "; Keras on its numpy backend)" in done.stdout
    folder = open_folder(tmp_path / "out")
    assert folder.manifest.parity is not None and folder.manifest.parity.max_difference < 1e-5
    ids = np.array([[7, 8, 9, 10], [11, 12, 0, 0]])
    inputs = {name: x.astype("int64") for name, x in as_numpy(model.complete(ids)).items()}
    with Session(folder.graph, "cpu") as session:
        assert_close(session.run(inputs)["logits"], as_numpy(model(ids)))


@pytest.mark.thorough
@ON_NUMPY
def test_families_are_exported_on_numpy(environment, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FAMILIES, str(tmp_path)],
        env=environment | {"KERAS_BACKEND": "numpy"},
        capture_output=True,
        text=True,
        check=True,
    )
    differences = json.loads(done.stdout.splitlines()[-1])
    assert len(differences) == 7 and max(differences.values()) < 1e-5, differences


@pytest.mark.parametrize(
    ("variable", "stored", "expected"),
    [
        (None, None, "numpy"),
        (None, "tensorflow", "numpy"),
        (None, "torch", None),
        ("tensorflow", None, "tensorflow"),
        ("jax", None, "jax"),
    ],
)
def test_selected_backend_is_kept(variable, stored, expected, environment, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(light_imports.importlib.util, "find_spec", lambda name: name)
    if variable is not None:
        monkeypatch.setenv("KERAS_BACKEND", variable)
    if stored is not None:
        (tmp_path / "keras").mkdir()
        (tmp_path / "keras" / "keras.json").write_text(json.dumps({"backend": stored}))
    light_imports._select_lightest_backend()
    assert os.environ.get("KERAS_BACKEND") == expected


def test_backend_without_its_packages_is_not_selected(environment, monkeypatch):
    monkeypatch.setattr(
        light_imports.importlib.util, "find_spec", lambda name: None if name == "jax" else name
    )
    light_imports._select_lightest_backend()
    assert "KERAS_BACKEND" not in os.environ


@pytest.mark.parametrize("of_keras", [True, False])
def test_import_of_a_submodule_of_a_late_module(of_keras: bool, tmp_path: Path, monkeypatch):
    package = "keras_imports" if of_keras else "keras_tx_onnx"
    (tmp_path / "heavy").mkdir()
    (tmp_path / "heavy" / "__init__.py").touch()
    (tmp_path / "heavy" / "more.py").write_text("number = 5\n")
    (tmp_path / f"{package}.py").write_text("import heavy.more\nexport_onnx = heavy.more.number\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(light_imports, "LATE", {"heavy": ()})
    monkeypatch.setattr(light_imports, "BACKEND", keras_backend())
    for name in (package, "heavy", "heavy.more"):
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]  # and what is loaded here is removed after the test
    if of_keras:
        monkeypatch.setattr(light_imports, "import_keras", lambda: importlib.import_module(package))
        light_imports.import_keras_for_export(tmp_path / "model.keras")
        assert sys.modules[package].export_onnx == 5
    else:
        assert light_imports.import_exporter() == 5


def test_missing_package_raises(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(light_imports, "LATE", {"absent": ()})
    monkeypatch.setattr(light_imports, "BACKEND", keras_backend())
    for name in ("other_absent", "absent.more"):
        monkeypatch.setattr(light_imports, "import_keras", lambda name=name: importlib.import_module(name))
        with pytest.raises(ModuleNotFoundError, match="absent"):
            light_imports.import_keras_for_export(tmp_path / "model.keras")
