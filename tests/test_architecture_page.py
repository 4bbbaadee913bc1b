"""docs/architecture.md names files and functions that exist, and the drawings agree with their sources."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.documentation_drawings import DRAWINGS, PICTURES, exporter_rooms, rooms

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def definitions(file: Path) -> set[str]:
    """Functions and classes of a module, and methods as Class.method."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {
                f"{node.name}.{method.name}"
                for method in node.body
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return names


def test_paths_exist():
    paths = re.findall(r"`([\w./]+/[\w./]*)`", PAGE)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_named_functions_are_in_their_files():
    rows = re.findall(r"^\| .* \| `([\w/]+\.py)` \| (.*) \|$", PAGE, re.MULTILINE)
    missing = {
        f"{file}: {name}"
        for file, names in rows
        for name in re.findall(r"`([\w.]+)`", names)
        if name not in definitions(ROOT / file)
    }
    assert rows and missing == set()


def test_purpose_of_every_room_is_described():
    tables = re.findall(r"\| room \| purpose \|\n(.*?)\n\n", PAGE, re.DOTALL)
    described = {
        name for table in tables for row in table.splitlines() for name in re.findall(r"`(\w+)`", row)
    }
    assert set(rooms()) | set(exporter_rooms()) <= described


@pytest.mark.parametrize("name", DRAWINGS)
def test_drawing_agrees_with_its_source(name):
    """python -m tests.documentation_drawings writes it anew."""
    assert (PICTURES / name).read_bytes() == DRAWINGS[name]()
