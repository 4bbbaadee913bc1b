"""keras-tx run: what an exported folder says about images or texts. Needs onnxruntime, not Keras."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from keras_tx.commands import run_inputs, run_text
from keras_tx.commands.arguments import add_session, session_options, whole
from keras_tx.commands.run_inputs import Input
from keras_tx.commands.terminal import bar, printable
from keras_tx.errors import ImageError, InputError, KerasTxError, TextError

if TYPE_CHECKING:
    from keras_tx.runtime import LoadedModel

SUMMARY = "classify, embed or answer with an exported folder: images or texts"
DESCRIPTION = """\
Loads an exported folder with onnxruntime and runs it on images or texts, whichever it was made for. Needs
neither Keras nor TensorFlow, only pip install "keras-tx[runtime]". A classifier answers with its best labels
and their scores; a model without a classifier with an embedding: its shape here, its numbers with --json. In
texts it also finds entities, fills masks, and answers a --question. An image or text that cannot be read is
named on standard error, the others are still run, and the exit code is then 2.

An INPUT of an image model is
  FILE             a picture: JPEG, PNG, WebP, TIFF, BMP or GIF
  DIRECTORY        its pictures, in the order of their names
  FILE.csv, .tsv   the pictures whose paths are in --column, relative to the table's directory
  -                a picture from standard input
and of a text model
  TEXT             a text in quotes
  FILE             one text per line; with --whole-files the file is one text
  DIRECTORY        its files that end in .txt, each as a FILE
  FILE.csv, .tsv   the texts in --column, under the header of the first line
  -                standard input, as a FILE
"""
EPILOG = """\
examples:
  keras-tx run flowers rose.jpg
  keras-tx run flowers photos --top-k 1           every picture of a directory
  keras-tx run flowers - < rose.jpg
  keras-tx run flowers rose.jpg --provider cuda   on the GPU, or an error that says what is missing
  keras-tx run flowers rose.jpg --json            one object a line: {"image": ..., "predictions": [...]}
  keras-tx run features rose.jpg --json           {"image": ..., "shape": [768], "embedding": [...]}
  keras-tx run reviews "A very good film."
  keras-tx run reviews reviews.txt                one review per line
  keras-tx run reviews reviews.csv --column text --json > answers.jsonl
  keras-tx run names - --whole-files < article.txt
  keras-tx run paraphrases "A cat." --pair "A kitten."
  keras-tx run squad "Ada lives in London." --question "Who lives in London?"

