"""Batches of questions, documents and the spans of the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.data.batches import Batches
from keras_tx.errors import TextError
from keras_tx.processing import Row, TextTransform

NAMES = (contract.START_LOGITS, contract.END_LOGITS)


def question_answering_batches(
    questions: Sequence[str],
    documents: Sequence[str],
    answers: Sequence[tuple[int, int] | None],
    transform: TextTransform,
    *,
    overlap: int = 128,
    batch_size: int = 32,
    shuffle: bool = True,
    seed: int = 0,
    **options: Any,
) -> Batches:
    """Returns batches for a SpanHead; long documents become several overlapping rows.

    The labels of rows without the whole answer point to the class token.

    Args:
        questions: one question per sample.
        documents: the text that each question is about.
        answers: for each document, the indices of the first character of the answer and of the character
            after it, or None without an answer.
        transform: the tokenizer.
        overlap: the number of tokens that consecutive rows of a document share.
        batch_size, shuffle, seed, options: as for `Batches`.

    Raises:
        TextError: a text or an answer is invalid; the message contains its index.
    """
    if not len(questions) == len(documents) == len(answers):
        raise TextError(
            f"There are {len(questions)} questions, {len(documents)} documents and {len(answers)} answers, "
            "expected as many of each."
        )
    for index, (document, answer) in enumerate(zip(documents, answers, strict=True)):
        if answer is not None and not 0 <= answer[0] < answer[1] <= len(document):
            raise TextError(
                f"answers[{index}] is {tuple(answer)}, expected two places in a document of {len(document)} "
                "characters, the second after the first."
            )
    rows = transform.windows(questions, documents, overlap=overlap)
    spans = np.array(_spans(rows, answers), "int64")
    answered = {row.text for row, span in zip(rows, spans, strict=True) if span.any()}
    for index, answer in enumerate(answers):
        if answer is not None and index not in answered:
            raise TextError(
                f"answers[{index}], {documents[index][slice(*answer)]!r:.60}, is longer than "
                f"overlap={overlap} or has no tokens. Increase overlap, shorten the answer, or pass None."
            )

    def pack(chosen: np.ndarray, random: np.random.Generator) -> tuple[Any, Any]:
        some = [rows[number] for number in chosen]
        batch = transform.pad(some)
        length = batch[contract.INPUT_IDS].shape[1]
        shift = np.array([transform.place(row, length).start for row in some])
        return batch, {name: spans[chosen, side] + shift for side, name in enumerate(NAMES)}

    def content() -> Iterator[np.ndarray]:
        yield from (row.ids for row in rows)
        yield spans

    lengths = [len(row) for row in rows]
    return Batches(pack, lengths, batch_size, shuffle=shuffle, seed=seed, content=content, **options)


def _spans(rows: Sequence[Row], answers: Sequence[tuple[int, int] | None]) -> list[tuple[int, int]]:
    """First and last token of the answer in each row; 0, 0 without the whole answer."""
    spans = [token_span(row, answers[row.text]) for row in rows]
    # Characters at the edges of an answer may have no token, so its extent is that of its tokens in all rows.
    begins: dict[int, int] = {}
    stops: dict[int, int] = {}
    for row, span in zip(rows, spans, strict=True):
        if span is not None:
            start, stop = row.offsets[span[0], 0], row.offsets[span[1], 1]
            begins[row.text] = min(begins.get(row.text, start), start)
            stops[row.text] = max(stops.get(row.text, stop), stop)

    def whole(row: Row, span: tuple[int, int]) -> bool:
        return (row.offsets[span[0], 0], row.offsets[span[1], 1]) == (begins[row.text], stops[row.text])

    return [
        span if span is not None and whole(row, span) else (0, 0)
        for row, span in zip(rows, spans, strict=True)
    ]


def token_span(row: Row, answer: tuple[int, int] | None) -> tuple[int, int] | None:
    """First and last token of the second text with characters of the answer; None without any."""
    if answer is None:
        return None
    starts, ends = row.offsets[:, 0], row.offsets[:, 1]
    within = np.flatnonzero((row.parts == 1) & (ends > answer[0]) & (starts < answer[1]))
    return (int(within[0]), int(within[-1])) if within.size else None
