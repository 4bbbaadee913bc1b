"""keras-tx run: runs an exported folder on images or texts. Needs onnxruntime, not Keras."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from keras_tx.commands import run_inputs, terminal
from keras_tx.commands.arguments import add_adapter, add_session, loaded, whole
from keras_tx.commands.run_inputs import Input
from keras_tx.errors import ImageError, InputError, KerasTxError, TextError

if TYPE_CHECKING:
    from keras_tx.runtime import LoadedModel

SUMMARY = "run an exported folder on images or texts: labels, embeddings, entities, answers, translations"
DESCRIPTION = """\
Loads an exported folder with onnxruntime and runs it on images or texts, whichever the model accepts. Needs
neither Keras nor TensorFlow, only pip install "keras-tx[runtime]". A classifier prints its best labels and
their scores; an embedding model the shape of its vectors, or the numbers with --json; text models also print
entities, the tokens of a mask, the answers to a --question, the best of --choices, translations or summaries.
An image or text that cannot be read is reported on standard error; the others still run, and the exit code
is 2.

An INPUT of an image model is
  FILE             an image: JPEG, PNG, WebP, TIFF, BMP or GIF
  DIRECTORY        its images, in the order of their names
  FILE.csv, .tsv   the images whose paths are in --column, relative to the table's directory
  -                an image from standard input
and of a text model
  TEXT             a text in quotes
  FILE             one text per line; one text per file with --whole-files
  DIRECTORY        its .txt files, each as a FILE
  FILE.csv, .tsv   the texts in --column, under the header of the first line
  -                standard input, read as a FILE
"""
EPILOG = """\
examples:
  keras-tx run flowers rose.jpg
  keras-tx run flowers photos --top-k 1           all images of a directory
  keras-tx run flowers - < rose.jpg
  keras-tx run flowers rose.jpg --provider cuda   on the GPU; an error if that is not possible
  keras-tx run flowers rose.jpg --json            a JSON object per line: {"image": ..., "predictions": [...]}
  keras-tx run features rose.jpg --json           {"image": ..., "shape": [768], "embedding": [...]}
  keras-tx run reviews "A very good film."
  keras-tx run reviews reviews.txt                one review per line
  keras-tx run reviews reviews.csv --column text --json > answers.jsonl
  keras-tx run names - --whole-files < article.txt
  keras-tx run reviews "A very good film." --adapter films
  keras-tx run paraphrases "A cat." --pair "A kitten."
  keras-tx run squad "Ada lives in London." --question "Who lives in London?"
  keras-tx run italian-english letters.txt        translates each line; keras-tx generate has more options

exit codes: 0 done; 2 an error, or an input that cannot be read; 130 interrupted by Ctrl-C.
"""
BATCH = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="an exported folder")
    parser.add_argument(
        "inputs",
        metavar="INPUT",
        nargs="+",
        help="an image, a text in quotes, a file, a directory, or - for standard input; see above",
    )
    parser.add_argument("--column", metavar="NAME", help="the column of a .csv or .tsv file")
    parser.add_argument(
        "--whole-files",
        action="store_true",
        dest="whole",
        help="read a text file as one text, instead of one per line",
    )
    parser.add_argument("--pair", metavar="TEXT", help="the second text, for models of text pairs")
    parser.add_argument("--question", metavar="TEXT", help="the question to answer from each text")
    parser.add_argument(
        "--choices", metavar="TEXT", nargs="+", help="the texts to choose from, for multiple choice"
    )
    parser.add_argument("--top-k", type=whole, default=5, metavar="K", help="number of labels (default: 5)")
    add_adapter(parser)
    add_session(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per input")


def execute(arguments: argparse.Namespace) -> int:
    run_inputs.check_column(arguments.inputs, arguments.column)
    with loaded(arguments) as model:
        _check_task(model, arguments)
        if not arguments.json:
            print(f"{arguments.folder}: {model.folder.manifest.task} on {model.provider}")
        return 2 if _run(model, arguments) else 0


def _check_task(model: LoadedModel, arguments: argparse.Namespace) -> None:
    """Raises an InputError for a task that does not run on files, and for options that it does not have."""
    task, folder = model.task, arguments.folder
    if task.inputs == "prompt":
        raise InputError(f"{folder} generates text. Use keras-tx generate {folder} PROMPT.")
    if task.answer is None:
        inputs = ", ".join(f"{spec.name!r}: {spec.dtype} {list(spec.shape)}" for spec in model.session.inputs)
        raise InputError(
            f"{folder} is a generic model, which accepts arrays only. Use it from Python: "
            f"keras_tx.runtime.load({folder!r})({{{inputs}}})."
        )
    if arguments.whole and task.inputs != "text":
        raise InputError(f"{folder} does not accept texts. Omit --whole-files.")
    for name in ("pair", "question", "choices"):
        if getattr(arguments, name) is None:
            if name in task.required:
                raise InputError(f"{folder} needs --{name} TEXT for the task {task.name!r}.")
        elif name not in (*task.options, *task.required):
            raise InputError(f"{folder} does not support --{name} for the task {task.name!r}. Omit it.")


def _run(model: LoadedModel, arguments: argparse.Namespace) -> int:
    """Prints the answers in the order of the inputs; returns the number of inputs that failed."""
    from keras_tx.progress_bar import ProgressBar
    from keras_tx.runtime.tasks.base import RunOptions

    task = model.task
    if task.inputs == "text":
        inputs = run_inputs.texts(arguments.inputs, arguments.column, arguments.whole)
    else:
        inputs = run_inputs.pictures(arguments.inputs, arguments.column)
    choices = None if arguments.choices is None else tuple(arguments.choices)
    options = RunOptions(arguments.top_k, arguments.pair, arguments.question, choices)

    def answers(batch: list[Input]) -> list[dict[str, Any]]:
        assert task.answer is not None
        results = task.answer(model, [one.value for one in batch], options)
        return [{task.inputs: one.name, **x} for one, x in zip(batch, results, strict=True)]

    # Lines from a keyboard are answered one at a time.
    interactive = run_inputs.STDIN in arguments.inputs and sys.stdin.isatty()
    alone = interactive or model.folder.manifest.depends_on_batch(model.precision)
    size = 1 if alone else BATCH
    failed = 0
    shown = sys.stderr.isatty() and not sys.stdout.isatty()
    with ProgressBar(None, "inputs", shown=shown) as progress:
        while batch := list(itertools.islice(inputs, size)):
            for answer in _each(batch, answers):
                if isinstance(answer, KerasTxError):
                    print(f"keras-tx: error: {' '.join(str(answer).split())}", file=sys.stderr)
                    failed += 1
                elif arguments.json:
                    print(json.dumps(answer, ensure_ascii=False))
                else:
                    assert task.render is not None
                    lines = [answer[task.inputs], *task.render(answer, _bar)]
                    print(*map(terminal.printable, lines), sep="\n")
            sys.stdout.flush()
            progress.advance(len(batch))
    return failed


def _bar(score: float) -> str:
    return terminal.bar(score) if sys.stdout.isatty() else ""


def _each(
    batch: list[Input], answers: Callable[[list[Input]], list[dict[str, Any]]]
) -> Iterator[dict[str, Any] | KerasTxError]:
    """Yields the answers to a batch; if an input fails, runs each separately and yields its error."""
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
