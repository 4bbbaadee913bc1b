"""Answers that are places in a text: entities, and the span that answers a question."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import InputError, true_or_false, whole_number
from keras_tx.processing import Row
from keras_tx.processing.text_input import check_texts
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session
from keras_tx.runtime.tasks.scores import softmax
from keras_tx.runtime.tasks.text import TextModel, labels_for

OUTSIDE = "O"


class TextTagger(TextModel):
    """The entities of texts.

    >>> load("names")("Ada lives in London.")  # doctest: +SKIP
    [{'label': 'PER', 'score': 0.99, 'start': 0, 'end': 3, 'text': 'Ada'}, ...]
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session, (contract.LOGITS,))
        self._labels = labels_for(folder, session)

    @property
    def labels(self) -> tuple[str, ...]:
        return self._labels

    def tag(
        self,
        texts: Any,
        *,
        merge: bool = True,
        overlap: int | None = None,
        batch_size: int = 32,
        progress: bool = False,
    ) -> list[Any]:
        """The entities of a text in order; of a list of texts, a list of those.

        A word has the label of its first piece. Neighbours merge: B- and I- as in CoNLL, other labels where
        they are equal; the score is the mean. With `merge=False` every word comes with its label, O too.
        `start` and `end` are characters of the text as it was given. A long text is read in windows that
        overlap, and each word is taken from the one where it has most around it.
        """
        true_or_false("merge", merge)
        shared = (self.transform.max_length or 0) // 4 if overlap is None else overlap

        def answer(texts: Any, start: int) -> list[Any]:
            several = check_texts("texts", texts, start)
            rows = self.transform.windows(several, overlap=shared, start=start)
            found = self.run_rows(rows, lambda row, out: softmax(out[contract.LOGITS]), batch_size)
            words: list[dict[int, tuple]] = [{} for _ in several]
            for row, scores in zip(rows, found, strict=True):
                _collect(words[row.text], row, scores)
            return [self._entities(text, known, merge) for text, known in zip(several, words, strict=True)]

        answers = self.in_parts(answer, texts, batch_size=batch_size, progress=progress)
        return answers[0] if isinstance(texts, str) else answers

    __call__ = tag

    def _entities(self, text: str, words: dict[int, tuple], merge: bool) -> list[dict[str, Any]]:
        tagged = []
        for _, (_, start, end, scores) in sorted(words.items()):
            best = int(np.argmax(scores))
            tagged.append((self.labels[best], float(scores[best]), start, end))
        if not merge:
            return [_entity(text, label, [score], start, end) for label, score, start, end in tagged]
        return merged(text, tagged)


def _collect(words: dict[int, tuple], row: Row, scores: np.ndarray) -> None:
    """Notes each word of a window with the scores of its first piece, if no better window has it."""
    places = np.flatnonzero(row.parts == 0)
    for word in np.unique(row.words[places]):
        pieces = places[row.words[places] == word]
        start, end = int(row.offsets[pieces[0], 0]), int(row.offsets[pieces[-1], 1])
        around = min(pieces[0] - places[0], places[-1] - pieces[-1])
        rank = (-start, end, around)  # whole words first, then those with most around them
        if word not in words or rank > words[word][0]:
            words[word] = (rank, start, end, scores[pieces[0]])


def merged(text: str, words: list[tuple[str, float, int, int]]) -> list[dict[str, Any]]:
    """Words (label, score, start, end) as entities."""
    groups: list[tuple[str, list[float], int, int]] = []
    open_label = None  # what a word may go on with
    for label, score, start, end in words:
        prefix, kind = label.split("-", 1) if label[:2] in ("B-", "I-") else ("I", label)
        if label == OUTSIDE:
            open_label = None
        elif prefix == "I" and kind == open_label:
            name, scores, first, _ = groups[-1]
            groups[-1] = (name, [*scores, score], first, end)
        else:
            groups.append((kind, [score], start, end))
            open_label = kind
    return [_entity(text, *group) for group in groups]


def _entity(text: str, label: str, scores: list[float], start: int, end: int) -> dict[str, Any]:
    score = sum(scores) / len(scores)
    return {"label": label, "score": score, "start": start, "end": end, "text": text[start:end]}


