"""What the text tasks share: texts become rows, rows of like length run together, answers come in order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, FolderError, InputError, true_or_false, whole_number
from keras_tx.processing import Row, TextTransform
from keras_tx.progress_bar import ProgressBar
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session, describe
from keras_tx.runtime.tasks.base import LoadedModel

MULTIPLE = 16  # rows are padded up to it: fewer shapes, for each of which onnxruntime plans its memory anew
PART = 64  # batches of texts that are tokenized and sorted together: so much is in memory at once
INPUTS = {contract.INPUT_IDS, contract.ATTENTION_MASK, contract.TOKEN_TYPE_IDS}


class TextModel(LoadedModel):
    """A graph of an encoder, fed through the tokenizer of the folder."""

    def __init__(self, folder: Folder, session: Session, outputs: Sequence[str]) -> None:
        super().__init__(folder, session)
        self.transform = _transform_for(folder)
        given = {spec.name for spec in session.inputs}
        if contract.TOKEN_TYPE_IDS in given and not self.transform.segments:
            raise FolderError(
                f"{folder.path / contract.TOKENIZER_CONFIG}: model_input_names lacks "
                f"{contract.TOKEN_TYPE_IDS!r}, which is an input of the graph. Export again."
            )
        if not {contract.INPUT_IDS, contract.ATTENTION_MASK} <= given <= INPUTS:
            raise FolderError(
                f"{folder.path}: the graph takes {', '.join(map(describe, session.inputs))}, which is not "
                "what a tokenizer gives. Export again."
            )
        known = {spec.name: spec for spec in session.outputs}
        missing = [name for name in outputs if name not in known]
        if missing:
            raise FolderError(
                f"{folder.path}: the graph gives {', '.join(known)}, expected {' and '.join(outputs)} for "
                f"the task {folder.manifest.task!r}. Export again."
            )
        self._of_tokens = {name for name, spec in known.items() if contract.SEQUENCE_AXIS in spec.shape}

    def in_parts(
        self,
        answer: Callable[..., Sequence[Any]],
        *columns: Any,
        batch_size: int,
        progress: bool,
        what: str = "texts",
    ) -> list[Any]:
        """What `answer` gives for texts (and what belongs to them), however many: a part at a time.

        Args:
            answer: takes a part of each column, and as `start` the number of its first text.
            columns: texts, pairs ...; one that is None stays None. Of an iterator, whose texts need not
                all be in memory, a part at a time is taken.
            progress: whether to show a bar.
        """
        size = PART * whole_number("batch_size", batch_size)
        true_or_false("progress", progress)
        if any(isinstance(column, Iterator) for column in columns):
            return _drawn(answer, columns, size, progress, what)
        lists = [[column] if isinstance(column, str) else column for column in columns]
        counts = {len(x) for x in lists if hasattr(x, "__len__") and getattr(x, "ndim", 1)}
        if len(counts) != 1 or max(counts) <= size:
            return list(answer(*columns, start=0))  # which says what is wrong with columns that are no lists
        (count,) = counts
        found: list[Any] = []
        with ProgressBar(count, what, shown=progress) as bar:
            for start in range(0, count, size):
                part = [None if column is None else column[start : start + size] for column in lists]
                found += answer(*part, start=start)
                bar.advance(len(found) - start)
        return found

    def run_rows(
        self, rows: Sequence[Row], read: Callable[[Row, dict[str, np.ndarray]], Any], batch_size: int
    ) -> list[Any]:
        """What `read` makes of each row and its outputs, in the order of the rows.

        Rows of like length run together, long ones first, so that memory is at its largest at once. Outputs
        for tokens come without those of padding.
        """
        batch_size = whole_number("batch_size", batch_size)
        answers: list[Any] = [None] * len(rows)
        names = [spec.name for spec in self.session.inputs]
        for bucket in _buckets(rows, batch_size):
            batch = self.transform.pad([rows[index] for index in bucket], length=self._length(rows, bucket))
            found = self.session.run({name: batch[name] for name in names})
            for place, index in enumerate(bucket):
                where = self.transform.place(rows[index], batch[contract.INPUT_IDS].shape[1])
                own = {
                    name: value[place, where] if name in self._of_tokens else value[place]
                    for name, value in found.items()
                }
                answers[index] = read(rows[index], own)
        return answers

    def _length(self, rows: Sequence[Row], bucket: Sequence[int]) -> int:
        longest = max(len(rows[index]) for index in bucket)
        padded = -(-longest // MULTIPLE) * MULTIPLE
        return (
            padded
            if self.transform.max_length is None
            else max(longest, min(padded, self.transform.max_length))
        )


def checked_tokens(folder: Folder, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Returns the inputs of a text model; raises an InputError for an id that is out of range.

    The ranges are those of config.json; without that file ids are not checked.
    """
    config = folder.config
    if config is None:
        return inputs
    segments = inputs.get(contract.TOKEN_TYPE_IDS)
    known = {spec.name for spec in folder.inputs}
    if config.get("type_vocab_size") == 1 and contract.TOKEN_TYPE_IDS not in known and segments is not None:
        _check_range(contract.TOKEN_TYPE_IDS, segments, 1)  # RoBERTa's tokenizers return zeros
        inputs = {name: array for name, array in inputs.items() if name != contract.TOKEN_TYPE_IDS}
    positions = _positions(config)
    sizes = {
        contract.INPUT_IDS: config.get("vocab_size"),
        contract.ATTENTION_MASK: 2,
        contract.TOKEN_TYPE_IDS: config.get("type_vocab_size"),
        contract.POSITION_IDS: positions,
    }
    for name, array in inputs.items():
        if name in sizes:
            _check_range(name, array, sizes[name])
    ids = inputs.get(contract.INPUT_IDS)
    if positions is not None and isinstance(ids, np.ndarray) and ids.ndim == 2 and ids.shape[1] > positions:
        raise InputError(
            f"input_ids has shape {ids.shape}, expected at most {positions} tokens in a row, the number "
            "of the model's positions. Cut the texts, or split them into windows."
        )
    return inputs


