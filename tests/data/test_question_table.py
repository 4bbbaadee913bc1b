"""Tables of questions in the format of SQuAD: spans, unanswerable questions, and broken answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import keras_tx
from keras_tx.data import question_table
from keras_tx.errors import TextError
from keras_tx.processing import train_wordpiece

DOCUMENT = "Ada lives in Paris. Bob lives in Paris too, and 🐈 lives with Ada."


def question(text: str, answers: list[tuple[str, int]] | None = None, **fields: Any) -> dict[str, Any]:
    rows = [{"text": answer, "answer_start": start} for answer, start in answers or []]
    return {"id": text[:5], "question": text, "answers": rows, **fields}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(*questions: Any, document: Any = DOCUMENT) -> Path:
        path = tmp_path / "squad.json"
        content = {
            "version": "v2.0",
            "data": [{"title": "t", "paragraphs": [{"context": document, "qas": questions}]}],
        }
        path.write_text(json.dumps(content), encoding="utf-8")
        return path

    return write


def test_answers_are_spans_of_the_document(write):
    with_cat = question(
        "Who lives with Ada?", [("🐈", DOCUMENT.index("🐈")), ("and 🐈", DOCUMENT.index("and"))]
    )
    table = question_table(
        write(question("Where is Ada?", [("Paris", 13)]), with_cat, question("Why?", is_impossible=True))
    )
    assert [None if span is None else DOCUMENT[slice(*span)] for span in table.answers] == [
        "Paris",
        "🐈",
        None,
    ]
    assert table.answer_texts == [("Paris",), ("🐈", "and 🐈"), ()]
    assert table.documents == [DOCUMENT] * 3 and len(table) == 3
    assert "1 questions have no answer" in repr(table)


@pytest.mark.parametrize(
    ("broken", "match"),
    [
        (
            question("Where is Ada?", [("Paris", 12)]),
            r"question Where, column 'answers': 'Paris' is not at char",
        ),
        (question("Where is Ada?", [("Paris", 12)]), r"context has ' Pari'; it is at 13 and 33"),
        (question("Where is Ada?", [("Rome", 13)]), "the context does not contain it"),
        (question("Where is Ada?", [("Ada.", -4)]), "is not at character -4"),
        (question("Where is Ada?"), "no answer, and is_impossible is not true"),
        (question(" ", [("Paris", 13)]), "column 'question': the text is empty"),
        (question("Where?", [("Paris", "13")]), "has no text or no answer_start"),  # type: ignore[list-item]
        ("Where?", r"data\[0\].paragraphs\[0\].qas\[1\]: 'Where\?' is not an object"),
    ],
)
def test_broken_questions_are_named_or_left_out(write, broken, match):
    path = write(question("Where is Bob?", [("Paris", 33)]), broken)
    with pytest.raises(TextError, match="1 broken row of 2: ") as raised:
        question_table(path)
    assert raised.match(match)
    table = question_table(path, skip_broken=True)
    assert table.questions == ["Where is Bob?"] and len(table.broken) == 1


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{", "is not JSON"),
        ("[]", "the file has no list 'data'"),
        ('{"data": [{"title": "t"}]}', r"data\[0\] has no list 'paragraphs'"),
        ('{"data": []}', "has no questions to train on"),
    ],
)
def test_other_files_are_refused(tmp_path, content, match):
    path = tmp_path / "other.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TextError, match=match):
        question_table(path)
    with pytest.raises(TextError, match="cannot be read"):
        question_table(tmp_path / "none.json")


def test_split_keeps_documents_together_and_batches_fit(tmp_path):
    texts = [f"Ada number {index} lives in Paris." for index in range(10)]
    paragraphs = [
        {
            "context": text,
            "qas": [question(f"{index} {n}?", [("Paris", text.index("Paris"))]) for n in range(3)],
        }
        for index, text in enumerate(texts)
    ]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}), encoding="utf-8")
    train, validation = question_table(path).split(0.2)
    assert len(train) == 24 and len(validation) == 6
    assert not set(train.documents) & set(validation.documents)
    words = train_wordpiece(texts * 2 + ["?"] * 2, 80, max_length=32)
    model = keras_tx.bert("tiny", depth=1, head=keras_tx.SpanHead(), processing=words)
    model.compile()
    history = model.fit(train.batches(words, overlap=4), verbose=0)
    assert history.history["loss"][0] > 0
    inputs, labels = train.batches(words, overlap=4, shuffle=False)[0]
    first, last = int(labels["start_logits"][0]), int(labels["end_logits"][0])
    assert words.decode(inputs["input_ids"][0, first : last + 1]) == "paris"
