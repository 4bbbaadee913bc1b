"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from keras_tx import contract
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


def add_session(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `load`: provider, threads and precision."""
    parser.add_argument(
        "--provider",
        metavar="NAME",
        default="auto",
        help="cpu, cuda, tensorrt, openvino, coreml or directml; auto (default): CUDA if it works, else cpu",
    )
    parser.add_argument(
        "--threads", type=whole, default=None, metavar="N", help="threads of one operation on the CPU"
    )
    parser.add_argument(
        "--precision",
        choices=tuple(contract.PRECISIONS),
        help="precision of the graph to run (default: fp32, or the only one)",
    )


def session_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of `load` that were passed."""
    return {name: getattr(arguments, name) for name in ("provider", "threads", "precision")}


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Says so before anything heavy is loaded; the export itself looks again."""
    if path.exists() and not overwrite:
        raise ExportError(f"{path} exists. Add --overwrite to replace it, or choose another name.")
