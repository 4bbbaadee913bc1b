"""Fingerprints of batches: equal for equal content, and different if a text, a label or an option differs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx import data
from keras_tx.data.content_digest import MOST, content_digest
from keras_tx.errors import ConfigError
from keras_tx.processing import TokenWriter, train_wordpiece
from keras_tx.training import fit_resumable

WORDS = train_wordpiece(["a good bad film , one two uno due"] * 2, 80, max_length=12)
GOOD = dataclasses.replace(WORDS, mask_token="[MASK]")
BLOCK: dict[str, Any] = {"length": 6, "batch_size": 2}


def token_file(folder: Path, last: int) -> Path:
    path = folder / f"{last}.tokens"
    with TokenWriter(path, vocabulary_size=WORDS.vocabulary_size, end_of_text=1) as writer:
        for document in ([2, 3, 4, 5, 6, 7, 8] * 5, [2, 3, 4, 5, last] * 6):
            writer.add(document, text_bytes=10)
            writer.end_document()
    return path


# A function of the batches: of a word in the last sample, a label of the last sample, and the tokenizer.
MAKERS: dict[str, Callable[[str, int, Any], Any]] = {
    "text_classification": lambda word, label, words: data.text_classification_batches(
        ["a film", "a good film", f"a {word}"], [0, 1, label], words
    ),
    "pairs": lambda word, label, words: data.text_classification_batches(
        ["a", "a", "a"], [0, 1, label], words, pairs=["film", "two", word]
    ),
    "token_classification": lambda word, label, words: data.token_classification_batches(
        [["a", "film"], ["a", word]], [[0, 1], [0, label]], words
    ),
    "text_similarity": lambda word, label, words: data.text_similarity_batches(
        ["a", "film"], ["two", word], [0.5, label / 4], words
    ),
    "text_ranking": lambda word, label, words: data.text_ranking_batches(
        ["a", "film"], ["two", word], words, negatives=["uno", ("due", "two")[label]]
    ),
    "multiple_choice": lambda word, label, words: data.multiple_choice_batches(
        ["a", "film"], [["one", "two"], ["good", word]], [0, label], words
    ),
    "question_answering": lambda word, label, words: data.question_answering_batches(
        ["one", "two"], ["a film", f"good {word}"], [(0, 1), [(0, 4), None][label]], words, overlap=2
    ),
    "sequence_to_sequence": lambda word, label, words: data.sequence_to_sequence_batches(
        ["one", word], ["uno", ("due", "film")[label]], _with_end(words)
    ),
    "masked_lm": lambda word, label, words: data.masked_lm_batches(
        ["a good film", f"one {word} {('due', 'uno')[label]}"], words
    ),
    "sentence_pair": lambda word, label, words: data.sentence_pair_batches(
        [["a", "film", "good"], ["one", "two", f"{word} {('due', 'uno')[label]}"]], words
    ),
}


def _with_end(words: Any) -> Any:
    return dataclasses.replace(words, eos_token="[SEP]")


@pytest.mark.parametrize("name", MAKERS)
def test_content_and_options_are_compared(name):
    make = MAKERS[name]
    batches = make("good", 1, GOOD)
    before = batches.fingerprint()
    assert before["digest of the samples"] and make("good", 1, GOOD).fingerprint() == before
    assert make("bad", 1, GOOD).fingerprint() != before
    assert make("good", 0, GOOD).fingerprint() != before
    assert make("good", 1, dataclasses.replace(GOOD, multiple=8)).fingerprint() != before
    batches.on_epoch_end()
    assert batches.fingerprint() == before


def test_token_files_are_compared(tmp_path):
    one, other = token_file(tmp_path, 10), token_file(tmp_path, 11)
    for make in (
        lambda path: data.causal_lm_batches(path, **BLOCK),
        lambda path: data.causal_lm_batches(path, separate_documents=True, **BLOCK),
    ):
        assert make(one).fingerprint() == make(one).fingerprint() != make(other).fingerprint()
    short = data.causal_lm_batches(one, 5, 2)
    assert short.fingerprint() != data.causal_lm_batches(one, **BLOCK).fingerprint()


def test_batches_of_a_user_are_compared_by_their_samples():
    def batches(rows: np.ndarray) -> data.Batches:
        return data.Batches(lambda chosen, random: (rows[chosen], rows[chosen]), np.ones(len(rows)), 4)

    rows = np.arange(50.0)
    assert batches(rows).fingerprint() == batches(rows.copy()).fingerprint()
    other = rows.copy()
    other[37] = -1
    assert batches(other).fingerprint() != batches(rows).fingerprint()


def test_images_are_not_read_for_the_fingerprint(monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), "uint8")
    batches = keras_tx.image_batches(pixels, [0, 1] * 3, keras_tx.ImageTransform(8))
    monkeypatch.setattr(batches, "_prepare", None)
    monkeypatch.setattr(batches, "pack", None)
    other = keras_tx.image_batches(pixels[::-1].copy(), [0, 1] * 3, keras_tx.ImageTransform(8))
    assert batches.fingerprint() != other.fingerprint()


def test_state_of_other_texts_is_refused(tmp_path):
    def train(texts: list[str], epochs: int) -> None:
        model = keras_tx.bert("tiny", depth=1, num_classes=2, processing=WORDS)
        model.compile(run_eagerly=True)
        batches = data.text_classification_batches(texts, [0, 1, 0, 1], WORDS)
        fit_resumable(model, batches, tmp_path / "state", epochs=epochs, verbose=0)

    train(["a film", "good", "bad", "two"], 1)
    with pytest.raises(ConfigError, match="other data: batches: digest of the samples was .* now it is"):
        train(["a film", "good", "bad", "uno"], 2)
    train(["a film", "good", "bad", "two"], 2)


def test_large_arrays_are_read_in_part(monkeypatch):
    rows = np.arange(1000)
    monkeypatch.setattr("keras_tx.data.content_digest.MOST", rows.nbytes // 10)
    before = content_digest([rows])
    rows[1] += 1
    assert content_digest([rows]) == before
    rows[10] += 1
    assert content_digest([rows]) != before
    assert MOST == 2**28
