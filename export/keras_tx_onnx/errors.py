"""What passes between the tiers of the exporter."""

from __future__ import annotations

import re
import textwrap

from keras_tx.errors import ExportError


class NotLowered(ExportError):
    """This tier cannot write the layer; the next may. A refusal of the call itself is a plain ExportError.

    `short` is the cause alone, where the message has several lines.
    """

    def __init__(self, message: str, short: str = ""):
        super().__init__(message)
        self.short = short or message


def one_line(error: Exception) -> str:
    """What an error says, in one line: Keras wraps what a layer raised in a few of its own."""
    wrapped = str(error).startswith("Exception encountered when calling")
    if isinstance(error, NotLowered) and not wrapped:
        return error.short
    text = re.sub(r"\x1b\[\d*m", "", str(error)).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and wrapped:
        lines = lines[1:]
    said = textwrap.shorten(lines[0], 300, placeholder=" ...") if lines else ""
    return said if isinstance(error, NotLowered) else f"{type(error).__name__}: {said}"


class Stateful(ExportError):
    """The model's outputs depend on a variable that calls of the model change."""
