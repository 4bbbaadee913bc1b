"""Errors inside the exporter, and their texts in one line."""

from __future__ import annotations

import re
import textwrap

from keras_tx.errors import ExportError


class NotLowered(ExportError):
    """A layer is not supported by one tier of the exporter, and the next tier is tried.

    A call that no tier can support raises a plain ExportError.

    Attributes:
        short: the cause in one line, for messages of several lines.
    """

    def __init__(self, message: str, short: str = ""):
        super().__init__(message)
        self.short = short or message


def one_line(error: Exception) -> str:
    """The message of an error in one line, without the lines that Keras adds to errors of layers."""
    wrapped = str(error).startswith("Exception encountered when calling")
    if isinstance(error, NotLowered) and not wrapped:
        return error.short
    text = re.sub(r"\x1b\[\d*m", "", str(error)).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and wrapped:
        lines = lines[1:]
    message = textwrap.shorten(lines[0], 300, placeholder=" ...") if lines else ""
    return message if isinstance(error, NotLowered) else f"{type(error).__name__}: {message}"


class Stateful(ExportError):
    """The model's outputs depend on a variable that calls of the model change."""
