"""What several commands read from their arguments."""

from __future__ import annotations

import argparse
from pathlib import Path

from keras_tx.errors import ExportError


def whole(text: str) -> int:
    """A whole number, 1 or more."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return number


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Says so before anything heavy is loaded; the export itself looks again."""
    if path.exists() and not overwrite:
        raise ExportError(f"{path} exists. Add --overwrite to replace it, or choose another name.")
