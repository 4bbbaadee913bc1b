"""Folders for an execution target, which is in their names: "vit_for_webgpu"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keras_tx.kernels import versions
from keras_tx.runtime.node_placement import predict, read_graph


def of(name: str) -> str | None:
    """The target of a folder."""
    return name.rpartition("_for_")[2] if "_for_" in name else None


def placement(graph: Path, target: str) -> dict[str, Any]:
    """What the newest onnxruntime is predicted to run on the CPU, by operator, and the nodes of sizes."""
    content = read_graph(graph)
    return {
        "on_cpu": dict(predict(content, target, versions()[-1]).fallback),
        "sizes": [node.name for node in content.size_nodes()],
    }
