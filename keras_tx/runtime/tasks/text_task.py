"""TextTask, the base class of encoder tasks: texts are tokenized and run in batches of similar length."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, FolderError, true_or_false, whole_number
from keras_tx.processing import Row, TextTransform
from keras_tx.progress_bar import ProgressBar
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session, describe
from keras_tx.runtime.tasks.base import LoadedModel, RunOptions, check_outputs

MULTIPLE = 16  # rows are padded to a multiple of it: onnxruntime plans its memory anew for each new shape
PART = 64  # number of batches that are tokenized and sorted together, and are in memory at the same time
INPUTS = {contract.INPUT_IDS, contract.ATTENTION_MASK, contract.TOKEN_TYPE_IDS}
EXAMPLE_TOKENS = 8  # of the text on which `keras-tx verify` runs a model


class TextTask(LoadedModel):
    """An encoder's graph and the folder's tokenizer."""

    def __init__(self, folder: Folder, session: Session, outputs: Sequence[str]) -> None:
        """Raises a FolderError if the graph or tokenizer does not fit, or one of `outputs` is missing."""
        super().__init__(folder, session)
        self.transform = _transform_of(folder)
        inputs = {spec.name for spec in session.inputs}
        if contract.TOKEN_TYPE_IDS in inputs and not self.transform.segments:
            raise FolderError(
                f"{folder.path / contract.TOKENIZER_CONFIG}: model_input_names lacks "
                f"{contract.TOKEN_TYPE_IDS!r}, which is an input of the graph. Export again."
            )
        if not {contract.INPUT_IDS, contract.ATTENTION_MASK} <= inputs <= INPUTS:
            raise FolderError(
                f"{folder.path}: the graph has the inputs {', '.join(map(describe, session.inputs))}, "
                f"expected {contract.INPUT_IDS}, {contract.ATTENTION_MASK} and optionally "
                f"{contract.TOKEN_TYPE_IDS}. Export again."
            )
        check_outputs(folder, session, outputs)
        self._token_outputs = {spec.name for spec in session.outputs if contract.SEQUENCE_AXIS in spec.shape}

    def map_texts(
        self, answer: Callable[..., Sequence[Any]], *columns: Any, batch_size: int, progress: bool
    ) -> Any:
        """Returns the answers to texts; for a single text, its answer.

        Args:
            answer: a function of a part of each column, and of `start`, the index of its first text.
            columns: texts, and pairs or the like; None stays None. Iterators are read part by part, so that
                their texts need not fit in memory.
            batch_size: number of texts that the graph computes together.
            progress: whether to show a progress bar.
        """
        size = PART * whole_number("batch_size", batch_size)
        true_or_false("progress", progress)
        lists = [[column] if isinstance(column, str) else column for column in columns]
        if any(isinstance(column, Iterator) for column in columns):
            return _map_iterators(answer, lists, size, progress)
        counts = {len(x) for x in lists if hasattr(x, "__len__") and getattr(x, "ndim", 1)}
        if len(counts) != 1 or max(counts) <= size:
            answers = list(answer(*columns, start=0))  # raises for columns that are not lists
            return answers[0] if isinstance(columns[0], str) else answers
        (count,) = counts
        answers: list[Any] = []
        with ProgressBar(count, "texts", shown=progress) as bar:
            for start in range(0, count, size):
                part = [None if column is None else column[start : start + size] for column in lists]
                answers += answer(*part, start=start)
                bar.advance(len(answers) - start)
        return answers

    def run_rows(
        self, rows: Sequence[Row], read: Callable[[Row, dict[str, np.ndarray]], Any], batch_size: int
    ) -> list[Any]:
        """Returns `read(row, outputs)` for each row, in the order of the rows.

        Rows of similar length run together, the longest first, so that memory does not grow later. Outputs
        for tokens exclude padding.
        """
        batch_size = whole_number("batch_size", batch_size)
        answers: list[Any] = [None] * len(rows)
        names = [spec.name for spec in self.session.inputs]
        order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
        for bucket in (order[start : start + batch_size] for start in range(0, len(order), batch_size)):
            length = self._padded_length(len(rows[bucket[0]]))
            batch = self.transform.pad([rows[index] for index in bucket], length=length)
            outputs = self.session.run({name: batch[name] for name in names})
            for place, index in enumerate(bucket):
                tokens = self.transform.place(rows[index], batch[contract.INPUT_IDS].shape[1])
                row_outputs = {
                    name: value[place, tokens] if name in self._token_outputs else value[place]
                    for name, value in outputs.items()
                }
                answers[index] = read(rows[index], row_outputs)
        return answers

    @property
    def token_counter(self) -> Callable[[Any], int]:
        return lambda text: self._padded_length(self.transform.count(text))

    def _padded_length(self, longest: int) -> int:
        padded = -(-longest // MULTIPLE) * MULTIPLE
        maximum = self.transform.max_length
        return padded if maximum is None else max(longest, min(padded, maximum))


def trim_span(text: str, start: int, end: int) -> tuple[int, int]:
    """Returns a span without the spaces at its ends, which are parts of SentencePiece's tokens."""
    part = text[start:end]
    start += len(part) - len(part.lstrip())
    return start, start + len(part.strip())


def run_example(model: TextTask) -> str:
    """Runs a model on a text of its own vocabulary."""
    transform = model.transform
    ids = sorted(transform.vocabulary.values())
    words = transform.decode(ids[len(ids) // 2 :][:EXAMPLE_TOKENS])
    text = f"{words} {transform.mask_token or ''}".strip()
    assert model.task.answer is not None
    model.task.answer(model, [text], RunOptions(top_k=1, question=words))
    (row,) = transform.encode([text])
    return f"answers a text of {len(row)} tokens"


def _map_iterators(
    answer: Callable[..., Sequence[Any]], columns: Sequence[Any], size: int, progress: bool
) -> list[Any]:
    """`map_texts` for columns of unknown length."""
    sources = [None if column is None else iter(column) for column in columns]
    answers: list[Any] = []
    with ProgressBar(None, "texts", shown=progress) as bar:
        while True:
            start = len(answers)
            part = [None if source is None else list(itertools.islice(source, size)) for source in sources]
            if not any(part):
                return answers
            answers += answer(*part, start=start)  # raises for columns of different lengths
            bar.advance(len(answers) - start)


def _transform_of(folder: Folder) -> TextTransform:
    for name in (contract.TOKENIZER, contract.TOKENIZER_CONFIG):
        if name not in folder.manifest.files:
            raise FolderError(
                f"{folder.path / contract.MANIFEST}: files has no {name}, which the task "
                f"{folder.manifest.task!r} needs. Export again."
            )
    try:
        transform = TextTransform.load(folder.path)
    except ConfigError as error:
        raise FolderError(str(error)) from error
    if transform.padding_side != "right":
        raise FolderError(
            f"{folder.path / contract.TOKENIZER_CONFIG}: padding_side={transform.padding_side!r}, but "
            "positions and the class token of an encoder are at the left. Export again with a tokenizer that "
            "pads on the right."
        )
    size = (folder.config or {}).get("vocab_size")
    if isinstance(size, int) and transform.vocabulary_size > size:
        raise FolderError(
            f"{folder.path}: {contract.TOKENIZER} has ids up to {transform.vocabulary_size - 1}, but "
            f"vocab_size={size} in {contract.CONFIG}. Export again."
        )
    return transform
