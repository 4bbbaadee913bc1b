"""The command line: runs a command, and prints an error as one line."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import keras_tx
from keras_tx.commands import (
    bench,
    demo,
    doctor,
    export,
    generate,
    inspect,
    plan,
    quantize,
    run,
    serve,
    tokens,
    train,
    triton,
    verify,
)
from keras_tx.commands.huge_pages import restart_with_huge_pages
from keras_tx.errors import KerasTxError, install_remedy

COMMANDS = (
    *(demo, train, tokens, export, quantize, run, generate, serve, triton),
    *(inspect, verify, bench, plan, doctor),
)

DESCRIPTION = """\
From model.fit to a transformer that runs anywhere ONNX runs. Build and train a model with Keras 3, export it
in seconds to a folder that is verified against Keras, and run that folder with onnxruntime on a machine
without Keras and TensorFlow.

model families: {families}
"""

EPILOG = """\
examples:
  keras-tx demo                                 train, export and run a small ViT in about a minute
  keras-tx run digits digits.png                classify an image with the demo's folder
  keras-tx train reviews.csv --out reviews      train on a table of texts, export, write a report
  keras-tx tokens poems *.txt --characters      convert texts to token files for training a GPT
  keras-tx export flowers.keras flowers         export a saved Keras model to an ONNX folder
  keras-tx quantize flowers --precision int8    add a smaller and faster file to the folder
  keras-tx generate poet "To be"                continue a text with an exported GPT
  keras-tx serve flowers poet                   answer HTTP requests, also those of OpenAI's clients
  keras-tx triton flowers models                write a model repository for NVIDIA Triton
  keras-tx inspect flowers a.jpg --out a.html   show the prediction and the attention
  keras-tx verify flowers                       check that the folder is unchanged and runs
  keras-tx bench flowers                        measure its speed and recommend a setting
  keras-tx plan --help                          memory, time and price of a training on several devices
  keras-tx doctor                               show installed versions and conflicts

exit codes: 0 success; 1 verify, bench, plan or doctor reports a failure; 2 an error; 130 interrupted.
`keras-tx COMMAND --help` describes a command.
"""


class UsageError(KerasTxError):
    """Invalid command-line arguments."""


class Parser(argparse.ArgumentParser):
    """Raises errors instead of printing them; `main` prints them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See {self.prog} --help.")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments  # even if the command line cannot be parsed
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            parsed = build_parser().parse_args(arguments)
            if argv is None and parsed.execute is serve.execute:  # a process of its own, which lasts
                restart_with_huge_pages()
            code: int = parsed.execute(parsed)
            sys.stdout.flush()
            return code
        except KeyboardInterrupt:
            return 130
        except BrokenPipeError:  # the reader, such as `head`, has ended
            _close_stdout()
            return 0
        except Exception as error:  # of any kind: users get one line
            if debug:
                traceback.print_exc()
            print(f"keras-tx: error: {one_line(error)}", file=sys.stderr)
            return 2


def build_parser() -> argparse.ArgumentParser:
    """The parser of the program and of all its commands."""
    from keras_tx.models.families import family_names

    common = Parser(add_help=False)
    common.add_argument("--debug", action="store_true", help="also print the traceback of an error")
    description = DESCRIPTION.format(families=", ".join(family_names()))
    parser = Parser(prog="keras-tx", description=description, epilog=EPILOG, parents=[common])
    parser.add_argument("--version", action="version", version=f"keras-tx {keras_tx.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2]
        child = commands.add_parser(
            name,
            help=command.SUMMARY,
            description=command.DESCRIPTION,
            epilog=command.EPILOG,
            parents=[common],
        )
        command.add_arguments(child)
        child.set_defaults(execute=command.execute)
    return parser


def one_line(error: Exception) -> str:
    """The message of an error without line breaks."""
    text = " ".join(str(error).split())
    if isinstance(error, KerasTxError):
        return text
    if isinstance(error, ImportError):
        return _missing(error, text)
    if isinstance(error, OSError):
        named = f"{error.filename}: " if error.filename is not None else ""
        reason = error.strerror or text or type(error).__name__
        return f"{named}{reason}. Check the path, its permissions and the disk space."
    return (
        f"unexpected {type(error).__name__}: {text or 'no message'}. "
        "This may be a bug in keras-tx: run it again with --debug and report the traceback."
    )


def _missing(error: ImportError, text: str) -> str:
    remedy = install_remedy(error)
    if remedy is None:
        return f"{text or 'an import failed'}. Run keras-tx doctor to check the installation."
    return f"{error.name} is not installed, but this command requires it. {remedy}"


def _show_warning(message: Warning | str, *_: Any) -> None:
    print(f"keras-tx: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _close_stdout() -> None:
    """Redirects standard output, so that Python's flush at exit does not fail."""
    with contextlib.suppress(OSError, ValueError):  # not a real file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
