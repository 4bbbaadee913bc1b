"""The lazy public names exist, are documented, and load nothing until they are used."""

from __future__ import annotations

import doctest
import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import keras_tx

ROOT = Path(__file__).parents[1]


def modules_with_examples() -> Iterator[str]:
    """Every module of the two packages with `>>>` in it; the benchmarks have none that users see."""
    for package, parent in (("keras_tx", ROOT), ("keras_tx_onnx", ROOT / "export")):
        for path in sorted((parent / package).rglob("*.py")):
            if ">>> " in path.read_text("utf-8"):
                yield ".".join(path.relative_to(parent).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("name", keras_tx.__all__)
def test_every_public_name_exists_and_is_documented(name: str):
    value = getattr(keras_tx, name)
    assert value is getattr(keras_tx, name)
    assert inspect.getdoc(value)
    assert name in dir(keras_tx)


def test_submodules_are_attributes_without_an_import_of_their_own():
    assert set(keras_tx._MODULES) <= set(dir(keras_tx))
    names = ", ".join(f"keras_tx.{name}.__name__" for name in keras_tx._MODULES)
    script = f"import sys; sys.path[:0] = {sys.path!r}\nimport keras_tx\nprint({names})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"keras_tx.{name}" for name in keras_tx._MODULES]


def test_unknown_name_raises():
    with pytest.raises(AttributeError, match="no attribute 'vitt'"):
        _ = keras_tx.vitt


@pytest.mark.parametrize("name", list(modules_with_examples()))
def test_docstring_examples_run(name: str):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
