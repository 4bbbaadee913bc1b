"""Writes and checks the file of a graph; large weights are in a data file beside it."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ExportError


def write_graph(model: ir.Model, path: Path) -> bool:
    """Writes the graph, with a data file from 64 MB of weights on; returns whether it has one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
    if weights < contract.EXTERNAL_DATA_FROM:
        # A graph that was read from a file with a data file would still refer to that.
        ir.save(ir.external_data.load_to_model(model), path)
        return False
    # Large tensors begin on a page of 16 kB (macOS; Linux has 4), so that the file can be memory-mapped.
    ir.save(model, path, external_data=f"{path.name}_data", alignment=16384, align_threshold=2**20 - 1)
    return True


def check_graph(path: Path) -> None:
    """Raises an ExportError if ONNX's checker refuses the file."""
    try:
        onnx.checker.check_model(os.fspath(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(
            f"ONNX's checker refuses {path.name}. Please report this defect of keras-tx: {error}"
        ) from error
