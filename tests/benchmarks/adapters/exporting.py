"""An export that is timed, inspected and removed: the base of every exporter."""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.benchmarks.adapters import WRONG_NOTE, Adapter
from tests.memory import begin_peak, peak, resident

SHORT = 20.0  # seconds below which an export is repeated in the same process
BLOCK = re.compile(r"[a-z_]*(?:block|layer)_\d+(?=[/.])")


class Exporter(Adapter):
    """Subclasses load the model, and write it into a folder."""

    path = "model.onnx"  # of the graph inside the folder

    def write(self, folder: Path) -> None:
        raise NotImplementedError

    def export(self) -> dict[str, Any]:
        """Times the first export of the process, and a second one if the first was short."""
        begin_peak()
        before = resident()
        with tempfile.TemporaryDirectory(dir=self.place, prefix="export.") as name:
            seconds = self._timed(Path(name))
            memory = max(0, peak() - before)
            figures, note = _inspected(Path(name), self.path)
        figures |= {"export": seconds, "exporting": memory}
        if seconds < SHORT:
            with tempfile.TemporaryDirectory(dir=self.place, prefix="export.") as name:
                figures["again"] = self._timed(Path(name))
        return {"seconds": seconds, "figures": figures, "note": note}

    def _timed(self, folder: Path) -> float:
        start = time.perf_counter()
        self.write(folder)
        return time.perf_counter() - start


def _inspected(folder: Path, path: str) -> tuple[dict[str, float], str]:
    """Nodes, nodes per block and bytes, and the error of onnxruntime if it refuses the file."""
    import onnx
    import onnxruntime

    graph = onnx.load(folder / path, load_external_data=False).graph
    files = [file for file in (folder / path).parent.iterdir() if file.is_file()]
    blocks = Counter(match[0] for node in graph.node if (match := BLOCK.search(node.name)))
    figures = {"nodes": float(len(graph.node)), "size": float(sum(file.stat().st_size for file in files))}
    if blocks:
        figures["nodes a block"] = float(max(blocks.values()))
    try:
        onnxruntime.InferenceSession(folder / path, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no base class
        message = " ".join(str(error).replace(str(folder / path), path).split())
        return figures, f"{WRONG_NOTE}FILE: onnxruntime refuses the file: {message[:200]}"
    return figures, ""
