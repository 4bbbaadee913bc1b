"""Modules that a package names when it is imported, and that are loaded when it uses them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from keras_tx.commands.late_modules import imported_late

HEAVY = """
from heavy import parts
class Number: pass
def twice(x): return 2 * x
"""
LIGHT = """
import heavy
from heavy import parts, twice
from heavy.more import thrice
"""
LATE = {"heavy": ("parts", "twice"), "heavy.more": ("thrice",)}


@pytest.fixture
def light(tmp_path: Path, monkeypatch) -> Iterator[ModuleType]:
    """A package that was imported while `heavy` is late."""
    (tmp_path / "heavy").mkdir()
    (tmp_path / "heavy" / "__init__.py").write_text(HEAVY)
    (tmp_path / "heavy" / "parts.py").write_text("number = 5\n")
    (tmp_path / "heavy" / "more.py").write_text("def thrice(x): return 3 * x\n")
    (tmp_path / "light.py").write_text(LIGHT)
    monkeypatch.syspath_prepend(tmp_path)
    with imported_late(LATE):
        module = importlib.import_module("light")
    yield module
    for name in loaded():
        del sys.modules[name]


def loaded() -> set[str]:
    return {name for name in sys.modules if name.partition(".")[0] in ("heavy", "light")}


def test_modules_are_loaded_when_they_are_used(light):
    assert loaded() == {"light"}
    assert light.twice(2) == 4
    assert loaded() == {"light", "heavy", "heavy.parts"}
    assert light.thrice(2) == 6
    assert loaded() == {"light", "heavy", "heavy.parts", "heavy.more"}
    assert light.heavy.Number is importlib.import_module("heavy").Number
    assert light.parts.number == 5


def test_attribute_that_is_read_at_the_import_loads_the_module(light, tmp_path: Path):
    (tmp_path / "light.py").write_text("import heavy\nnumber = heavy.Number()\n")
    with imported_late(LATE):
        module = importlib.reload(light)
        assert isinstance(module.number, importlib.import_module("heavy").Number)


def test_loaded_modules_are_not_replaced(light):
    real = importlib.import_module("heavy")
    with imported_late(LATE):
        assert importlib.import_module("heavy") is real
    assert sys.modules["heavy"] is real


def test_missing_module_raises_when_it_is_used(light, tmp_path: Path):
    (tmp_path / "light.py").write_text("import absent\ndef of(): return absent.number\n")
    with imported_late({"absent": ()}):
        module = importlib.reload(light)
    with pytest.raises(ModuleNotFoundError, match="absent"):
        module.of()
