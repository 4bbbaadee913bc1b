"""Arguments of several commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_tx import contract
from keras_tx.errors import ExportError

if TYPE_CHECKING:
    from keras_tx.runtime import LoadedModel


def whole(text: str) -> int:
    """Parses a whole number, 1 or more."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return number


def add_session(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Adds --provider, --threads and --precision."""
    parser.add_argument(
        "--provider",
        metavar="NAME",
        default="auto",
        help="cpu, cuda, tensorrt, openvino, coreml or directml; auto selects CUDA if it works, else the CPU "
        "(default: auto)",
    )
    parser.add_argument(
        "--threads",
        type=whole,
        default=None,
        metavar="N",
        help="threads per operation (default: all cores)",
    )
    parser.add_argument(
        "--precision",
        choices=tuple(contract.PRECISIONS),
        help="precision to run (default: fp32, or the only one of the folder)",
    )


def add_adapter(parser: argparse.ArgumentParser) -> None:
    """Adds --adapter."""
    parser.add_argument(
        "--adapter", metavar="NAME", help="an adapter that is stored in FOLDER (default: the base model)"
    )


@contextmanager
def loaded(arguments: argparse.Namespace) -> Iterator[LoadedModel]:
    """The model of FOLDER, with the options of `add_session` and `add_adapter`."""
    from keras_tx.runtime import load

    with load(arguments.folder, **session_options(arguments)) as model:
        yield model if arguments.adapter is None else model.with_adapter(arguments.adapter)


def session_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of `load` from the arguments of `add_session`."""
    return {name: getattr(arguments, name) for name in ("provider", "threads", "precision")}


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Raises an ExportError for an existing path before slow imports; the export checks again."""
    if path.exists() and not overwrite:
        raise ExportError(f"{path} exists. Add --overwrite to replace it, or choose another name.")
