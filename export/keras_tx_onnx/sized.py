"""Ranges and fills whose length is the size of an axis, as operations of a graph.

keras.ops.arange and its like compute at once, even while a layer is opened: what they make of a sample size
would be frozen. While a layer is opened they are operations instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import keras.src.ops
import numpy as np


class Counted(keras.Operation):
    """arange as an operation. `anchor` is any tensor: an operation without one is not part of a graph."""

    def __init__(self, dtype: str):
        super().__init__()
        self.dtype = dtype

    def call(self, anchor: Any, start: Any, stop: Any, step: Any) -> Any:
        return keras.ops.arange(start, stop, step, dtype=self.dtype)

    def compute_output_spec(self, anchor: Any, start: Any, stop: Any, step: Any) -> keras.KerasTensor:
        return keras.KerasTensor((len(np.arange(start, stop, step)),), dtype=self.dtype)


class Filled(keras.Operation):
    """zeros, ones and full as an operation."""

    def __init__(self, shape: tuple[int, ...], fill: float, dtype: str):
        super().__init__()
        self.shape = shape
        self.fill = fill
        self.dtype = dtype

    def call(self, anchor: Any) -> Any:
        return keras.ops.full(self.shape, self.fill, dtype=self.dtype)

    def compute_output_spec(self, anchor: Any) -> keras.KerasTensor:
        return keras.KerasTensor(self.shape, dtype=self.dtype)


_as_usual: list[bool] = []


@contextmanager
def as_usual() -> Iterator[None]:
    """Within, arange and its like compute at once again, as they must where a backend runs the code."""
    _as_usual.append(True)
    try:
        yield
    finally:
        _as_usual.pop()


def is_usual() -> bool:
    """Whether `as_usual` is in force."""
    return bool(_as_usual)


@contextmanager
def made_in_the_graph(anchor: keras.KerasTensor, plain: bool = True) -> Iterator[None]:
    """Within, `plain` tells code that asks for the backend of one that it has nothing special for, and
    keras.ops.arange, zeros, ones, empty and full give Keras tensors."""

    usual = {"arange": keras.ops.arange, "full": keras.ops.full, "einsum": keras.ops.einsum}

    def arange(start: Any, stop: Any = None, step: Any = None, dtype: Any = None) -> Any:
        if _as_usual:
            return usual["arange"](start, stop, step, dtype)
        if stop is None:
            start, stop = 0, start
        step = 1 if step is None else step
        if dtype is None:
            floating = any(isinstance(x, (float, np.floating)) for x in (start, stop, step))
            dtype = keras.config.floatx() if floating else "int32"
        return Counted(keras.backend.standardize_dtype(dtype)).symbolic_call(anchor, start, stop, step)

    def full(shape: Any, fill_value: Any, dtype: Any = None) -> Any:
        if _as_usual:
            return usual["full"](shape, fill_value, dtype)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        dtype = keras.backend.standardize_dtype(dtype)
        return Filled(shape, fill_value, dtype).symbolic_call(anchor)

    def einsum(subscripts: str, *operands: Any, **options: Any) -> Any:
        # On Keras tensors Keras takes a capital letter for a number.
        small = subscripts.lower()
        subscripts = small if len(set(small)) == len(set(subscripts)) else subscripts
        return usual["einsum"](subscripts, *operands, **options)

    replaced = {
        "einsum": einsum,
        "arange": arange,
        "full": full,
        "zeros": lambda shape, dtype=None: full(shape, 0, dtype),
        "ones": lambda shape, dtype=None: full(shape, 1, dtype),
        "ndim": lambda x: len(x.shape),
        "empty": lambda shape, dtype=None: full(shape, 0, dtype),
    }
    get_item = keras.KerasTensor.__getitem__
    # keras.ops is what models import, keras.src.ops what Keras's own layers do.
    places: list[tuple[Any, str]] = [(ops, name) for ops in (keras.ops, keras.src.ops) for name in replaced]
    places.append((keras.KerasTensor, "__getitem__"))

    # A Keras tensor refuses the plain slice or None that backends take, and TensorFlow's list of slices.
    def at(x: Any, key: Any) -> Any:
        if isinstance(key, list) and any(k is None or isinstance(k, slice) for k in key):
            key = tuple(key)
        return get_item(x, (key,) if key is None or isinstance(key, slice) else key)

    replaced["__getitem__"] = at
    if plain:
        backend = keras.config.backend
        replaced["backend"] = lambda: backend() if _as_usual else "numpy"
        places.append((keras.config, "backend"))
    kept = [getattr(module, name) for module, name in places]
    try:
        for module, name in places:
            setattr(module, name, replaced[name])
        yield
    finally:
        for (module, name), function in zip(places, kept, strict=True):
            setattr(module, name, function)
