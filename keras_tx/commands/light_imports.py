"""Imports Keras on its lightest backend, and the exporter, without packages that an export does not use."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from keras_tx.commands.framework_logs import import_keras, quiet_start
from keras_tx.commands.late_modules import imported_late

T = TypeVar("T")

# Keras imports them where they are installed: for its scikit-learn classes, figures, and a callback.
UNUSED = ("sklearn", "matplotlib", "matplotlib.pyplot", "requests")
BACKEND, PACKAGES = "numpy", ("jax", "scipy")  # the backend, and what Keras imports for it
# Keras's NumPy backend uses JAX for convolutions, pooling and Fourier transforms, and SciPy to solve
# equations. Keras reads older files with h5py. onnx_ir uses SymPy for sizes that are expressions.
LATE = {
    "jax": ("lax", "monitoring.record_scalar"),
    "scipy.linalg": (),
    "h5py": (),
    "keras.src.backend.jax.math": ("fft", "fft2"),
    "sympy": ("Max", "Min", "Mod", "floor", "sqrt"),
}
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
        _with_late_modules(import_keras)


def import_exporter() -> Any:
    """Imports keras_tx_onnx without messages, and returns `export_onnx`."""
    with quiet_start():
        return _with_late_modules(_exporter)


def _exporter() -> Any:
    from keras_tx_onnx import export_onnx

    return export_onnx


def _with_late_modules(import_: Callable[[], T]) -> T:
    """Calls a function that imports packages, while modules are late; again without that, if it fails.

    A package cannot import submodules of a late module. Other backends than NumPy need some modules at once.
    """
    from keras_tx.environment import keras_backend

    late = LATE if keras_backend() == BACKEND else {}
    try:
        with imported_late(late):
            return import_()
    except ModuleNotFoundError as error:
        if not any(f"{error.name}.".startswith(f"{name}.") for name in late):
            raise
    return import_()


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
