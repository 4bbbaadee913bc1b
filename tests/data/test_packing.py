"""Batches of texts: labels, statistics, and equal batches for equal seeds."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.data import (
    Batches,
    mask_tokens,
    masked_lm_batches,
    question_answering_batches,
    sentence_pair_batches,
    text_classification_batches,
    token_classification_batches,
)
from keras_tx.errors import ConfigError, TextError
from keras_tx.processing import train_wordpiece, wordpiece

WORDS = "alpha beta gamma delta epsilon zeta theta iota kappa omega".split()
RANDOM = np.random.default_rng(0)
TEXTS = [" ".join(RANDOM.choice(WORDS, n)) for n in RANDOM.integers(3, 12, 40)]
TRANSFORM = train_wordpiece(TEXTS, 60, max_length=24)
DOCUMENTS = [[f"{a} {b} {a}" for b in WORDS] for a in WORDS]


def every(batches: Any) -> list[Any]:
    return [keras.tree.map_structure(np.asarray, batches[index]) for index in range(len(batches))]


def same(first: Any, second: Any) -> bool:
    one, two = keras.tree.flatten(first), keras.tree.flatten(second)
    return len(one) == len(two) and all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def masked(rate: float, whole: bool, rows: int = 400) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(3)
    ids = random.integers(5, 1000, (rows, 60))
    allowed = np.ones(ids.shape, bool)
    allowed[:, [0, 30]] = False
    allowed[:, 50:] = False
    words = np.cumsum(random.random(ids.shape) < 0.6, axis=1)
    hidden, labels = mask_tokens(
        ids, allowed, random, mask_id=4, replacements=np.arange(5, 1000), rate=rate,
        words=words if whole else None,
    )  # fmt: skip
    return ids, allowed, words, hidden, labels


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_masking_has_the_shares_of_the_paper(rate, whole):
    ids, allowed, _, hidden, labels = masked(rate, whole)
    chosen = labels != -100
    assert not (chosen & ~allowed).any()
    assert abs(chosen.sum() / allowed.sum() - rate) < 0.01
    np.testing.assert_array_equal(labels[chosen], ids[chosen])
    np.testing.assert_array_equal(hidden[~chosen], ids[~chosen])
    share = {
        "mask": (hidden == 4)[chosen].mean(),
        "same": (hidden == ids)[chosen].mean(),
    }
    four_sigma = 4 * np.sqrt(0.8 * 0.2 / chosen.sum())
    assert abs(share["mask"] - 0.8) < four_sigma
    assert abs(share["same"] - 0.1) < four_sigma
    places = np.flatnonzero(allowed[0])
    of_place = chosen[:, places].mean(axis=0)
    assert of_place.std() < 0.04  # no place is preferred


def test_without_whole_words_each_row_has_exactly_its_share():
    *_, labels = masked(0.15, whole=False)
    assert ((labels != -100).sum(axis=1) == round(0.15 * 48)).all()


def test_words_are_masked_whole():
    _, allowed, words, _, labels = masked(0.15, whole=True)
    for row in range(len(words)):
        for word in np.unique(words[row][allowed[row]]):
            of_word = (labels[row] != -100)[(words[row] == word) & allowed[row]]
            assert of_word.all() or not of_word.any()


def test_rows_with_one_label_train_and_rows_without_labels_do_not():
    ids = np.array([[7, 8, 9], [7, 8, 9]])
    allowed = np.array([[False, True, False], [False, False, False]])
    _, labels = mask_tokens(ids, allowed, np.random.default_rng(0), mask_id=4, replacements=np.arange(5, 9))
    assert labels.tolist() == [[-100, 8, -100], [-100] * 3]
    with pytest.raises(ConfigError, match="rate=1.5"):
        mask_tokens(ids, allowed, np.random.default_rng(0), mask_id=4, replacements=ids[0], rate=1.5)


def test_masked_language_never_masks_special_tokens_and_changes_each_epoch():
    texts = [*TEXTS, "alpha [MASK] beta [SEP] xyzzy"]
    batches = masked_lm_batches(texts, TRANSFORM, whole_words=True, batch_size=8, shuffle=False)
    first = every(batches)
    for inputs, labels in first:
        special = np.isin(inputs["input_ids"], sorted(TRANSFORM.special_ids()))
        assert not np.isin(labels, sorted(TRANSFORM.special_ids())).any()
        assert (labels != -100).any(axis=1).all()
        assert ((labels == -100) | ~special | (inputs["input_ids"] == 4)).all()
        assert (inputs["attention_mask"][labels != -100] == 1).all()
    assert same(
        first, every(masked_lm_batches(texts, TRANSFORM, whole_words=True, batch_size=8, shuffle=False))
    )
    batches.on_epoch_end()
    assert not same(first, every(batches))
    long = masked_lm_batches([" ".join(TEXTS)], TRANSFORM)
    assert long.lengths.sum() - 2 * long.lengths.size == sum(len(piece) for piece in TRANSFORM.pieces(TEXTS))
    with pytest.raises(ConfigError, match="has no mask_token"):
        masked_lm_batches(TEXTS, dataclasses.replace(TRANSFORM, mask_token=None))


def test_half_of_the_second_sentences_follow():
    batches = sentence_pair_batches(DOCUMENTS, TRANSFORM, rate=None, batch_size=9)
    labels = []
    for _ in range(8):
        for inputs, label in every(batches):
            for ids, segments, random in zip(
                inputs["input_ids"], inputs["token_type_ids"], label, strict=True
            ):
                real = ~np.isin(ids, sorted(TRANSFORM.special_ids()))
                first = TRANSFORM.decode(ids[real & (segments == 0)]).split()
                second = TRANSFORM.decode(ids[real & (segments == 1)]).split()
                assert (first[0] != second[0]) == random  # documents differ by the first word of a sentence
            labels += label.tolist()
        batches.on_epoch_end()
    assert abs(np.mean(labels) - 0.5) < 4 * 0.5 / np.sqrt(len(labels))


def test_pretraining_has_both_labels_and_fills_its_rows():
    inputs, labels = sentence_pair_batches(DOCUMENTS, TRANSFORM, batch_size=16)[0]
    assert set(labels) == {"prediction_logits", "seq_relationship_logits"}
    assert labels["prediction_logits"].shape == inputs["input_ids"].shape
    assert 12 < inputs["input_ids"].shape[1] <= 24
    with pytest.raises(TextError, match=r"documents\[0\] is a text"):
        sentence_pair_batches(["a b", "c d"], TRANSFORM)
    with pytest.raises(TextError, match="There are 1 documents"):
        sentence_pair_batches(DOCUMENTS[:1], TRANSFORM)
    with pytest.raises(TextError, match=r"documents\[1\]: texts\[0\]="):
        sentence_pair_batches([DOCUMENTS[0], [""]], TRANSFORM)


@pytest.mark.parametrize("side", ["right", "left"])
def test_answers_are_found_at_their_characters(side):
    transform = dataclasses.replace(TRANSFORM, padding_side=side)
    documents = [f"  {TEXTS[0]}\u200b, {' '.join(TEXTS)}", TEXTS[1], TEXTS[2]]
    start = documents[0].index(TEXTS[7])
    answers = [(start, start + len(" ".join(TEXTS[7].split()[:2]))), None, (0, len(TEXTS[2].split()[0]))]
    batches = question_answering_batches(
        ["iota", "zeta?", "omega"], documents, answers, transform, overlap=8, batch_size=4
    )
    counts = {0: 0, 1: 0, 2: 0}
    question = {transform.pieces(q)[0].ids[0]: i for i, q in enumerate(["iota", "zeta?", "omega"])}
    for inputs, labels in every(batches):
        starts, ends = labels["start_logits"], labels["end_logits"]
        for ids, mask, first, last in zip(
            inputs["input_ids"], inputs["attention_mask"], starts, ends, strict=True
        ):
            text = question[ids[np.argmax(mask) + 1]]
            if first == last == np.argmax(mask):
                continue
            counts[text] += 1
            answer = answers[text]
            assert answer is not None
            assert transform.decode(ids[first : last + 1]) == documents[text][slice(*answer)]
    assert counts[0] >= 1 and counts[1] == 0 and counts[2] == 1
    assert batches.lengths.size > 10


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((3, 3), r"answers\[1\] is \(3, 3\), expected two places in a document of"),
        ((0, 999), r"answers\[1\] is \(0, 999\)"),
        ((5, 6), r"answers\[1\], ' ', "),
    ],
)
def test_invalid_answer_raises_with_its_row(answer, says):
    with pytest.raises(TextError, match=says):
        question_answering_batches(["a", "b"], ["alpha", "alpha beta"], [None, answer], TRANSFORM, overlap=2)


def test_labels_of_words_stand_at_their_first_piece():
    transform = wordpiece([*"[PAD] [UNK] [CLS] [SEP] [MASK]".split(), "good", "##ness", "bad"])
    words, labels = [["goodness", "bad"], ["bad"]], [["B-X", "O"], ["I-X"]]
    classes = ["O", "B-X", "I-X"]
    (_, first), *_ = every(
        token_classification_batches(words, labels, transform, classes=classes, shuffle=False)
    )
    assert first.tolist() == [[-100, 1, -100, 0, -100], [-100, 2, -100, -100, -100]]
    (_, pieces), *_ = every(
        token_classification_batches(
            words, labels, transform, classes=classes, shuffle=False, label_all_tokens=True
        )
    )
    assert pieces[0].tolist() == [-100, 1, 1, 0, -100]
    with pytest.raises(TextError, match=r"labels\[0\]\[1\] is 'Q'. Known: 'O', 'B-X', 'I-X'"):
        token_classification_batches([["bad", "bad"]], [["O", "Q"]], transform, classes=classes)
    with pytest.raises(TextError, match=r"labels\[1\]\[0\] is 3, expected 0 to 2"):
        token_classification_batches(words, [[-100, 1], [3]], transform, classes=3)
    with pytest.raises(TextError, match=r"texts\[1\] has 1 words but 2 labels"):
        token_classification_batches(words, [[0, 1], [1, 1]], transform)


@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_long_documents_become_windows_with_all_their_labels(overlap):
    vocabulary = [*"[PAD] [UNK] [CLS] [SEP] [MASK]".split(), "good", "##ness", "bad"]
    transform = wordpiece(vocabulary, max_length=7)  # five beside the special tokens
    random = np.random.default_rng(overlap)
    texts = [list(random.choice(["goodness", "bad"], n)) for n in (11, 1, 30, 5)]
    labels = [list(range(sum(map(len, texts[:i])), sum(map(len, texts[: i + 1])))) for i in range(4)]
    batches = token_classification_batches(
        texts, labels, transform, overlap=overlap, shuffle=False, batch_size=100
    )
    inputs, targets = batches[0]
    ids_of_label = {}
    for ids, row in zip(inputs["input_ids"], targets, strict=True):
        for token, label in zip(ids, row, strict=True):
            assert (label == -100) == (
                token in (0, 2, 3, 6)
            )  # special tokens, and what is not the first piece
            if label != -100:
                ids_of_label.setdefault(int(label), set()).add(int(token))
    words = [word for text in texts for word in text]
    assert ids_of_label == {i: {5 if word == "goodness" else 7} for i, word in enumerate(words)}
    with pytest.raises(TextError, match="Row 0 of texts has"):
        token_classification_batches(texts, labels, dataclasses.replace(transform, too_long="raise"))


def test_labels_of_texts_are_checked():
    batches = text_classification_batches(TEXTS, np.arange(40) % 3, TRANSFORM, classes=3, batch_size=16)
    seen = np.concatenate([labels for _, labels in every(batches)])
    assert np.bincount(seen).tolist() == [14, 13, 13]
    named = text_classification_batches(
        ["alpha", "beta"], ["no", "yes"], TRANSFORM, classes=["no", "yes"], shuffle=False
    )
    assert named[0][1].tolist() == [0, 1]
    assert text_classification_batches(["alpha", "beta"], [0.5, 1], TRANSFORM)[0][1].dtype == np.float32
    pair, names = ["alpha", "beta"], ["no", "yes", "perhaps"]
    several = text_classification_batches(
        pair, [["yes", "no"], set()], TRANSFORM, classes=names, shuffle=False
    )
    same = text_classification_batches(pair, [[1, 1, 0], [0, 0, 0]], TRANSFORM, classes=3, shuffle=False)
    assert several[0][1].tolist() == same[0][1].tolist() == [[1, 1, 0], [0, 0, 0]]
    assert several[0][1].dtype == same[0][1].dtype == np.float32
    floats = text_classification_batches(
        pair, np.array([[1.0, 1, 0], [0, 0, 0]]), TRANSFORM, classes=names, shuffle=False
    )
    assert floats[0][1].tolist() == several[0][1].tolist()
    numbers = text_classification_batches(
        pair, [[1, 5], [3, 4]], TRANSFORM, shuffle=False
    )  # for a RegressionHead
    assert numbers[0][1].tolist() == [[1, 5], [3, 4]]
    for classes, labels, says in (
        (names, [["yes"], "no"], r"labels\[1\] is 'no', expected a list of names"),
        (names, ["yes", ["no"]], r"labels\[0\] is 'yes', expected a list of names"),
        (3, [[0], [1, 2]], r"labels have the lengths \[1, 2\]"),
        (names, [["yes"], ["maybe"]], r"labels\[1\]\[0\] is 'maybe'"),
        (3, [[1, 0, 0], [0, 2, 0]], r"labels\[1\] is \[0, 2, 0\], expected 0 or 1 for each of 3 classes"),
        (3, [[1, 0], [0, 1]], r"labels\[0\] is \[1, 0\], expected 0 or 1 for each of 3 classes"),
    ):
        with pytest.raises(TextError, match=says):
            text_classification_batches(pair, labels, TRANSFORM, classes=classes)
    for labels, says in (
        ([0, 2], r"labels\[1\] is 2, expected 0 to 1"),
        ([0, -1], r"labels\[1\] is -1"),
        ([0, 1, 1], "2 texts but 3 labels"),
        (["a", "b"], "labels are <U1, expected integers.*classes="),
        ([0.0, 1.0], "labels are float64, expected integers"),
    ):
        with pytest.raises(TextError, match=says):
            text_classification_batches(["alpha", "beta"], labels, TRANSFORM, classes=2)
    with pytest.raises(TextError, match=r"labels\[0\] is nan"):
        text_classification_batches(["alpha", "beta"], [float("nan"), 1], TRANSFORM)


def test_batches_hold_every_sample_once_with_little_padding():
    batches = text_classification_batches(TEXTS, np.arange(40), TRANSFORM, batch_size=7)
    for _ in range(2):
        everything = every(batches)
        assert sorted(np.concatenate([labels for _, labels in everything]).tolist()) == list(range(40))
        padding = np.mean([1 - inputs["attention_mask"].mean() for inputs, _ in everything])
        assert padding < 0.12
        batches.on_epoch_end()
    with pytest.raises(IndexError):
        batches[len(batches)]


def test_tf_data_gives_the_same_batches_each_epoch():
    pytest.importorskip("tensorflow", reason='pip install "keras-tx[cpu]"')
    one, two = (masked_lm_batches(TEXTS, TRANSFORM, batch_size=8, seed=5) for _ in range(2))
    data = two.tf_data()
    assert len(data) == len(one)
    next(iter(data))  # a pass that is left early is an epoch, too
    one.on_epoch_end()
    for _ in range(2):
        assert same(every(one), [keras.tree.map_structure(np.asarray, x) for x in data.as_numpy_iterator()])
        one.on_epoch_end()


@pytest.mark.thorough
@pytest.mark.parametrize("source", ["PyDataset", "tf.data"])
def test_bert_trains_on_the_batches(source):
    if source == "tf.data":
        pytest.importorskip("tensorflow", reason='pip install "keras-tx[cpu]"')
    keras.utils.set_random_seed(0)
    model = keras_tx.bert(
        "tiny", depth=1, width=64, processing=TRANSFORM, head=keras_tx.PretrainingHead(), dropout=0.0
    )
    model.compile(keras_tx.AdamW(3e-3))
    batches = sentence_pair_batches(DOCUMENTS, TRANSFORM, batch_size=16)
    data = batches.tf_data() if source == "tf.data" else batches
    losses = model.fit(data, epochs=6, verbose=0, shuffle=False).history["loss"]
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.thorough
@pytest.mark.parametrize("head", ["classes", "tags"])
def test_batches_may_grow_after_the_first_ones(head):
    """The first batches have one length, a later one another; so with the batches of another epoch."""
    model = keras_tx.bert(
        "tiny",
        depth=1,
        width=16,
        num_heads=2,
        processing=TRANSFORM,
        head=keras_tx.ClassifierHead(2) if head == "classes" else keras_tx.TokenClassifierHead(2),
    )
    model.compile()
    words = [[TEXTS[0].split()[0]]] * 5 + [TEXTS[0].split()]
    if head == "classes":
        texts = [" ".join(text) for text in words]
        batches = text_classification_batches(
            texts, [0, 1] * 3, TRANSFORM, classes=2, batch_size=1, shuffle=False
        )
    else:
        labels = [[1] * len(text) for text in words]
        batches = token_classification_batches(
            words, labels, TRANSFORM, classes=2, batch_size=1, shuffle=False
        )
    lengths = [batches[index][0]["input_ids"].shape[1] for index in range(len(batches))]
    assert lengths[0] == lengths[1] < lengths[-1]
    model.fit(batches, validation_data=batches, epochs=2, shuffle=False, verbose=0)
    model.evaluate(batches, verbose=0)
    if head == "classes":
        assert len(model.predict(batches, verbose=0)) == len(words)
        model.fit(batches, shuffle=False, verbose=0, class_weight={0: 1.0, 1: 2.0})


def test_truncated_text_warns_at_the_line_of_the_user():
    short = dataclasses.replace(TRANSFORM, max_length=4)
    for call in (
        lambda transform: transform(TEXTS[:2]),
        lambda transform: text_classification_batches(TEXTS[:2], [0, 1], transform),
        lambda transform: token_classification_batches(
            [TEXTS[0].split()], [[0] * len(TEXTS[0].split())], transform
        ),
    ):
        with pytest.warns(UserWarning, match=r"dataclasses.replace\(transform, too_long='cut'\)") as caught:
            call(short)
        assert caught[0].filename == __file__
        call(dataclasses.replace(short, too_long="cut"))


def test_options_of_batches():
    with pytest.raises(
        ConfigError, match=r"too_long='cut' .*dataclasses.replace\(transform, too_long='cut'\)"
    ):
        text_classification_batches(TEXTS[:2], [0, 1], TRANSFORM, too_long="cut")
    with pytest.raises(ConfigError, match="worker=2 is not an option of batches. Did you mean 'workers'"):
        text_classification_batches(TEXTS[:2], [0, 1], TRANSFORM, worker=2)


def test_batches_of_threads_are_those_of_their_epoch():
    """Keras builds the model with a batch of its own; its threads would return more of that epoch."""
    seen: list[tuple[int, int]] = []

    class Noted(Batches):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            seen.append((self.epoch, index))
            assert (y == self.epoch_of_labels()[index]).all()
            return x, y

        def epoch_of_labels(self):
            return [rows % 3 for rows in self._ordered(self.epoch)]

    def pack(rows, random):
        return np.eye(60, dtype="float32")[rows], rows % 3

    batches = Noted(pack, np.ones(60), 4, workers=3, max_queue_size=5)
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(batches, epochs=3, shuffle=False, verbose=0)
    assert seen[-45:] == [(epoch, i) for epoch in range(seen[-45][0], seen[-45][0] + 3) for i in range(15)]
    assert batches.workers == 1  # for Keras


def test_processes_are_refused():
    with pytest.raises(ConfigError, match="use_multiprocessing=True"):
        Batches(lambda rows, random: (rows, rows), np.ones(3), use_multiprocessing=True)
