"""For the documentation site: examples in docstrings become blocks of code instead of quotations."""

from __future__ import annotations

from typing import Any

import griffe


class DoctestsAsCode(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


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
