"""Question answering: the span of a text that answers a question."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import InputError, whole_number
from keras_tx.processing import Row
from keras_tx.processing.text_input import check_texts
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session
from keras_tx.runtime.tasks.base import Answer, DrawBar, RunOptions, Task, per_adapter
from keras_tx.runtime.tasks.scores import softmax
from keras_tx.runtime.tasks.text_task import TextTask, run_example, trim_span

Span = tuple[float, int, int]  # score, and the first and last character


class QuestionAnswerer(TextTask):
    """Answers questions about texts.

    >>> load("squad")("Who lives in London?", "Ada lives in London.", top_k=1)  # doctest: +SKIP
    [{'answer': 'Ada', 'score': 0.97, 'start': 0, 'end': 3, 'no_answer': 0.01}]
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session, (contract.START_LOGITS, contract.END_LOGITS))

    @per_adapter
    def answer(
        self,
        questions: Any,
        texts: Any,
        *,
        top_k: int = 5,
        max_tokens: int = 30,
        overlap: int | None = None,
        batch_size: int = 32,
        progress: bool = False,
    ) -> list[Any]:
        """Returns the best answers to questions.

        The score of an answer is the probability of its first token times that of its last. `no_answer` is
        this score for the class token; if it is the highest, the answer is "". In a long text it is the
        minimum over all windows.

        Args:
            questions: a question, or an iterable of questions.
            texts: a text for all questions, or an iterable with one for each.
            top_k: number of answers to each question.
            max_tokens: maximum number of tokens of an answer.
            overlap: tokens that neighbouring windows of a long text share; by default a quarter of the
                tokens that the question leaves for the text.
            batch_size: number of windows that the graph computes together.
            progress: whether to show a progress bar.

        Returns:
            A list of {"answer", "score", "start", "end", "no_answer"}, best first, where start and end are
            characters of the text; for several questions, a list of these lists.

        Raises:
            InputError: if questions and texts differ in number.
            TextError: if an item is not a text.
            ConfigError: if `top_k`, `max_tokens` or `batch_size` is not a positive integer.
        """
        single = isinstance(questions, str)
        questions = check_texts("questions", _as_list(questions))
        texts = [texts] * len(questions) if isinstance(texts, str) else check_texts("texts", _as_list(texts))
        if len(questions) != len(texts):
            raise InputError(
                f"There are {len(questions)} questions but {len(texts)} texts. Pass one text for each "
                "question, or a single text."
            )
        top_k, max_tokens = whole_number("top_k", top_k), whole_number("max_tokens", max_tokens)

        def answer(questions: Any, texts: Any, start: int) -> list[Any]:
            rows: list[Row] = []
            for index, (question, text) in enumerate(zip(questions, texts, strict=True)):
                shared = self._overlap(question, overlap, start + index)
                windows = self.transform.windows([question], [text], overlap=shared, start=start + index)
                rows += [dataclasses.replace(row, text=index) for row in windows]
            results = self.run_rows(
                rows, lambda row, out: _best_spans(row, out, top_k, max_tokens), batch_size
            )
            spans: list[list[Span]] = [[] for _ in questions]
            no_answer = [1.0] * len(questions)
            for row, (row_spans, row_no_answer) in zip(rows, results, strict=True):
                spans[row.text] += row_spans
                no_answer[row.text] = min(no_answer[row.text], row_no_answer)
            return [_best_answers(*column, top_k) for column in zip(texts, spans, no_answer, strict=True)]

        answers = self.map_texts(answer, questions, texts, batch_size=batch_size, progress=progress)
        return answers[0] if single else answers

    __call__ = answer

    def _overlap(self, question: str, overlap: int | None, index: int) -> int:
        if overlap is not None:
            return overlap
        (row,) = self.transform.encode([question], start=index)
        return max(0, (self.transform.max_length or 0) - len(row) - 1) // 4


def _as_list(texts: Any) -> Any:
    return list(texts) if isinstance(texts, Iterator) else texts


def _best_spans(
    row: Row, outputs: dict[str, np.ndarray], top_k: int, max_tokens: int
) -> tuple[list[Span], float]:
    """The best spans of a window, in characters, and the score of no answer."""
    places = np.concatenate([[0], np.flatnonzero(row.parts == 1)])  # the class token means no answer
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


def _best_answers(text: str, spans: list[Span], no_answer: float, top_k: int) -> list[dict[str, Any]]:
    best: dict[tuple[int, int], float] = {(0, 0): no_answer}
    for score, start, end in spans:  # overlapping windows contain the same span twice
        span = trim_span(text, start, end)
        if span[0] < span[1]:
            best[span] = max(score, best.get(span, 0.0))
    order = sorted(best.items(), key=lambda entry: -entry[1])[:top_k]
    return [
        {"answer": text[start:end], "score": score, "start": start, "end": end, "no_answer": no_answer}
        for (start, end), score in order
    ]


def _answers(model: QuestionAnswerer, texts: Sequence[str], options: RunOptions) -> list[Answer]:
    results = model.answer([options.question] * len(texts), list(texts), top_k=options.top_k)
    return [{"question": options.question, "answers": answers} for answers in results]


def _render(answer: Answer, draw_bar: DrawBar) -> Iterator[str]:
    for row in answer["answers"]:
        yield f"  {row['score']:6.1%}  {row['start']}-{row['end']}  {row['answer'] or '(no answer)'}"


TASK = Task(
    contract.QUESTION_ANSWERING,
    QuestionAnswerer,
    "text",
    metric="exact match",
    required=("question",),
    answer=_answers,
    render=_render,
    run_example=run_example,
)
