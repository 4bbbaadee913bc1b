"""Questions, documents and answers of a file in the format of SQuAD."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from keras_tx.data.batches import Batches
from keras_tx.data.question_answering import question_answering_batches
from keras_tx.data.stratified_split import stratified_split
from keras_tx.data.table_file import BrokenRow, cell_problem, encoding_problem, refuse_broken
from keras_tx.errors import TextError, true_or_false
from keras_tx.processing import TextTransform

EXPECTED = (
    'Expected {"data": [{"paragraphs": [{"context": ..., "qas": [{"question": ..., "answers": [{"text": ..., '
    '"answer_start": ...}]}]}]}]}'
)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class QuestionTable:
    """Questions about documents, from a file; `question_table` returns it. `print` shows a summary.

    Args:
        path: path of the file.
        questions: one per row.
        documents: the text that each question is about.
        answers: the indices of the first character of the answer in the document and of the character after
            it; None without an answer.
        answer_texts: all texts that are correct answers, for metrics; empty without an answer.
        ids: ids of the questions.
        broken: questions that were left out.
    """

    path: Path
    questions: list[str]
    documents: list[str]
    answers: list[tuple[int, int] | None]
    answer_texts: list[tuple[str, ...]]
    ids: list[str]
    broken: tuple[BrokenRow, ...] = ()

    def __len__(self) -> int:
        return len(self.questions)

    def batches(self, transform: TextTransform, **options: Any) -> Batches:
        """Returns batches for a SpanHead, as `question_answering_batches` does.

        Args:
            transform: the tokenizer: `model.processing`.
            options: `overlap`, `batch_size`, `shuffle`, `seed` and other options of
                `question_answering_batches`.
        """
        return question_answering_batches(self.questions, self.documents, self.answers, transform, **options)

    def split(self, share: float, *, seed: int = 0) -> tuple[QuestionTable, QuestionTable]:
        """Returns tables of the questions for training and for validation.

        All questions about a document are in the same table. Which documents are held out depends on their
        texts and the seed, so the split hardly changes when documents are added.

        Args:
            share: share of the documents for validation, such as 0.1.
            seed: seed of the choice.

        Raises:
            ConfigError: the share or the seed is out of range, or there are too few documents.
        """
        train, validation = stratified_split(self.documents, [0] * len(self), share, seed)
        return self.take(train), self.take(validation)

    def take(self, rows: Iterable[int]) -> QuestionTable:
        """Returns a table of these rows, by index."""
        rows = [int(row) for row in rows]
        names = ("questions", "documents", "answers", "answer_texts", "ids")
        return dataclasses.replace(
            self, **{name: [getattr(self, name)[row] for row in rows] for name in names}
        )

    def __repr__(self) -> str:
        without = sum(answer is None for answer in self.answers)
        documents = len(set(self.documents))
        lines = [f"{self.path.name}: {len(self):,} questions about {documents:,} documents"]
        if without:
            lines.append(f"{without:,} questions have no answer in their document")
        if self.broken:
            lines.append(f"{len(self.broken):,} broken questions were left out: {self.broken[0]}")
        return "\n".join(lines)


def question_table(path: str | os.PathLike[str], *, skip_broken: bool = False) -> QuestionTable:
    """Reads questions, documents and answers from a JSON file in the format of SQuAD 1.1 or 2.0.

    Questions with `is_impossible` have no answer: their label is the class token. Of several answers, the
    first one is the label.

        train, validation = tx.question_table("train-v2.0.json").split(0.1)
        model = tx.from_checkpoint("hf://owner/name", head=tx.SpanHead())
        model.compile()
        model.fit(train.batches(model.processing), validation_data=validation.batches(model.processing))

    Args:
        path: path of the file.
        skip_broken: whether questions that cannot be used are left out and listed in `table.broken`. By
            default they raise an error.

    Returns:
        A QuestionTable.

    Raises:
        TextError: the file is not in this format, or has broken questions: without a text, without an answer
            and `is_impossible`, or with an answer that does not match the document. The message contains
            their ids.
    """
    path = Path(path)
    skip_broken = true_or_false("skip_broken", skip_broken)
    columns: tuple[list[Any], ...] = ([], [], [], [], [])
    broken, count = [], 0
    for place, document, question in _questions(path, _content(path)):
        count += 1
        row = _row(path, place, document, question)
        if isinstance(row, BrokenRow):
            broken.append(row)
        else:
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    if not skip_broken:
        refuse_broken(path, broken, count)
    if not columns[0]:
        reason = f" The first is broken: {broken[0]}." if broken else f" {EXPECTED}."
        raise TextError(f"{path} has no questions to train on.{reason}")
    return QuestionTable(path, *columns, broken=tuple(broken))


def _content(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise TextError(f"{path} is not JSON: {error}. {EXPECTED}.") from None
    except UnicodeDecodeError as error:
        raise TextError(f"{path} is not UTF-8: {error}. Save it as UTF-8.") from None
    except OSError as error:
        raise TextError(f"{path} cannot be read: {error.strerror or error}. Check the path.") from error


def _questions(path: Path, content: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yields the place, the document and the object of each question."""

    def items(value: Any, key: str, place: str) -> Iterator[tuple[str, Any]]:
        if not isinstance(value, dict) or not isinstance(value.get(key), list):
            raise TextError(f"{path}: {place or 'the file'} has no list {key!r}. {EXPECTED}.")
        for index, one in enumerate(value[key]):
            yield f"{place}{'.' * bool(place)}{key}[{index}]", one

    for article_place, article in items(content, "data", ""):
        for paragraph_place, paragraph in items(article, "paragraphs", article_place):
            for place, question in items(paragraph, "qas", paragraph_place):
                yield place, paragraph.get("context"), question


def _row(path: Path, place: str, document: Any, question: Any) -> list[Any] | BrokenRow:
    """The columns of a question, or its problem."""
    if not isinstance(question, dict):
        return BrokenRow(path, place, None, f"{question!r:.40} is not an object")
    name = str(question.get("id", place))
    place = f"question {name}"
    for column, value in (("context", document), ("question", question.get("question"))):
        if (problem := cell_problem(value)) is not None:
            return BrokenRow(path, place, column, problem)
    answers = question.get("answers") or []
    if question.get("is_impossible"):
        answers = []
    elif not answers:
        return BrokenRow(path, place, "answers", "there is no answer, and is_impossible is not true")
    spans = []
    for answer in answers:
        span = _span(document, answer)
        if isinstance(span, str):
            return BrokenRow(path, place, "answers", span)
        spans.append(span)
    texts = tuple(document[start:stop] for start, stop in spans)
    return [question["question"], document, spans[0] if spans else None, texts, name]


def _span(document: str, answer: Any) -> tuple[int, int] | str:
    """The place of an answer in its document, or why it has none."""
    if not isinstance(answer, dict):
        return f"{answer!r:.40} is not an object"
    text, start = answer.get("text"), answer.get("answer_start")
    if not isinstance(text, str) or not text.strip() or type(start) is not int:
        return f"{answer!r:.60} has no text or no answer_start"
    if (problem := encoding_problem(text)) is not None:
        return problem
    stop = start + len(text)
    if start >= 0 and document[start:stop] == text:
        return start, stop
    places = [at for at in range(len(document)) if document.startswith(text, at)][:2]
    where = f"it is at {' and '.join(map(str, places))}" if places else "the context does not contain it"
    there = document[max(0, start) : max(0, stop)]
    return f"{text!r:.60} is not at character {start}, where the context has {there!r:.60}; {where}"