class QuestionAnswerer(TextModel):
    """The part of a text that answers a question.

    >>> load("squad")("Who lives in London?", "Ada lives in London.")  # doctest: +SKIP
    [{'answer': 'Ada', 'score': 0.97, 'start': 0, 'end': 3, 'no_answer': 0.01}]
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session, (contract.START_LOGITS, contract.END_LOGITS))

    def answer(
        self,
        questions: Any,
        texts: Any,
        *,
        top_k: int = 1,
        max_tokens: int = 30,
        overlap: int | None = None,
        batch_size: int = 32,
        progress: bool = False,
    ) -> list[Any]:
        """The `top_k` best answers to a question, best first; to a list of questions, a list of those.

        The score is the probability of the first token times that of the last. `no_answer` is the same for
        the class token; where it is largest, the answer is "". A long text is read in windows that overlap;
        what has no answer in one of them may have it in another, so that `no_answer` is the least of all.

        Questions and texts are lists; iterators are read whole before the first is answered.

        Args:
            max_tokens: the longest answer.
            overlap: of windows, in tokens; by default a quarter of the room for the text.
        """
        one = isinstance(questions, str)
        asked = check_texts("questions", _whole(questions))
        given = [texts] * len(asked) if isinstance(texts, str) else check_texts("texts", _whole(texts))
        if len(asked) != len(given):
            raise InputError(
                f"There are {len(asked)} questions but {len(given)} texts: one for each is expected."
            )
        top_k, max_tokens = whole_number("top_k", top_k), whole_number("max_tokens", max_tokens)

        def some(asked: Any, given: Any, start: int) -> list[Any]:
            rows: list[Row] = []
            for index, (question, text) in enumerate(zip(asked, given, strict=True)):
                share = self._overlap(question, overlap, start + index)
                windows = self.transform.windows([question], [text], overlap=share, start=start + index)
                rows += [dataclasses.replace(row, text=index) for row in windows]
            found = self.run_rows(rows, lambda row, out: _spans(row, out, top_k, max_tokens), batch_size)
            candidates: list[list[tuple[float, int, int]]] = [[] for _ in asked]
            none = [1.0] * len(asked)
            for row, (spans, no_answer) in zip(rows, found, strict=True):
                candidates[row.text] += spans
                none[row.text] = min(none[row.text], no_answer)
            return [
                _answers(text, spans, no_answer, top_k)
                for text, spans, no_answer in zip(given, candidates, none, strict=True)
            ]

        answers = self.in_parts(some, asked, given, batch_size=batch_size, progress=progress)
        return answers[0] if one else answers

    __call__ = answer

    def _overlap(self, question: str, overlap: int | None, index: int) -> int:
        if overlap is not None:
            return overlap
        (row,) = self.transform.encode([question], start=index)
        return max(0, (self.transform.max_length or 0) - len(row) - 1) // 4


def _whole(texts: Any) -> Any:
    return list(texts) if isinstance(texts, Iterator) else texts


def _spans(
    row: Row, outputs: dict[str, np.ndarray], top_k: int, max_tokens: int
) -> tuple[list[tuple[float, int, int]], float]:
    """The best spans (score, first, end) of a window, in characters, and the score of no answer."""
    places = np.concatenate([[0], np.flatnonzero(row.parts == 1)])  # the class token stands for no answer
    start, end = (softmax(outputs[name][places]) for name in (contract.START_LOGITS, contract.END_LOGITS))
    scores = np.triu(np.outer(start[1:], end[1:]))
    scores = np.tril(scores, max_tokens - 1)
    best = np.argsort(-scores, axis=None, kind="stable")[:top_k]
    first, last = np.unravel_index(best, scores.shape)
    offsets = row.offsets[places[1:]]
    spans = [
        (float(scores[i, j]), int(offsets[i, 0]), int(offsets[j, 1]))
        for i, j in zip(first, last, strict=True)
        if i <= j < i + max_tokens
    ]
    return spans, float(start[0] * end[0])


def _answers(
    text: str, spans: list[tuple[float, int, int]], no_answer: float, top_k: int
) -> list[dict[str, Any]]:
    best: dict[tuple[int, int], float] = {(0, 0): no_answer}
    for score, start, end in spans:  # windows that overlap find the same span twice
        best[start, end] = max(score, best.get((start, end), 0.0))
    order = sorted(best.items(), key=lambda entry: -entry[1])[:top_k]
    return [
        {"answer": text[start:end], "score": score, "start": start, "end": end, "no_answer": no_answer}
        for (start, end), score in order
    ]
