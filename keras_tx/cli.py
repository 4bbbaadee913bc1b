"""The command line: finds the command, and turns whatever goes wrong into one line."""

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
from keras_tx.commands import bench, demo, doctor, export, generate, quantize, run, tokens, verify
from keras_tx.errors import KerasTxError, install_remedy

COMMANDS = (demo, tokens, export, quantize, run, generate, verify, bench, doctor)

DESCRIPTION = """\
The shortest way from model.fit to a transformer that runs anywhere ONNX runs. Build and train a model
with Keras 3, export it in seconds to a folder that is verified against Keras, and run that folder with
onnxruntime on a machine that has neither Keras nor TensorFlow.

model families: {families}
"""

EPILOG = """\
examples:
  keras-tx demo                                   train, export and run a small ViT, in about a minute
  keras-tx run digits digits.png                  what the demo's folder says about a picture
  keras-tx tokens poems *.txt --characters        texts become token files to train a GPT on
  keras-tx export flowers.keras flowers           a saved Keras model becomes an ONNX folder
  keras-tx quantize flowers --precision int8      a smaller and faster file beside it
  keras-tx generate poet "To be"                  an exported GPT continues a text
  keras-tx verify flowers                         is the folder still what was exported?
  keras-tx doctor                                 what is installed, and what does not fit together

exit codes: 0 done; 1 verify or doctor found something wrong; 2 an error, told in one line; 130 interrupted.
`keras-tx COMMAND --help` says more about a command.
"""


class UsageError(KerasTxError):
    """The command line itself is wrong."""


class Parser(argparse.ArgumentParser):
    """Leaves the printing of errors to `main`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See {self.prog} --help.")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and gives its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments  # also where the command line is too wrong to be parsed
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            parsed = build_parser().parse_args(arguments)
            code: int = parsed.execute(parsed)
            sys.stdout.flush()
            return code
        except KeyboardInterrupt:
            return 130
        except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
            _close_stdout()
            return 0
        except Exception as error:  # whatever it is, a user is told in one line
            if debug:
                traceback.print_exc()
            print(f"keras-tx: error: {one_line(error)}", file=sys.stderr)
            return 2


def build_parser() -> argparse.ArgumentParser:
    """The parser of the program and of all its commands."""
    from keras_tx.models.families import family_names

    common = Parser(add_help=False)
    common.add_argument("--debug", action="store_true", help="print the traceback of an error too")
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
    """What is wrong and what to do, without a line break."""
    text = " ".join(str(error).split())
    if isinstance(error, KerasTxError):
        return text
    if isinstance(error, ImportError):
        return _missing(error, text)
    if isinstance(error, OSError):
        named = f"{error.filename}: " if error.filename is not None else ""
        said = error.strerror or text or type(error).__name__
        return f"{named}{said}. Check the path, its permissions and the disk's space."
    return (
        f"unexpected {type(error).__name__}: {text or 'without a message'}. "
        "This may be a defect of keras-tx: run it again with --debug and report the traceback."
    )


def _missing(error: ImportError, text: str) -> str:
    remedy = install_remedy(error)
    if remedy is None:
        return f"{text or 'an import failed'}. Something is missing or damaged; see keras-tx doctor."
    return f"{error.name} is not installed, and this command needs it. {remedy}"


def _show_warning(message: Warning | str, *_: Any) -> None:
    print(f"keras-tx: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _close_stdout() -> None:
    """Lets Python's own flush at the end go nowhere, instead of complaining."""
    with contextlib.suppress(OSError, ValueError):  # not a real file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
