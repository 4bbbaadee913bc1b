"""keras-tx tokens: converts text files to token files for training."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from keras_tx.commands.arguments import whole

if TYPE_CHECKING:
    from keras_tx.processing import TextTransform
    from keras_tx.processing.documents import Part
    from keras_tx.progress_bar import ProgressBar

SUMMARY = "convert text files to token files for training a GPT or T5"
DESCRIPTION = """\
Reads UTF-8 text files of any size, and writes a new folder with train.tokens, validation.tokens and the
tokenizer. Training reads this folder:
    causal_lm_batches("FOLDER/train.tokens", length=256)   and   TextTransform.load("FOLDER")
A token file has a text header of 4096 bytes, followed by the ids as uint16 or uint32. Each document ends with
the tokenizer's end-of-text token; its spelling inside a text is tokenized as text. Needs neither Keras nor
TensorFlow, only pip install "keras-tx[runtime]".
"""
EPILOG = """\
examples:
  keras-tx tokens manual manual.txt --characters                 one token per character
  keras-tx tokens books *.txt --train-bpe 8000                   train a byte-level BPE on the texts first
  keras-tx tokens books *.txt --train-unigram 8000               train T5's kind of tokenizer
  keras-tx tokens books *.txt --tokenizer gpt2                   use a folder with tokenizer.json, or the file
  keras-tx tokens poems all.txt --characters --separator "***"   lines with *** separate documents
  keras-tx tokens mails mails.txt --train-bpe 4000 --document-per line --validation 0.01
"""
END_OF_TEXT = "<|endoftext|>"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="the folder to write; it must not exist")
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="text files, UTF-8")
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument(
        "--tokenizer", metavar="PATH", help="an existing tokenizer: its folder or tokenizer.json"
    )
    kind.add_argument("--characters", action="store_true", help="use one token per character")
    kind.add_argument(
        "--train-bpe",
        type=whole,
        metavar="N",
        help="train a byte-level BPE with N tokens (GPT-2 has 50257)",
    )
    kind.add_argument(
        "--train-unigram",
        type=whole,
        metavar="N",
        help="train a Unigram tokenizer like T5's with N tokens, 100 of them sentinels (T5 has 32100)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--document-per",
        choices=("file", "paragraph", "line"),
        default="file",
        help="unit of a document (default: file); blank lines separate paragraphs",
    )
    where.add_argument("--separator", metavar="TEXT", help="lines with only this text separate documents")
    parser.add_argument(
        "--validation",
        type=_share,
        default=0.1,
        metavar="SHARE",
        help="share of the documents for validation.tokens, evenly spread; with few files, the end of each "
        "file; 0 for none (default: 0.1)",
    )


def execute(arguments: argparse.Namespace) -> int:
    from keras_tx.processing.corpus import check_target, write_tokens
    from keras_tx.processing.documents import whole_files

    folder = Path(arguments.folder)
    check_target(folder)  # before the tokenizer is trained
    parts = whole_files(arguments.texts)
    transform = _transform(arguments, parts)
    with _progress(parts, "MB tokenized") as bar:
        headers = write_tokens(
            folder,
            arguments.texts,
            transform,
            document_per=arguments.document_per,
            separator=arguments.separator,
            validation=arguments.validation,
            progress=lambda done, total: bar.update(done),
        )
    end = (
        "no end-of-text token" if transform.eos_token is None else f"end-of-text token {transform.eos_token}"
    )
    print(f"{folder}: {transform.vocabulary_size:,} tokens in the vocabulary, {end}")
    for name, header in headers.items():
        plural = "" if header.documents == 1 else "s"
        print(
            f"  {name:<18}{header.tokens:>14,} tokens, {header.dtype}; {header.documents:,} "
            f"document{plural}, {header.text_bytes / header.tokens:.2f} bytes per token"
        )
    return 0


def _transform(arguments: argparse.Namespace, parts: list[Part]) -> TextTransform:
    from keras_tx.processing import TextTransform, character_vocabulary, train_byte_bpe, train_unigram
    from keras_tx.processing.documents import documents

    if arguments.tokenizer is not None:
        return TextTransform.load(arguments.tokenizer)
    with _progress(parts, "MB read for the vocabulary") as bar:

        def texts() -> Iterator[str]:
            for chunk in documents(parts, arguments.document_per, arguments.separator):
                bar.update(chunk.read)
                yield chunk.text

        if arguments.characters:
            return character_vocabulary(texts(), eos_token=END_OF_TEXT)
        if arguments.train_unigram:
            return train_unigram(texts(), arguments.train_unigram)
        return train_byte_bpe(texts(), arguments.train_bpe)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up to, but not including, 1")
    return share


def _progress(parts: list[Part], unit: str) -> ProgressBar:
    """Returns a progress bar over the bytes of the texts, shown if standard error is a terminal."""
    from keras_tx.progress_bar import ProgressBar

    return ProgressBar(sum(part.end for part in parts), unit, scale=10**6, shown=sys.stderr.isatty())
