"""Executes a notebook without Jupyter, and keeps what its cells showed: texts and pictures."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


@dataclasses.dataclass(frozen=True)
class Ran:
    """One code cell."""

    source: str
    text: str  # what it printed, progress bars included
    pictures: list[np.ndarray]  # (height, width, 3) uint8, what Jupyter would show below it


@dataclasses.dataclass(frozen=True)
class Executed:
    cells: list[Ran]
    names: dict[str, Any]  # the notebook's variables

    @property
    def text(self) -> str:
        return "\n".join(cell.text for cell in self.cells)

    def cell(self, part: str) -> Ran:
        """The one whose source has this in it."""
        (found,) = (cell for cell in self.cells if part in cell.source)
        return found


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def code_of(notebook: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in cells_of(notebook) if cell["cell_type"] == "code"]


def execute(notebook: Path, parameters: str | None = None) -> Executed:
    """Its cells, one after another in one namespace, in the folder that the process is in.

    Args:
        notebook: whose cells are plain Python.
        parameters: in place of the one cell that begins with "EPOCHS = "; by default it stays.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    module = types.ModuleType("__main__")  # of its own: dataclasses and pickles look a name's module up
    names = module.__dict__
    cells = []
    kept, sys.modules["__main__"] = sys.modules["__main__"], module
    try:
        for index, source in enumerate(code_of(notebook)):
            if parameters is not None and source.startswith("EPOCHS = "):
                source = parameters
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(source, f"{notebook.name}, code cell {index}", "exec", dont_inherit=True), names)
            cells.append(Ran(source, printed.getvalue(), [_drawn(pyplot, n) for n in pyplot.get_fignums()]))
            pyplot.close("all")
    finally:
        sys.modules["__main__"] = kept
        pyplot.close("all")
    return Executed(cells, names)


def _drawn(pyplot: Any, number: int) -> np.ndarray:
    file = io.BytesIO()
    pyplot.figure(number).savefig(file, format="png", bbox_inches="tight")  # as Jupyter does
    return np.array(Image.open(file).convert("RGB"))


def ink(picture: np.ndarray) -> float:
    """The share of a picture that is not its background."""
    return float((picture != picture[0, 0]).any(axis=-1).mean())


def save_pictures(executed: Executed, folder: Path, name: str) -> list[Path]:
    """As PNG files, to be looked at."""
    pictures = [picture for cell in executed.cells for picture in cell.pictures]
    paths = [folder / f"{name}_{index}.png" for index in range(len(pictures))]
    for path, picture in zip(paths, pictures, strict=True):
        Image.fromarray(picture).save(path)
    return paths