exit codes: 0 done; 2 an error, or an input that could not be read; 130 interrupted by Ctrl-C.
"""
BATCH = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="what export wrote")
    parser.add_argument(
        "inputs",
        metavar="INPUT",
        nargs="+",
        help="a picture, a text in quotes, a file, a directory, or - for standard input; see above",
    )
    parser.add_argument("--column", metavar="NAME", help="the column of a .csv or .tsv file to run")
    parser.add_argument(
        "--whole-files",
        action="store_true",
        dest="whole",
        help="read a text file as one text, not one per line",
    )
    parser.add_argument("--pair", metavar="TEXT", help="the second text, where the model takes pairs")
    parser.add_argument("--question", metavar="TEXT", help="what to answer from each text")
    parser.add_argument("--top-k", type=whole, default=5, metavar="K", help="how many labels (default: 5)")
    add_session(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line for each input")


def execute(arguments: argparse.Namespace) -> int:
    from keras_tx.runtime import load

    run_inputs.check_column(arguments.inputs, arguments.column)
    with load(arguments.folder, **session_options(arguments)) as model:
        _check_is_for_files(model, arguments.folder)
        run_text.check_options(model, arguments.pair, arguments.question, arguments.whole)
        if not arguments.json:
            print(f"{arguments.folder}: {model.folder.manifest.task} on {model.provider}")
        return 2 if _run(model, arguments) else 0


def _run(model: Any, arguments: argparse.Namespace) -> int:
    """Prints the answers in the order of the inputs, and returns how many inputs have none."""
    from keras_tx.progress_bar import ProgressBar

    if run_text.takes_text(model):
        inputs = run_inputs.texts(arguments.inputs, arguments.column, arguments.whole)
    else:
        inputs = run_inputs.pictures(arguments.inputs, arguments.column)

    def answers(batch: list[Input]) -> list[dict[str, Any]]:
        if run_text.takes_text(model):
            texts = [one.value for one in batch]
            return run_text.answers(model, texts, arguments.top_k, arguments.pair, arguments.question)
        return _answers(model, batch, arguments.top_k)

    # With one range per tensor (int8) an answer depends on the other rows of its batch. Typed lines are
    # answered one at a time.
    typed = run_inputs.STDIN in arguments.inputs and sys.stdin.isatty()
    size = 1 if model.precision == "int8" or typed else BATCH
    failed = 0
    shown = sys.stderr.isatty() and not sys.stdout.isatty()
    with ProgressBar(None, "inputs", shown=shown) as progress:
        while batch := list(itertools.islice(inputs, size)):
            for answer in _each(batch, answers):
                if isinstance(answer, KerasTxError):
                    print(f"keras-tx: error: {' '.join(str(answer).split())}", file=sys.stderr)
                    failed += 1
                else:
                    lines = [json.dumps(answer, ensure_ascii=False)] if arguments.json else _lines(answer)
                    print(*lines, sep="\n")
            sys.stdout.flush()
            progress.advance(len(batch))
    return failed


def _each(
    batch: list[Input], answers: Callable[[list[Input]], list[dict[str, Any]]]
) -> Iterator[dict[str, Any] | KerasTxError]:
    """Yields the answers to a batch; if an input is refused, runs each separately and yields its error."""
    if not any(one.problem for one in batch):
        try:
            yield from answers(batch)
            return
        except (ImageError, TextError) as error:
            if len(batch) == 1:
                yield TextError(f"{batch[0].name:.60}: {error}") if isinstance(error, TextError) else error
                return
    for one in batch:
        yield from [one.problem] if one.problem is not None else _each([one], answers)


def _check_is_for_files(model: LoadedModel, folder: str) -> None:
    from keras_tx.runtime import GenericModel, TextGenerator

    if isinstance(model, TextGenerator):
        raise InputError(
            f"{folder} continues texts, and does not take images: keras-tx generate {folder} PROMPT."
        )
    if isinstance(model, GenericModel):
        inputs = ", ".join(f"{spec.name!r}: {spec.dtype} {list(spec.shape)}" for spec in model.session.inputs)
        raise InputError(
            f"{folder} is a generic model, which takes arrays and not images. Use it from Python: "
            f"keras_tx.runtime.load({folder!r})({{{inputs}}})."
        )


def _answers(model: Any, batch: list[Input], top_k: int) -> list[dict[str, Any]]:
    from keras_tx.runtime import ImageEmbedder

    names, images = [one.name for one in batch], [one.value for one in batch]
    if len(images) == 1:
        images = images[0]  # so that an error mentions no position in a list
    if isinstance(model, ImageEmbedder):
        embeddings = model.embed(images)
        return [
            {"image": name, "shape": list(embedding.shape), "embedding": embedding.tolist()}
            for name, embedding in zip(names, embeddings if len(batch) > 1 else [embeddings], strict=True)
        ]
    predictions = model(images, top_k=top_k)
    return [
        {"image": name, "predictions": labels}
        for name, labels in zip(names, predictions if len(batch) > 1 else [predictions], strict=True)
    ]


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    yield printable(answer["image"] if "image" in answer else answer["text"])
    if "shape" in answer:
        yield f"  embedding of shape {tuple(answer['shape'])}; --json prints its numbers"
        return
    if "predictions" not in answer:
        yield from run_text.lines(answer)
        return
    names = [printable(found["label"]) for found in answer["predictions"]]
    width = max(map(len, names))
    for name, found in zip(names, answer["predictions"], strict=True):
        drawn = f"  {bar(found['score'])}" if sys.stdout.isatty() else ""
        yield f"  {name:<{width}}  {found['score']:6.1%}{drawn}".rstrip()
