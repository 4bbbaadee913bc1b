"""The benchmark of LoRA on film reviews prints a row for each kind of training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

import keras_tx
from tests.benchmarks import low_rank_reviews
from tests.wordpiece import wordpiece

PARTS = (["the cat sat", "the dog ran"] * 4, ["good", "bad"] * 4)


def tiny() -> Any:
    processing = dataclasses.replace(keras_tx.TextTransform.of(wordpiece()), max_length=8, too_long="cut")
    head = keras_tx.ClassifierHead(2, labels=low_rank_reviews.NAMES)
    size = len(processing.vocabulary)
    return keras_tx.bert("tiny", vocabulary_size=size, depth=3, head=head, processing=processing)


@pytest.fixture
def eager_functions() -> Iterator[None]:
    """Tracing and compiling the steps is most of what this benchmark takes at a small size."""
    tf = pytest.importorskip("tensorflow")
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def rows_of(table: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in table.splitlines()[4:]]


@pytest.mark.filterwarnings(
    "ignore:Even though the .tf.config.experimental_run_functions_eagerly:UserWarning"
)
@pytest.mark.usefixtures("eager_functions")
def test_the_tables():
    whole, lora = rows_of(low_rank_reviews.time_table(tiny, PARTS, 1, 4))
    assert (whole[0], lora[0]) == ("whole", "lora")
    assert int(lora[1].replace(",", "")) < int(whole[1].replace(",", "")) / 2
    assert whole[3] == "1.00"
    whole, lora = rows_of(low_rank_reviews.accuracy_table(tiny, PARTS, PARTS, 1, 4))
    assert 0 <= float(whole[1]) <= 100 and whole[2] == "+0.00"
    assert float(lora[2]) == pytest.approx(float(lora[1]) - float(whole[1]), abs=0.02)


def test_the_splits_are_disjoint(monkeypatch):
    texts = [f"review {number}" for number in range(5000)]
    monkeypatch.setattr(low_rank_reviews, "read_films", lambda: (texts, ["good"] * 5000))
    train, test = low_rank_reviews.parts(100, 1000, "test")
    same, validation = low_rank_reviews.parts(100, 1000, "validation")
    assert train == same and [len(x[0]) for x in (train, test, validation)] == [100, 1000, 2000]
    assert len({*train[0], *test[0], *validation[0]}) == 3100
