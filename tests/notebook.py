"""Executes notebooks without Jupyter, and stores their outputs:

python -m tests.notebook examples/vit_digits.ipynb ...
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import io
import itertools
import json
import os
import re
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

KINDS = {"figure", "table", "text"}


@dataclasses.dataclass(frozen=True)
class CellRun:
    """One executed code cell."""

    source: str
    text: str  # printed text, progress bars included
    figures: list[np.ndarray]  # (height, width, 3) uint8, as Jupyter would show them

    @property
    def kinds(self) -> set[str]:
        return kinds_of(self.outputs())

    def outputs(self) -> list[dict[str, Any]]:
        """In the format of notebook files."""
        outputs: list[dict[str, Any]] = []
        if text := as_on_terminal(self.text):
            outputs.append(
                {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
            )
        for figure in self.figures:
            data = {"image/png": encode(figure), "text/plain": ["<Figure>"]}
            outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
        return outputs


@dataclasses.dataclass(frozen=True)
class NotebookRun:
    cells: list[CellRun]
    names: dict[str, Any]  # the notebook's variables

    def cell(self, part: str) -> CellRun:
        """The only cell whose source contains `part`."""
        (cell,) = (cell for cell in self.cells if part in cell.source)
        return cell


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def code_cells_of(notebook: Path) -> list[dict[str, Any]]:
    return [cell for cell in cells_of(notebook) if cell["cell_type"] == "code"]


def code_of(notebook: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in code_cells_of(notebook)]


def is_parameters(source: str) -> bool:
    return re.match(r"[A-Z][A-Z0-9_]* = ", source) is not None


def kinds_of(outputs: list[dict[str, Any]]) -> set[str]:
    """Which of KINDS the outputs of one cell are."""
    kinds = set()
    for output in outputs:
        if output["output_type"] == "stream":
            kinds.add("table" if has_table("".join(output["text"])) else "text")
        else:
            kinds.add("figure" if "image/png" in output["data"] else "text")
    return kinds


def has_table(text: str) -> bool:
    """Whether two lines in a row have columns separated by at least two spaces."""
    rows = [bool(re.search(r"\S {2,}\S", line)) for line in text.splitlines()]
    return any(first and second for first, second in itertools.pairwise(rows))


def as_on_terminal(text: str) -> str:
    """The text after carriage returns, backspaces and escape sequences have taken effect."""
    text = re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", text)
    lines = []
    for line in text.split("\n"):
        shown: list[str] = []
        column = 0
        for character in line:
            if character == "\r":
                column = 0
            elif character == "\b":
                column = max(column - 1, 0)
            else:
                shown[column : column + 1] = [character]
                column += 1
        lines.append("".join(shown).rstrip())
    return "\n".join(lines)


def encode(figure: np.ndarray) -> str:
    """A PNG file with at most 256 colors, in base64. Fewer colors change small areas."""
    file = io.BytesIO()
    Image.fromarray(figure).quantize(256, kmeans=1).save(file, format="png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def execute(notebook: Path, parameters: str | None = None) -> NotebookRun:
    """Executes the code cells in order, in one namespace, in the current directory.

    Args:
        notebook: Its cells are plain Python.
        parameters: Replaces the first cell that begins with a name in capitals, such as "EPOCHS = ". By
            default that cell runs unchanged.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    module = types.ModuleType("__main__")  # dataclasses look up the module of a class by name
    names = module.__dict__
    cells = []
    main, sys.modules["__main__"] = sys.modules["__main__"], module
    try:
        for index, source in enumerate(code_of(notebook)):
            if parameters is not None and is_parameters(source):
                source, parameters = parameters, None
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(source, f"{notebook.name}, code cell {index}", "exec", dont_inherit=True), names)
            cells.append(
                CellRun(source, printed.getvalue(), [render(pyplot, n) for n in pyplot.get_fignums()])
            )
            pyplot.close("all")
    finally:
        sys.modules["__main__"] = main
        pyplot.close("all")
    return NotebookRun(cells, names)


def render(pyplot: Any, number: int) -> np.ndarray:
    file = io.BytesIO()
    pyplot.figure(number).savefig(file, format="png", bbox_inches="tight")  # as Jupyter does
    return np.array(Image.open(file).convert("RGB"))


def ink(figure: np.ndarray) -> float:
    """The share of pixels that differ from the background."""
    return float((figure != figure[0, 0]).any(axis=-1).mean())


def store_outputs(notebook: Path, run: NotebookRun, folder: str) -> None:
    """Writes the outputs of a run in `folder` into the notebook file, with relative paths."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    for number, (cell, cell_run) in enumerate(zip(code, run.cells, strict=True), start=1):
        cell["execution_count"] = number
        text = cell_run.text.replace(f"{folder}{os.sep}", "")
        cell["outputs"] = dataclasses.replace(cell_run, text=text).outputs()
    notebook.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    for notebook in [Path(name).resolve() for name in sys.argv[1:]]:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            store_outputs(notebook, execute(notebook), os.getcwd())
            os.chdir(notebook.parent)
        print(f"{notebook.name}: {notebook.stat().st_size:,} bytes", file=sys.__stdout__)


if __name__ == "__main__":
    main()