def _positions(config: Mapping[str, Any]) -> int | None:
    """How many tokens a row may have; RoBERTa's table has rows before that of the first token."""
    count = config.get("max_position_embeddings") or config.get("n_positions")
    if count is None:
        return None
    return count - config["pad_token_id"] - 1 if config.get("model_type") == "roberta" else count


def _check_range(name: str, array: Any, size: Any) -> None:
    """Raises for a number that is not in 0 ... size - 1. Types and shapes are the session's to check."""
    if not isinstance(size, int) or not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
        return
    wrong = (array < 0) | (array >= size)
    if wrong.any():
        place = np.unravel_index(int(np.argmax(wrong)), array.shape)
        row = f" in row {place[0]}" if place else ""
        raise InputError(f"{name} has {array[place]}{row}, expected numbers from 0 to {size - 1}.")


def labels_for(folder: Folder, session: Session) -> tuple[str, ...]:
    """The names of what the last axis of the logits tells apart."""
    spec = next(spec for spec in session.outputs if spec.name == contract.LOGITS)
    labels, count = folder.manifest.labels, spec.shape[-1]
    if not isinstance(count, int) or (labels is not None and len(labels) != count):
        wanted = "a fixed number of labels" if labels is None else f"{len(labels)} labels"
        raise FolderError(
            f"{folder.path}: the graph gives {describe(spec)}, expected {wanted}. Export again."
        )
    return labels if labels is not None else tuple(f"LABEL_{index}" for index in range(count))


def _drawn(
    answer: Callable[..., Sequence[Any]], columns: Sequence[Any], size: int, progress: bool, what: str
) -> list[Any]:
    """What `in_parts` gives for columns of which nobody knows how long they are."""
    lists = [[column] if isinstance(column, str) else column for column in columns]
    sources = [None if column is None else iter(column) for column in lists]
    found: list[Any] = []
    with ProgressBar(None, what, shown=progress) as bar:
        while True:
            start = len(found)
            part = [None if source is None else list(itertools.islice(source, size)) for source in sources]
            if not any(part):
                return found
            found += answer(*part, start=start)  # which refuses columns of different lengths
            bar.advance(len(found) - start)


def _buckets(rows: Sequence[Row], batch_size: int) -> Iterator[list[int]]:
    order = sorted(range(len(rows)), key=lambda index: -len(rows[index]))
    for start in range(0, len(order), batch_size):
        yield order[start : start + batch_size]


def _transform_for(folder: Folder) -> TextTransform:
    missing = [
        name for name in (contract.TOKENIZER, contract.TOKENIZER_CONFIG) if name not in folder.manifest.files
    ]
    if missing:
        raise FolderError(
            f"{folder.path / contract.MANIFEST}: files has no {missing[0]}, which its task needs. Export "
            "again."
        )
    try:
        transform = TextTransform.load(folder.path)
    except ConfigError as error:
        raise FolderError(str(error)) from error
    if transform.padding_side != "right":
        raise FolderError(
            f"{folder.path}: {contract.TOKENIZER_CONFIG} has padding_side={transform.padding_side!r}, but an "
            "encoder numbers positions from the first column and has its class token there. Export again, "
            "with a tokenizer that pads on the right."
        )
    size = (folder.config or {}).get("vocab_size")
    if isinstance(size, int) and transform.vocabulary_size > size:
        raise FolderError(
            f"{folder.path}: {contract.TOKENIZER} has ids up to {transform.vocabulary_size - 1}, but "
            f"{contract.CONFIG} a vocab_size of {size}. Export again."
        )
    return transform
