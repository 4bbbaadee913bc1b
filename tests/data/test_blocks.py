"""Blocks of a token file: contents, order, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.data import causal_lm_batches
from keras_tx.errors import ConfigError
from keras_tx.processing import TokenWriter

END = 2999


def write(path: Path, *documents: int) -> Path:
    """Documents of so many tokens, numbered on through all of them, the end-of-text token behind each."""
    place = 0
    with TokenWriter(path, vocabulary_size=3000, end_of_text=END) as writer:
        for length in documents:
            writer.add(np.arange(place, place + length))
            writer.end_document()
            place += length + 1
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """1000 tokens, each the number of its place, or the end of a text."""
    return write(tmp_path / "a.tokens", 199, 4, 0, 300, 493)


def every(batches: Any) -> list[Any]:
    return [batches[index] for index in range(len(batches))]


def labelled(batches: Any) -> np.ndarray:
    """All labels, in order of their places; one that is the end of a text counts as its place."""
    places = []
    for ids, labels in every(batches):
        behind = np.where(labels == END, ids + 1, labels)
        places.append(behind[labels >= 0])
    return np.sort(np.concatenate(places))


def test_in_order_each_token_but_the_first_is_a_label_once(tmp_path):
    path = write(tmp_path / "one.tokens", 999)
    blocks = causal_lm_batches(path, 64, 3, shuffle=False)
    assert [ids.shape for ids, _ in every(blocks)] == [(3, 64)] * 5 + [(1, 64)]
    ids, labels = (np.concatenate(x) for x in zip(*every(blocks), strict=True))
    assert ids.dtype == labels.dtype == np.int32
    np.testing.assert_array_equal(labels[labels >= 0], [*range(1, 999), END])
    np.testing.assert_array_equal(ids[labels >= 0], np.arange(999))
    assert (labels == -100).sum() == 16 * 64 - 999


def test_each_epoch_has_each_token_once_from_another_offset(tmp_path):
    path = write(tmp_path / "one.tokens", 999)
    blocks = causal_lm_batches(path, 16, 4, seed=1)
    firsts = set()
    for epoch in range(5):
        blocks.seek(epoch)
        places = labelled(blocks)
        assert len(places) == len(set(places)) == len(blocks) * 64 == 15 * 64
        np.testing.assert_array_equal(places, np.arange(places[0], places[0] + 960))  # no gap
        firsts.add(int(places[0]))
        assert {ids.shape for ids, _ in every(blocks)} == {(4, 16)}
        for ids, labels in every(blocks):
            np.testing.assert_array_equal(ids[:, 1:], labels[:, :-1])
    assert len(firsts) > 2


def test_order_depends_only_on_seed_and_epoch(corpus):
    def rows(seed: int, epoch: int) -> Any:
        blocks = causal_lm_batches(corpus, 16, 4, seed=seed)
        blocks.seek(epoch)
        return every(blocks)

    def same(one: Any, other: Any) -> bool:
        return all(
            np.array_equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True)
        )

    assert same(rows(0, 2), rows(0, 2))
    assert not same(rows(0, 2), rows(0, 1))
    assert not same(rows(0, 2), rows(1, 2))


def test_steps_cut_the_same_batches_into_other_epochs(corpus):
    whole, parts = causal_lm_batches(corpus, 16, 4), causal_lm_batches(corpus, 16, 4, steps=7)
    expected, actual = [], []
    for epoch in range(2):
        whole.seek(epoch)
        expected += every(whole)
    for epoch in range(4):
        parts.seek(epoch)
        assert len(parts) == 7
        actual += every(parts)
    for one, other in zip(actual, expected, strict=False):
        np.testing.assert_array_equal(one[0], other[0])
    parts.seek(1, 3)
    assert len(parts) == 4
    np.testing.assert_array_equal(parts[0][0], actual[10][0])
    with pytest.raises(ConfigError, match="epoch=1, batch=7 .* 7 batches"):
        parts.seek(1, 7)
    with pytest.raises(ConfigError, match="steps=7.*shuffle=False"):
        causal_lm_batches(corpus, 16, 4, steps=7, shuffle=False)


def test_documents_are_packed_as_gpt2_has_it(corpus):
    ids, labels = causal_lm_batches(corpus, 400, 1, shuffle=False)[0]
    assert labels[0, 198] == END and ids[0, 199] == END and labels[0, 199] == 200


@pytest.mark.parametrize("shuffle", [False, True])
def test_documents_apart(corpus, shuffle):
    blocks = causal_lm_batches(corpus, 64, 4, separate_documents=True, shuffle=shuffle)
    rows = [row for batch in every(blocks) for row in zip(*batch, strict=True)]
    assert len(rows) == (18 if not shuffle else 16)  # 4, 1, 0, 5 and 8 blocks
    bounds = [0, 200, 205, 206, 507, 1001]
    for ids, labels in rows:
        real = labels >= 0
        assert (real.any() and not real[np.argmin(real) :].any()) or real.all()
        behind = np.where(labels == END, ids + 1, labels)[real]
        document = np.searchsorted(bounds, ids[0], "right")
        assert bounds[document - 1] <= ids[0] and behind.max() < bounds[document]
        np.testing.assert_array_equal(behind, ids[real] + 1)
    if not shuffle:
        inner = set(range(1000)) - {0, 200, 205, 206}  # what begins a document follows from nothing
        assert set(labelled(blocks).tolist()) >= inner - set(bounds)


def test_tf_data_gives_the_same_epochs(corpus):
    pytest.importorskip("tensorflow", reason='pip install "keras-tx[cpu]"')
    blocks = causal_lm_batches(corpus, 16, 4, steps=5)
    data = blocks.tf_data()
    assert int(data.cardinality()) == 5
    for epoch in range(2):
        blocks.seek(epoch)
        for (ids, labels), (x, y) in zip(every(blocks), data.as_numpy_iterator(), strict=True):
            np.testing.assert_array_equal(ids, x)
            np.testing.assert_array_equal(labels, y)


def test_invalid_arguments_raise(corpus, tmp_path):
    with pytest.raises(ConfigError, match="has 1001 tokens.* 2 blocks of 512"):
        causal_lm_batches(corpus, 512, 2)
    with pytest.raises(ConfigError, match="length is 0"):
        causal_lm_batches(corpus, 0)
    with pytest.raises(ConfigError, match="is not a token file"):
        causal_lm_batches(__file__, 8)
    assert len(causal_lm_batches(corpus, 500, 2)) == 1
    model = keras_tx.gpt("pico", vocabulary_size=2999)
    model.compile()
    with pytest.raises(ConfigError, match="vocabulary_size=3000, but .*vocabulary_size=2999"):
        model.fit(causal_lm_batches(corpus, 16, 4))


@pytest.mark.thorough
def test_training_on_blocks_and_bits_per_byte(tmp_path):
    with TokenWriter(tmp_path / "a.tokens", vocabulary_size=8, end_of_text=7) as writer:
        writer.add(np.tile([1, 2, 3, 4, 1, 5], 400), text_bytes=4800)
        writer.end_document()
    keras.utils.set_random_seed(0)
    model = keras_tx.gpt("pico", vocabulary_size=8, depth=1, dropout=0.0, attention_dropout=0.0)
    blocks = causal_lm_batches(tmp_path / "a.tokens", 16, 8, steps=40)
    unseen = causal_lm_batches(tmp_path / "a.tokens", 16, 64, shuffle=False)
    bits = keras_tx.BitsPerByte(unseen.tokens.bytes_per_token)
    model.compile(keras_tx.pretrain_recipe(40, learning_rate=1e-2), metrics=[bits, keras_tx.Perplexity()])
    model.fit(blocks, verbose=0)
    results = model.evaluate(unseen, verbose=0, return_dict=True)
    assert results["loss"] < 0.2
    assert results["perplexity"] == pytest.approx(np.exp(results["loss"]), rel=1e-4)
    # 2400 labels of 2 bytes on average, but for the end of the text
    assert results["bits_per_byte"] == pytest.approx(results["loss"] / np.log(2) * 2401 / 4800, rel=1e-4)
