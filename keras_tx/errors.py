"""Errors that the user can act on; the command line prints them as one line."""

from __future__ import annotations

import difflib
import operator
import sys
from collections.abc import Iterable
from typing import Any

# Which extra of the package brings a module that could not be imported.
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
}

OUR_PACKAGES = ("keras_tx", "keras_tx_onnx")


class KerasTxError(Exception):
    """What was wrong, what was expected, and what to do, in one sentence or two."""


class ConfigError(KerasTxError, ValueError):
    """A model, layer or transform was asked for that cannot exist."""


class ExportError(KerasTxError, RuntimeError):
    """The model could not become an ONNX folder; nothing was left under the final name."""


class FolderError(KerasTxError, ValueError):
    """A folder is not a sound export: damaged, incomplete, or pointing outside itself."""


class ImageError(KerasTxError, ValueError):
    """An image could not be read, or is not what the model takes."""


class InputError(KerasTxError, ValueError):
    """What was given to a loaded model is not what its graph takes."""


class ProviderError(KerasTxError, RuntimeError):
    """The execution provider that was asked for cannot run here."""


class RunError(KerasTxError, RuntimeError):
    """A loaded model failed while it ran; it can be used again."""


class TextError(KerasTxError, ValueError):
    """A text is not what the model takes: empty, too long, or no text at all."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The names closest to a mistyped one, ready to end an error message."""
    known = list(known)
    close = [k for k in known if k.lower() == name.lower()] or difflib.get_close_matches(
        name, known, cutoff=0.65
    )
    return (
        f"Did you mean {', '.join(map(repr, close))}?" if close else f"Known: {', '.join(map(repr, known))}."
    )


def true_or_false(name: str, value: Any) -> bool:
    """The value of a switch, or a ConfigError that names it: "no" and 1 are neither True nor False."""
    if isinstance(value, bool) or (type(value).__module__ == "numpy" and str(value.dtype) == "bool"):
        return bool(value)
    raise ConfigError(f"{name} is {value!r}, expected True or False.")


def whole_number(name: str, value: Any) -> int:
    """The value of an argument that counts something, or a ConfigError that names it."""
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ConfigError(f"{name} is {value!r}, expected a whole number, 1 or more.")
    return number


def install_remedy(error: ImportError) -> str | None:
    """The command that installs a missing module; None if no extra contains it."""
    extra = EXTRAS.get((error.name or "").split(".")[0])
    if extra is None or not isinstance(error, ModuleNotFoundError):
        return None
    return f'pip install "keras-tx[{extra}]"'


def user_stacklevel() -> int:
    """The `stacklevel` with which `warnings.warn` names the line of the user's code."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in OUR_PACKAGES:
        level, frame = level + 1, frame.f_back
    return level
