"""Errors of keras_tx. The command line prints their message without a traceback."""

from __future__ import annotations

import difflib
import operator
import sys
from collections.abc import Iterable
from typing import Any

# The extra of the package that installs a module.
EXTRAS = {
    "keras": "cpu",
    "tensorflow": "cpu",
    "sklearn": "cpu",
    "onnx": "cpu",
    "onnx_ir": "cpu",
    "tf2onnx": "cpu",
    "ml_dtypes": "cpu",
    "onnxruntime": "runtime",
    "PIL": "runtime",
    "tokenizers": "runtime",
    "jax": "jax",
    "torch": "torch",
    "sacrebleu": "metrics",
    "matplotlib": "inspect",
    "starlette": "serve",
    "uvicorn": "serve",
    "httptools": "serve",
    "uvloop": "serve",
    "python_multipart": "serve",
    "prometheus_client": "serve",
    "jinja2": "serve",
    "llguidance": "constrained",
    "ray": "ray",
}

OUR_PACKAGES = ("keras_tx", "keras_tx_onnx")


class KerasTxError(Exception):
    """Base class. A message names the wrong value, the expected values and a remedy in two sentences."""


class BusyError(KerasTxError, RuntimeError):
    """A server has no room for another request now: its queue is full."""


class ConfigError(KerasTxError, ValueError):
    """An argument or setting of a model, layer or transform is not valid."""


class ExportError(KerasTxError, RuntimeError):
    """The model cannot be exported. No folder is written to the final path."""


class FolderError(KerasTxError, ValueError):
    """An exported folder is damaged or incomplete, or refers to files outside of it."""


class ImageError(KerasTxError, ValueError):
    """An image cannot be read, or has a format that the model does not support."""


class InputError(KerasTxError, ValueError):
    """The inputs of a loaded model have the wrong name, dtype, shape or values."""


class ProviderError(KerasTxError, RuntimeError):
    """The requested execution provider is not available on this machine."""


class RunError(KerasTxError, RuntimeError):
    """A loaded model failed during inference. It can still be used."""


class TextError(KerasTxError, ValueError):
    """A text is empty, too long or not a string."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns the end of an error message for an unknown name: the most similar names, or all.

    >>> nearest("macros", ["binary", "macro", "micro"])
    "Did you mean 'macro', 'micro'?"
    """
    known = list(known)
    close = [k for k in known if k.lower() == name.lower()] or difflib.get_close_matches(
        name, known, cutoff=0.65
    )
    return (
        f"Did you mean {', '.join(map(repr, close))}?" if close else f"Known: {', '.join(map(repr, known))}."
    )


def true_or_false(name: str, value: Any) -> bool:
    """Returns `value` if it is a boolean, and raises a ConfigError otherwise, also for 0, 1 and strings."""
    if isinstance(value, bool) or (type(value).__module__ == "numpy" and str(value.dtype) == "bool"):
        return bool(value)
    raise ConfigError(f"{name} is {value!r}, expected True or False.")


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """Returns `value` if it is an integer of `least` or more, and raises a ConfigError otherwise."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise ConfigError(f"{name} is {value!r}, expected a whole number, {least} or more.")
    return number


def install_remedy(error: ImportError) -> str | None:
    """Returns the command that installs a missing module, or None if no extra contains it."""
    extra = EXTRAS.get((error.name or "").split(".")[0])
    if extra is None or not isinstance(error, ModuleNotFoundError):
        return None
    return f'pip install "keras-tx[{extra}]"'


def user_stacklevel() -> int:
    """Returns the `stacklevel` with which `warnings.warn` reports the line of the user's code."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in OUR_PACKAGES:
        level, frame = level + 1, frame.f_back
    return level
