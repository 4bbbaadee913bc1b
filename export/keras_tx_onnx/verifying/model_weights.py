"""The weights of a Keras model as those of its graphs in onnxruntime, so that memory holds them once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from keras_tx.errors import ExportError
from keras_tx.runtime.external_data import ExternalTensor, external_tensors
from keras_tx.runtime.shared_weights import SharedWeights
from keras_tx.weights.weight_values import array_of
from keras_tx_onnx.graph.builder import SOURCE

LEAST = 2**20  # bytes of a weight that is worth sharing
PART = 2**23  # bytes of the file that are in memory for the comparison


def weights_in_memory(graph: ir.Graph, path: Path) -> SharedWeights:
    """The large weights that the data file of a graph has exactly as Keras has them in memory.

    The file is compared with them byte for byte, because a session with these weights does not read it.

    Args:
        graph: the graph before it was written.
        path: the file of the graph.

    Raises:
        ExportError: if the data file has other bytes.
    """
    arrays = {}
    for tensor in external_tensors(path):
        array = _array(graph, tensor)
        if array is not None:
            _check_file(path.parent / tensor.location, tensor, array)
            arrays[tensor.name] = array
    return SharedWeights(arrays, [])


def common_weights(weights: SharedWeights, path: Path, other: Path) -> SharedWeights:
    """The weights in memory that another graph reads from the same places of the data file.

    Args:
        weights: those of the first graph, which were compared with the file.
        path: the file of the first graph.
        other: the file of the other graph, beside it.
    """
    tensors = set(external_tensors(path))
    common = [tensor.name for tensor in external_tensors(other) if tensor in tensors]
    return SharedWeights({name: weights.arrays[name] for name in common if name in weights.arrays}, [])


def _array(graph: ir.Graph, tensor: ExternalTensor) -> np.ndarray | None:
    """The values of a weight in the memory of its variable; None if the file has computed ones."""
    value = graph.initializers.get(tensor.name)
    source = None if value is None else value.meta.get(SOURCE)
    if value is None or source is None or len(source.variables) != 1:
        return None
    array = source.read()
    same = value.dtype is not None and array.dtype == value.dtype.numpy() and array.shape == tensor.shape
    if not same or array.nbytes < LEAST or not array.flags.c_contiguous:
        return None
    return array if np.may_share_memory(array, array_of(source.variables[0])) else None


def _check_file(path: Path, tensor: ExternalTensor, array: np.ndarray) -> None:
    expected, part = array.reshape(-1).view("uint8"), np.empty(PART, "uint8")
    with path.open("rb", buffering=0) as file:
        file.seek(tensor.offset)
        for start in range(0, len(expected), PART):
            count = min(PART, len(expected) - start)
            if file.readinto(part[:count].data) != count or not np.array_equal(
                part[:count], expected[start : start + count]
            ):
                raise ExportError(
                    f"{path.name} does not have the values of weight {tensor.name!r} that were written. "
                    "Check the disk, and export again."
                )
