"""The processes that train one model together, each with its part of every batch; JAX only."""

from __future__ import annotations

import io
from typing import IO, Any

import keras
import numpy as np


def process_count() -> int:
    """Returns the number of processes, 1 without `keras.distribution.initialize`."""
    if keras.backend.backend() != "jax":
        return 1
    import jax

    return jax.process_count()


def process_index() -> int:
    """Returns the number of this process, from 0."""
    if keras.backend.backend() != "jax":
        return 0
    import jax

    return jax.process_index()


def gather(arrays: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Returns the arrays of each process; all have to call this."""
    if process_count() == 1:
        return [arrays]
    from jax.experimental.multihost_utils import process_allgather

    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    content = np.frombuffer(file.getvalue(), "uint8")
    sizes = np.ravel(process_allgather(np.array([len(content)])))
    padded = np.pad(content, (0, sizes.max() - len(content)))
    rows = np.asarray(process_allgather(padded))
    return [read_arrays(io.BytesIO(row[:size].tobytes())) for row, size in zip(rows, sizes, strict=True)]


def read_arrays(file: IO[bytes]) -> dict[str, np.ndarray]:
    """Returns all arrays of an open npz file."""
    with np.load(file, allow_pickle=False) as saved:
        return {name: saved[name] for name in saved.files}


def whole_array(variable: Any) -> np.ndarray:
    """Returns the value of a variable, of which other processes may have parts; all have to call this."""
    value = variable.value
    if process_count() > 1 and not (value.is_fully_addressable or value.is_fully_replicated):
        from jax.experimental.multihost_utils import process_allgather

        return np.asarray(process_allgather(value, tiled=True))
    return keras.ops.convert_to_numpy(variable)
