"""An export that is timed, looked at and removed: the same for every exporter."""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.memory import forget_peak, peak, resident

SHORT = 20.0  # seconds below which an export is done once more, with the files' pages at hand
BLOCK = re.compile(r"[a-z_]*(?:block|layer)_\d+(?=[/.])")


class Exporting:
    """An export of a model that is in memory.

    Args:
        write: writes into a new folder.
        path: of the file inside it.
    """

    def __init__(self, write: Callable[[Path], Any], place: Path, path: str) -> None:
        self._write, self._place, self._path = write, place, path

    def export(self) -> dict[str, Any]:
        """The first of this process, and once more if it was short; what the file is and whether it loads."""
        forget_peak()  # of loading the model
        before = resident()
        with tempfile.TemporaryDirectory(dir=self._place, prefix="export.") as name:
            first = self._timed(Path(name))
            took = peak() - before
            found = _look(Path(name), self._path)
        figures = {"export": first, "exporting": max(0, took), **found.pop("figures")}
        if first < SHORT:
            with tempfile.TemporaryDirectory(dir=self._place, prefix="export.") as name:
                figures["again"] = self._timed(Path(name))
        return {"seconds": first, "figures": figures, **found}

    def _timed(self, folder: Path) -> float:
        start = time.perf_counter()
        self._write(folder)
        return time.perf_counter() - start


def _look(folder: Path, path: str) -> dict[str, Any]:
    """Nodes, nodes a block, bytes, and what onnxruntime says when it opens the file."""
    import onnx
    import onnxruntime

    graph = onnx.load(folder / path, load_external_data=False).graph
    files = [file for file in (folder / path).parent.iterdir() if file.is_file()]
    blocks = Counter(found[0] for node in graph.node if (found := BLOCK.search(node.name)))
    figures = {"nodes": float(len(graph.node)), "size": float(sum(file.stat().st_size for file in files))}
    if blocks:
        figures["nodes a block"] = float(max(blocks.values()))
    try:
        onnxruntime.InferenceSession(folder / path, providers=["CPUExecutionProvider"])
        said = ""
    except Exception as error:  # of whatever kind: the file is no good
        why = " ".join(str(error).replace(str(folder / path), path).split())
        said = f"onnxruntime refuses the file: {why[:200]}"
    return {"figures": figures, "said": said}
