"""For the documentation site: the import of each public name, examples as code, call arguments as a list."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[1]


class OurDocstrings(griffe.Extension):
    def __init__(self) -> None:
        self.exports = list(exports())

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(listed(split_arguments(obj.docstring.value)))
            if line := self.import_line(obj.path):
                obj.docstring.value = f"```python\n{line}\n```\n\n{obj.docstring.value}"

    def import_line(self, path: str) -> str | None:
        home, _, name = path.rpartition(".")
        for package, module, exported in self.exports:
            if exported == name and (home == package or f"{home}.".startswith(f"{module}.")):
                return f"from {package} import {name}"
        return None


def exports() -> list[tuple[str, str, str]]:
    """(package, module, name) of what the packages import or define, the shortest package first."""
    rows = []
    for folder in (ROOT / "keras_tx", ROOT / "export" / "keras_tx_onnx"):
        for path in folder.rglob("__init__.py"):
            package = ".".join(path.parent.relative_to(folder.parent).parts)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    rows += [(package, str(node.module), alias.name) for alias in node.names]
                elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                    rows.append((package, package, node.name))
    return sorted(rows, key=lambda row: (row[0].count("."), row))


def split_arguments(text: str) -> str:
    """Repeats the description of several arguments, "a, b: ...", for each of them."""
    before, heading, after = text.partition("\nArgs:\n")
    section, blank, rest = after.partition("\n\n")
    entry = r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)"

    def repeated(match: re.Match[str]) -> str:
        indent, names, description = match.groups()
        return "\n".join(f"{indent}{name}: {description}" for name in names.split(", "))

    return before + heading + re.sub(entry, repeated, section, flags=re.MULTILINE) + blank + rest


def fenced(text: str) -> str:
    """Puts each run of lines from a ">>>" to an empty line between fences."""
    lines: list[str] = []
    indent = None  # of the current example
    for line in [*text.splitlines(), ""]:
        if indent is None and line.lstrip().startswith(">>>"):
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}```pycon")
        if indent is not None and not line.strip():
            lines.append(f"{indent}```")
            indent = None
        lines.append(line.replace("  # doctest: +SKIP", ""))
    return "\n".join(lines[:-1])


def listed(text: str) -> str:
    """Turns a layer's "Call arguments:" section, which the parser does not know, into a list."""
    before, heading, after = text.partition("Call arguments:\n")
    section, gap, rest = after.partition("\n\n")
    indent = re.match(" *", section)
    start = "" if indent is None else indent[0]
    items = re.sub(rf"^{start}([\w, ]+):", rf"{start}- `\1`:", section, flags=re.MULTILINE)
    return before + heading + (items if start else section) + gap + rest
