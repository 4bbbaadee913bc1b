"""Writes and checks the file of a graph; large weights are in a data file beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ExportError

SMALL, LARGE = 256, 2**20  # bytes: of a weight that is never in a data file, and of one that graphs may share
# Large tensors begin on a page of 16 kB (macOS; Linux has 4), so that the file can be memory-mapped.
PAGES: dict[str, Any] = {"alignment": 16384, "align_threshold": 2**20 - 1}


def write_graph(model: ir.Model, path: Path) -> bool:
    """Writes the graph, with a data file from 64 MB of weights on; returns whether it has one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if _bytes(_weights(model)) < contract.EXTERNAL_DATA_FROM:
        # A graph that was read from a file with a data file would still refer to that.
        ir.save(ir.external_data.load_to_model(model), path)
        return False
    ir.save(model, path, external_data=f"{path.name}_data", **PAGES)
    return True


def write_beside(model: ir.Model, path: Path, other: Path) -> tuple[bool, int]:
    """Writes a graph beside another one; large weights of both are read from the other's data file.

    Returns:
        Whether the graph has a data file of its own, and how many bytes are shared.
    """
    stored = _weights(ir.load(other))
    for name, value in _weights(model).items():
        tensor = stored[name].const_value if name in stored else None
        if isinstance(tensor, ir.ExternalTensor) and _are_equal(tensor, value.const_value):
            value.const_value = tensor
    own = {k: v for k, v in _weights(model).items() if not isinstance(v.const_value, ir.ExternalTensor)}
    shared = _bytes(_weights(model)) - _bytes(own)
    if not shared:
        return write_graph(model, path), 0
    external = _bytes(own) >= contract.EXTERNAL_DATA_FROM
    if external:
        large = [value for value in own.values() if value.const_value.nbytes > SMALL]
        tensors = [value.const_value for value in large]
        data = ir.external_data.convert_tensors_to_external(
            tensors, path.parent, f"{path.name}_data", **PAGES
        )
        for value, tensor in zip(large, data, strict=True):
            value.const_value = tensor
    ir.save(model, path)
    return external, shared


def _weights(model: ir.Model) -> dict[str, Any]:
    """The initializers with their numbers."""
    return {name: value for name, value in model.graph.initializers.items() if value.const_value is not None}


def _bytes(weights: Mapping[str, Any]) -> int:
    return sum(value.const_value.nbytes for value in weights.values())


def _are_equal(one: ir.ExternalTensor, other: Any) -> bool:
    same = (one.dtype, one.shape) == (other.dtype, other.shape) and one.nbytes >= LARGE
    return same and np.array_equal(one.numpy(), other.numpy())


def check_graph(path: Path) -> None:
    """Raises an ExportError if ONNX's checker refuses the file."""
    try:
        onnx.checker.check_model(os.fspath(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(
            f"ONNX's checker refuses {path.name}. Please report this defect of keras-tx: {error}"
        ) from error
