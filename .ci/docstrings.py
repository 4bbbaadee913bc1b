"""For the documentation site: examples in docstrings become blocks of code, call arguments a list."""

from __future__ import annotations

import re
from typing import Any

import griffe


class OurDocstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = listed(fenced(obj.docstring.value))


def fenced(text: str) -> str:
    """Each run of lines from a ">>>" up to an empty line, between fences."""
    lines: list[str] = []
    indent = None  # of the example that the line is in
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
    """The arguments of a layer's call, which the parser of docstrings does not know as arguments."""
    before, heading, after = text.partition("Call arguments:\n")
    section, gap, rest = after.partition("\n\n")
    indent = re.match(" *", section)
    start = "" if indent is None else indent[0]
    items = re.sub(rf"^{start}([\w, ]+):", rf"{start}- `\1`:", section, flags=re.MULTILINE)
    return before + heading + (items if start else section) + gap + rest
