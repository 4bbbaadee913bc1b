"""keras-tx inspect: a page about one input of an exported folder. Needs onnxruntime and matplotlib."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from keras_tx import contract
from keras_tx.commands import run_inputs
from keras_tx.commands.arguments import refuse_existing
from keras_tx.errors import InputError

SUMMARY = "write a page with the prediction and attention of an exported folder for an image or text"
DESCRIPTION = """\
Runs an exported folder on one image or text and writes an HTML page: the answer with its scores, and the
attention of all layers and heads. The page is a single file, which works offline and in print. The command
needs neither Keras nor TensorFlow, only pip install "keras-tx[runtime,inspect]".

The page shows for
  an image       attention over the image, for a layer, a head and a patch that you click; attention rollout
                 with and without residual connections; the attention distance of each head
  a text         the answer, the tokens, and the tokens that each token attends to
  a prompt       also the 10 most probable next tokens
  a source text  of an encoder-decoder: also the generated target and the cross-attention

An INPUT is the path of an image; a text in quotes; the path of a text file, which is read as one text; or -
for standard input.
"""
EPILOG = """\
examples:
  keras-tx inspect flowers rose.jpg --out rose.html
  keras-tx inspect reviews "A very good film." --out film.html
  keras-tx inspect poet "Once upon a" --out next.html              the next tokens of a GPT
  keras-tx inspect italian-english "Buona sera." --out sera.html   translation and cross-attention
  keras-tx inspect squad article.txt --question "Who lives in London?" --out who.html

From Python, keras_tx.inspect.inspect(FOLDER) returns the same numbers as arrays, also for a Keras model.

exit codes: 0 the page is written; 2 an error, and no page is written.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="an exported folder")
    parser.add_argument(
        "input", metavar="INPUT", help="an image, a text in quotes, a text file, or - for standard input"
    )
    parser.add_argument(
        "--out",
        metavar="FILE.html",
        type=Path,
        required=True,
        help="the page to write, in an existing folder",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file if it exists")
    parser.add_argument("--pair", metavar="TEXT", help="the second text, for models of text pairs")
    parser.add_argument("--question", metavar="TEXT", help="the question to answer from the text")
    parser.add_argument(
        "--precision",
        choices=tuple(contract.PRECISIONS),
        help="precision to run (default: fp32, or the only one of the folder)",
    )


def execute(arguments: argparse.Namespace) -> int:
    from keras_tx.inspect.html_page import check_page_path
    from keras_tx.inspect.report import write_report

    check_page_path(arguments.out)
    refuse_existing(arguments.out, arguments.overwrite)
    value = _value(arguments.folder, arguments.input)
    options = {name: getattr(arguments, name) for name in ("pair", "question", "precision")}
    write_report(arguments.folder, value, arguments.out, **options)
    print(f"{arguments.out} is written. Open it in a browser.")
    return 0


def _value(folder: str, source: str) -> Any:
    """The image or text of an argument."""
    from keras_tx.processing.image_file import SUFFIXES
    from keras_tx.runtime import open_folder

    is_image = open_folder(folder).transform is not None
    suffix = Path(source).suffix.lower()
    if os.path.isdir(source) or suffix in run_inputs.TABLES:
        expected = "image" if is_image else "text"
        raise InputError(f"INPUT is {source!r}, a directory or table. Pass one {expected}.")
    if is_image:
        (one,) = run_inputs.pictures([source], None)
        return one.value
    if suffix in SUFFIXES and os.path.isfile(source):
        return source  # the report refuses it with the kind of the model
    (one,) = run_inputs.texts([source], None, True)
    if one.problem is not None:
        raise one.problem
    is_file = source == run_inputs.STDIN or os.path.isfile(source)
    return one.value.removesuffix("\n") if is_file else one.value
