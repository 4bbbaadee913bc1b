"""keras-tx tokens: text files become token files, which training reads without loading them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from keras_tx.commands.arguments import whole
from keras_tx.commands.terminal import bar

if TYPE_CHECKING:
    from keras_tx.processing import TextTransform
    from keras_tx.processing.documents import Part

SUMMARY = "turn text files into token files to train a GPT on"
DESCRIPTION = """\
Reads UTF-8 text files, larger than memory if need be, and writes a new folder with train.tokens,
validation.tokens and the files of the tokenizer, so that the folder is all that training needs:
    token_blocks("FOLDER/train.tokens", length=256)   and   TextTransform.load("FOLDER")
A token file is the ids as raw uint16 or uint32 behind a header of 4096 bytes, which `head -c 4096` shows.
Each document ends with the tokenizer's end-of-text token; where a text spells that token out, it is text.
Needs neither Keras nor TensorFlow, only pip install "keras-tx[runtime]".
"""
EPILOG = """\
examples:
  keras-tx tokens manual manual.txt --characters                 a token for each character that occurs
  keras-tx tokens books *.txt --train-bpe 8000                   learn a byte-level BPE from the texts first
  keras-tx tokens books *.txt --tokenizer gpt2                   a folder with tokenizer.json, or such a file
  keras-tx tokens poems all.txt --characters --separator "***"   lines with *** stand between documents
  keras-tx tokens mails mails.txt --train-bpe 4000 --document-per line --validation 0.01
"""
END_OF_TEXT = "<|endoftext|>"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="where to write; it must not exist")
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="text files, UTF-8")
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument(
        "--tokenizer", metavar="PATH", help="a tokenizer that there is: its folder or tokenizer.json"
    )
    kind.add_argument("--characters", action="store_true", help="each character that occurs is a token")
    kind.add_argument(
        "--train-bpe",
        type=whole,
        metavar="N",
        help="learn a byte-level BPE of N tokens, as GPT-2 has one of 50257",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--document-per",
        choices=("file", "paragraph", "line"),
        default="file",
        help="what a document is (default: file); paragraphs have blank lines between them",
    )
    where.add_argument(
        "--separator", metavar="TEXT", help="lines with only this text stand between documents"
    )
    parser.add_argument(
        "--validation",
        type=_share,
        default=0.1,
        metavar="SHARE",
        help="the share of the documents that goes into validation.tokens, evenly spread; of a few files, "
        "the last part of each; 0 for none (default: 0.1)",
    )


def execute(arguments: argparse.Namespace) -> int:
    from keras_tx.processing.corpus import check_target, write_tokens
    from keras_tx.processing.documents import whole_files

    folder = Path(arguments.folder)
    check_target(folder)  # before a vocabulary is learned
    parts = whole_files(arguments.texts)
    transform = _transform(arguments, parts)
    with _Progress("tokens") as progress:
        headers = write_tokens(
            folder,
            arguments.texts,
            transform,
            document_per=arguments.document_per,
            separator=arguments.separator,
            validation=arguments.validation,
            progress=progress,
        )
    end = (
        "no end-of-text token" if transform.eos_token is None else f"documents end with {transform.eos_token}"
    )
    print(f"{folder}: a vocabulary of {transform.vocabulary_size}, {end}")
    for name, header in headers.items():
        several = "" if header.documents == 1 else "s"
        print(
            f"  {name:<18}{header.tokens:>14,} tokens, {header.dtype}; {header.documents:,} "
            f"document{several}, {header.text_bytes / header.tokens:.2f} bytes a token"
        )
    return 0


def _transform(arguments: argparse.Namespace, parts: list[Part]) -> TextTransform:
    from keras_tx.processing import TextTransform, character_vocabulary, train_byte_bpe
    from keras_tx.processing.documents import documents

    if arguments.tokenizer is not None:
        return TextTransform.load(arguments.tokenizer)
    with _Progress("vocabulary") as progress:

        def texts() -> Iterator[str]:
            for chunk in documents(parts, arguments.document_per, arguments.separator):
                progress(chunk.read, sum(part.end for part in parts))
                yield chunk.text

        if arguments.characters:
            return character_vocabulary(texts(), eos_token=END_OF_TEXT)
        return train_byte_bpe(texts(), arguments.train_bpe)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share, from 0 up to, not including, 1")
    return share


class _Progress:
    """A bar on standard error, where somebody looks at it."""

    def __init__(self, what: str) -> None:
        self._what, self._shown = what, sys.stderr.isatty()
        self._start = self._last = time.monotonic()

    def __enter__(self) -> _Progress:
        return self

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._shown or (now - self._last < 0.1 and done < total):
            return
        self._last = now
        seconds = now - self._start
        left = seconds * (total - done) / max(1, done)
        line = (
            f"{self._what:<11}{bar(done / total):<20} {done / total:4.0%} of {total / 1e6:.1f} MB, "
            f"{done / 1e6 / max(seconds, 1e-9):.1f} MB/s, {left:.0f} s left"
        )
        print(f"\r{line:<78}", end="", file=sys.stderr, flush=True)

    def __exit__(self, *error: object) -> None:
        if self._shown and self._last != self._start:
            print(f"\r{'':<78}\r", end="", file=sys.stderr, flush=True)
