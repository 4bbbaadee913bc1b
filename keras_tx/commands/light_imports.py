"""Imports Keras for an export: on its lightest backend, and without packages that an export does not use."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keras_tx.commands.framework_logs import import_keras

# Keras imports them where they are installed: for its scikit-learn classes, and for figures.
UNUSED = ("sklearn", "matplotlib", "matplotlib.pyplot")
BACKEND, PACKAGES = "numpy", ("jax", "scipy")  # the backend, and what Keras imports for it
# Threads of NumPy's OpenBLAS spin while they wait: on a busy machine, two of them were 4 times slower.
THREADS = {"OPENBLAS_NUM_THREADS": "1"}


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """A context for imports, which leave no garbage: looking for it takes a fifth of their time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def import_keras_for_export(source: Path) -> None:
    """Imports Keras for the export of a model, unless it is imported already.

    A folder of Hugging Face is exported on Keras's NumPy backend if its packages are installed, KERAS_BACKEND
    selects none, and keras.json has no other than TensorFlow, which Keras writes there by itself. Other
    models may have layers that need TensorFlow.

    Args:
        source: the model of the command: a folder, a file or a name.
    """
    if source.is_dir() and "keras" not in sys.modules:
        _select_lightest_backend()
    with _without(UNUSED):
        import_keras()


def _select_lightest_backend() -> None:
    from keras_tx.environment import keras_backend

    is_default = not os.environ.get("KERAS_BACKEND") and keras_backend() == "tensorflow"
    if is_default and all(map(importlib.util.find_spec, PACKAGES)):
        os.environ["KERAS_BACKEND"] = BACKEND
        for name, value in THREADS.items():
            os.environ.setdefault(name, value)


@contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    """A context in which packages that are not imported yet cannot be imported."""
    absent = [name for name in names if name not in sys.modules]
    for name in absent:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
