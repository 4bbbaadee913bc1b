"""keras-tx run: what an exported folder says about images or texts. Needs onnxruntime, not Keras."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from keras_tx.commands import run_text
from keras_tx.commands.arguments import add_session, session_options, whole
from keras_tx.commands.terminal import bar, printable
from keras_tx.errors import ImageError, InputError, TextError

if TYPE_CHECKING:
    from keras_tx.runtime import LoadedModel

SUMMARY = "classify, embed or answer with an exported folder: images or texts"
DESCRIPTION = """\
Loads an exported folder with onnxruntime and runs it on images or texts, whichever it was made for. Needs
neither Keras nor TensorFlow, only pip install "keras-tx[runtime]". A classifier answers with its best labels
and their scores; a model without a classifier with an embedding: its shape here, its numbers with --json. In
texts it also finds entities, fills masks, and answers a --question. An image or text that cannot be read is
named on standard error, the others are still run, and the exit code is then 2.
"""
EPILOG = """\
examples:
  keras-tx run flowers rose.jpg
  keras-tx run flowers photos/*.jpg --top-k 1
  keras-tx run flowers rose.jpg --provider cuda   on the GPU, or an error that says what is missing
  keras-tx run flowers rose.jpg --json            one object a line: {"image": ..., "predictions": [...]}
  keras-tx run features rose.jpg --json           {"image": ..., "shape": [768], "embedding": [...]}
  keras-tx run reviews "A very good film."
  keras-tx run paraphrases "A cat." --pair "A kitten."
  keras-tx run squad "Ada lives in London." --question "Who lives in London?"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="what export wrote")
    parser.add_argument(
        "inputs",
        metavar="INPUT",
        nargs="+",
        help="an image file (JPEG, PNG, WebP, TIFF, BMP or GIF), or a text in quotes",
    )
    parser.add_argument("--pair", metavar="TEXT", help="the second text, where the model takes pairs")
    parser.add_argument("--question", metavar="TEXT", help="what to answer from each text")
    parser.add_argument("--top-k", type=whole, default=5, metavar="K", help="how many labels (default: 5)")
    add_session(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line for each input")


def execute(arguments: argparse.Namespace) -> int:
    from keras_tx.runtime import load

    failed = False
    with load(arguments.folder, **session_options(arguments)) as model:
        _check_is_for_files(model, arguments.folder)
        run_text.check_options(model, arguments.pair, arguments.question)
        if not arguments.json:
            print(f"{arguments.folder}: {model.folder.manifest.task} on {model.provider}")
        for given in arguments.inputs:
            try:
                if run_text.takes_text(model):
                    answer = run_text.answer(
                        model, given, arguments.top_k, arguments.pair, arguments.question
                    )
                else:
                    answer = _answer(model, given, arguments.top_k)
            except (ImageError, TextError) as error:
                print(f"keras-tx: error: {' '.join(str(error).split())}", file=sys.stderr)
                failed = True
                continue
            shown = [json.dumps(answer, ensure_ascii=False)] if arguments.json else _lines(answer)
            print(*shown, sep="\n", flush=True)
    return 2 if failed else 0


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


def _answer(model: Any, image: str, top_k: int) -> dict[str, Any]:
    from keras_tx.runtime import ImageEmbedder

    if isinstance(model, ImageEmbedder):
        embedding = model.embed(image)
        return {"image": image, "shape": list(embedding.shape), "embedding": embedding.tolist()}
    return {"image": image, "predictions": model(image, top_k=top_k)}


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
