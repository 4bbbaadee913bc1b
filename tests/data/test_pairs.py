"""Batches of pairs of texts, and of texts with missing spans."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import chain, pairwise
from math import comb
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

import keras_tx
from keras_tx.data import sequence_to_sequence_batches, span_corruption_batches
from keras_tx.data.span_corruption import block_length, corrupt_spans, span_counts, span_mask
from keras_tx.errors import ConfigError, TextError
from keras_tx.processing import TextTransform, TokenWriter, train_wordpiece

SENTINELS = 100


def word_transform(words: list[str], *, ends: bool = True, **options: Any) -> TextTransform:
    """Splits at spaces; T5's special tokens, and T5's order of the sentinels: the first is the last id."""
    tokens = ["<pad>", "</s>", "<unk>", *words]
    sentinels = [f"<extra_id_{index}>" for index in reversed(range(SENTINELS))]
    vocabulary = {token: index for index, token in enumerate([*tokens, *sentinels])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # type: ignore
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore
    if ends:
        tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore
            single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
        )
    tokenizer.add_special_tokens([AddedToken(token) for token in (*tokens[:3], *sentinels)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return TextTransform(tokenizer.to_str(), **{**special, **options})


WORDS = [f"w{index}" for index in range(200)]
TRANSFORM = word_transform(WORDS, max_length=20)
RANDOM = np.random.default_rng(0)
SOURCES = [" ".join(RANDOM.choice(WORDS, n)) for n in RANDOM.integers(1, 19, 50)]
TARGETS = [" ".join(reversed(text.split())) for text in SOURCES]


def every(batches: Any) -> list[Any]:
    return [keras.tree.map_structure(np.asarray, batches[index]) for index in range(len(batches))]


def assert_same(one: Any, other: Any) -> None:
    for x, y in zip(keras.tree.flatten(one), keras.tree.flatten(other), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("ends", [True, False])
def test_pairs_equal_the_tokenizer_and_the_shift_of_transformers(side: str, ends: bool):
    modeling = pytest.importorskip("transformers.models.bart.modeling_bart")
    torch = pytest.importorskip("torch")
    transform = word_transform(WORDS, ends=ends, max_length=20, padding_side=side, multiple=4)
    batches = sequence_to_sequence_batches(SOURCES, TARGETS, transform, batch_size=8, start_id=2)
    pairs = []
    for inputs, labels in every(batches):
        assert sorted(inputs) == ["attention_mask", "decoder_input_ids", "input_ids"]
        shifted = modeling.shift_tokens_right(torch.tensor(labels), 0, 2).numpy()
        np.testing.assert_array_equal(inputs["decoder_input_ids"], shifted)
        assert inputs["input_ids"].shape[1] % 4 == labels.shape[1] % 4 == 0
        assert (labels[:, 0] != -100).all() and (np.diff((labels == -100).astype(int)) >= 0).all()
        for ids, mask, row in zip(inputs["input_ids"], inputs["attention_mask"], labels, strict=True):
            assert row[row != -100][-1] == 1
            assert (ids[mask == 0] == 0).all() and mask[0 if side == "right" else -1] == 1
            pairs.append((transform.decode(ids[mask == 1]), transform.decode(row[row != -100])))
            assert (ids[mask == 1][-1] == 1) == ends
    assert sorted(pairs) == sorted(zip(SOURCES, TARGETS, strict=True))


def test_batches_have_little_padding_and_repeat_with_the_seed():
    sources, targets = SOURCES * 8, TARGETS * 8
    batches = sequence_to_sequence_batches(sources, targets, TRANSFORM, batch_size=8)
    real = sum((labels != -100).sum() for _, labels in every(batches))
    assert real / sum(labels.size for _, labels in every(batches)) > 0.9
    again = sequence_to_sequence_batches(sources, targets, TRANSFORM, batch_size=8)
    assert_same(every(batches), every(again))
    again.on_epoch_end()
    assert not np.array_equal(every(batches)[0][1], every(again)[0][1])


def test_tf_data_of_pairs():
    pytest.importorskip("tensorflow", reason='pip install "keras-tx[cpu]"')
    batches = sequence_to_sequence_batches(SOURCES, TARGETS, TRANSFORM, batch_size=8)
    assert_same(every(batches), list(batches.tf_data().as_numpy_iterator()))


def test_target_tokenizer_splits_the_targets():
    target = Tokenizer.from_str(TRANSFORM.tokenizer)
    target.normalizer = normalizers.Replace("_", " ")  # type: ignore
    transform = dataclasses.replace(TRANSFORM, target_tokenizer=target.to_str())
    (inputs, labels), *_ = every(sequence_to_sequence_batches(["w0 w1_w2"], ["w4_w2"], transform))
    assert inputs["input_ids"].tolist() == [[3, 2, 1]]
    assert labels.tolist() == [[7, 5, 1]]
    assert inputs["decoder_input_ids"].tolist() == [[0, 7, 5]]


def test_invalid_pairs_raise_with_their_index():
    def pairs(sources: list[str], targets: list[str], transform: Any = TRANSFORM, **options: Any) -> Any:
        return sequence_to_sequence_batches(sources, targets, transform, **options)

    with pytest.raises(TextError, match=r"sources\[1\]"):
        pairs(["w0", ""], ["w1", "w2"])
    with pytest.raises(TextError, match=r"sources\[0\] has no tokens"):
        pairs([" "], ["w1"])
    with pytest.raises(TextError, match=r"targets\[1\] has 21 tokens, but max_length=20"):
        pairs(["w0", "w1"], ["w1", "w2 " * 20])
    pairs(["w0", "w1"], ["w1", "w2 " * 19])
    with pytest.raises(TextError, match="2 sources but 1 targets"):
        pairs(["w0", "w1"], ["w1"])
    with pytest.raises(TextError, match=r"targets: texts\[0\] is 3"):
        pairs(["w0"], [3])
    with pytest.warns(UserWarning, match="max_length=20"):
        pairs(["w0 " * 30], ["w1"])
    with pytest.raises(TextError, match="sources: Row 0 of texts has 30 tokens"):
        pairs(["w0 " * 30], ["w1"], dataclasses.replace(TRANSFORM, too_long="raise"))
    with pytest.raises(ConfigError, match="start_id=-1"):
        pairs(["w0"], ["w1"], start_id=-1)
    with pytest.raises(ConfigError, match="no pad_token.*start_id"):
        pairs(["w0"], ["w1"], dataclasses.replace(TRANSFORM, pad_token=None))
    with pytest.raises(ConfigError, match="no eos_token"):
        pairs(["w0"], ["w1"], word_transform(WORDS, ends=False, eos_token=None))


def test_targets_between_class_and_separator_tokens():
    texts = ["alpha beta", "gamma"]
    transform = train_wordpiece(texts, 60)
    _, labels = sequence_to_sequence_batches(texts, texts, transform, shuffle=False)[0]
    np.testing.assert_array_equal(
        np.where(labels == -100, transform.pad_id, labels), transform(texts)["input_ids"]
    )


def test_lengths_are_those_of_t5():
    """T5's `random_spans_helper`: 512 tokens of the encoder are 568 of the text, and 114 of the target."""
    assert block_length(512, 0.15, 3.0) == 568
    missing, spans = span_counts(568, 0.15, 3.0)
    assert 568 - missing + spans + 1 == 512
    assert missing + spans + 1 == 114
    for length in range(3, 700):
        for rate, mean in ((0.15, 3.0), (0.15, 2.0), (0.5, 3.0), (0.25, 10.0), (0.3, 1.0)):
            sizes = []
            for size in (block_length(length, rate, mean), block_length(length, rate, mean) + 1):
                missing, spans = span_counts(size, rate, mean)
                sizes.append(size - missing + spans + 1)
            assert sizes[0] <= length < sizes[1]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 568])
def test_mask_has_exact_counts_and_begins_with_a_kept_token(size: int):
    missing, spans = span_counts(size, 0.15, 3.0)
    for seed in range(50):
        mask = span_mask(size, np.random.default_rng(seed), 0.15, 3.0)
        assert mask.shape == (size,) and mask.sum() == missing
        assert mask[-1] and (size == 1 or not mask[0])
        assert np.count_nonzero(np.diff(mask.astype(int), prepend=0) == 1) == spans


def test_lengths_of_spans_have_the_distribution_of_random_divisions():
    """Of comb(n - 1, k - 1) divisions, comb(n - length - 1, k - 2) begin with a span of this length."""
    missing, spans = span_counts(200, 0.15, 3.0)  # 30 tokens in 10 spans
    assert (missing, spans) == (30, 10)
    random, trials = np.random.default_rng(0), 4000
    counted: list[Counter[int]] = [Counter(), Counter()]
    for _ in range(trials):
        mask = span_mask(200, random, 0.15, 3.0)
        edges = np.flatnonzero(np.diff(mask.astype(int), prepend=-1, append=2))
        lengths = np.diff(edges)
        for kind in (0, 1):
            counted[kind].update(lengths[kind::2].tolist())
    for kind, total in ((0, 170), (1, 30)):
        for length in range(1, total - spans + 2):
            expected = trials * spans * comb(total - length - 1, spans - 2) / comb(total - 1, spans - 1)
            assert abs(counted[kind][length] - expected) < 5 * np.sqrt(expected) + 5, (kind, length)


def restored(source: np.ndarray, target: np.ndarray, sentinels: set[int], end: int) -> list[int]:
    """The text: each sentinel of the source replaced by the tokens that follow it in the target."""
    assert source[-1] == target[-1] == end
    spans: dict[int, list[int]] = {}
    for number in target[:-1].tolist():
        if number in sentinels:
            assert number not in spans
            last = spans[number] = []
        else:
            last.append(number)
    assert list(spans) == [number for number in source.tolist() if number in sentinels]
    return [token for number in source[:-1].tolist() for token in spans.get(number, [number])]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of 150, 3, 1, 0 and 900 tokens, which are all different except for the ends."""
    path = tmp_path_factory.mktemp("tokens") / "a.tokens"
    transform = word_transform([f"w{index}" for index in range(2000)])
    place = 3
    with TokenWriter(path, transform.vocabulary_size, end_of_text=1) as writer:
        for length in (150, 3, 1, 0, 900):
            writer.add(np.arange(place, place + length))
            writer.end_document()
            place += length
    return path


TOKENS = word_transform([f"w{index}" for index in range(2000)])
IDS = {TOKENS.id_of(f"<extra_id_{index}>") for index in range(SENTINELS)}


def texts_of(batches: Any) -> list[list[int]]:
    texts = []
    for inputs, labels in every(batches):
        for ids, mask, row in zip(inputs["input_ids"], inputs["attention_mask"], labels, strict=True):
            texts.append(restored(ids[mask == 1], row[row != -100], IDS, 1))
    return texts


def test_source_and_target_restore_the_text(corpus: Path):
    batches = span_corruption_batches(corpus, 64, TOKENS, 2, shuffle=False)
    tokens = batches.tokens
    assert list(chain(*texts_of(batches))) == tokens[:].tolist()
    inputs, labels = batches[0]
    assert inputs["input_ids"].shape == (2, 64)
    assert inputs["decoder_input_ids"][0].tolist() == [0, *labels[0, :-1].tolist()]
    assert inputs["input_ids"].max() == TOKENS.id_of("<extra_id_0>") == TOKENS.vocabulary_size - 1
    shuffled = span_corruption_batches(corpus, 64, TOKENS, 2)
    every_token = sorted(chain(*texts_of(shuffled)))
    assert set(every_token) <= set(tokens[:].tolist()) and len(every_token) == len(shuffled) * 2 * 70


def test_documents_are_separate(corpus: Path):
    batches = span_corruption_batches(corpus, 64, TOKENS, 4, shuffle=False, separate_documents=True)
    block = block_length(64, 0.15, 3.0)
    bounds, expected = [3, 153, 156, 157, 1057], []
    for first, end in pairwise(bounds):
        expected += [list(range(at, min(at + block, end))) for at in range(first, end, block)]
    assert texts_of(batches) == expected


def test_spans_differ_per_epoch_and_repeat_with_the_seed(corpus: Path):
    def epoch(number: int, seed: int = 0) -> Any:
        batches = span_corruption_batches(corpus, 64, TOKENS, 2, seed=seed, shuffle=False)
        batches.seek(number)
        return every(batches)

    assert_same(epoch(1), epoch(1))
    for other in (epoch(0), epoch(1, seed=5)):
        assert not np.array_equal(epoch(1)[0][1], other[0][1])
    batches = span_corruption_batches(corpus, 64, TOKENS, 2, steps=5, seed=3)
    whole = every(batches)
    batches.seek(0, 3)
    assert_same(every(batches), whole[3:])
    other = span_corruption_batches(corpus, 64, TOKENS, 2, steps=5, seed=3, rate=0.2)
    assert other.fingerprint() != batches.fingerprint()


def test_invalid_span_corruption_raises(corpus: Path):
    for options, message in (
        ({"rate": 0.0}, "rate=0.0"),
        ({"rate": 1}, "rate=1"),
        ({"mean_span_length": 0.5}, "mean_span_length=0.5"),
        ({"rate": 0.5, "mean_span_length": 1.0, "length": 300}, "length=300.* 149 spans.* 100 sentinels"),
        ({"length": 2}, "length=2"),
        ({"length": 1000, "mean_span_length": 5.0}, "1059 tokens.* 2 blocks of 1135 tokens"),
        ({"start_id": "<pad>"}, "start_id='<pad>'"),
        ({"transform": TRANSFORM}, "vocabulary_size=2103.* 303 tokens"),
    ):
        arguments = {"length": 64, "transform": TOKENS, "batch_size": 2, **options}
        with pytest.raises(ConfigError, match=message):
            span_corruption_batches(corpus, **arguments)


def test_first_and_last_spans():
    ids, end = np.arange(10, 16), 1
    mask = np.array([True, False, True, True, False, True])
    source, target = corrupt_spans(ids, mask, [9, 8, 7], end)
    assert source.tolist() == [9, 11, 8, 14, 7, 1]
    assert target.tolist() == [9, 10, 8, 12, 13, 7, 15, 1]


def test_model_refuses_batches_with_another_start_or_longer_texts(corpus: Path):
    model = keras_tx.t5("tiny", vocabulary_size=TOKENS.vocabulary_size, max_length=12)
    model.compile()
    short = [text for text in SOURCES if len(text.split()) < 12]
    for batches, message in (
        (sequence_to_sequence_batches(short, short, TRANSFORM, start_id=1), "start_id=1.* start_id=0"),
        (sequence_to_sequence_batches(SOURCES, TARGETS, TRANSFORM), "19 tokens.* max_length=12"),
        (span_corruption_batches(corpus, 13, TOKENS, 2, start_id=0), "13 tokens.* max_length=12"),
    ):
        with pytest.raises(ConfigError, match=message):
            model.fit(batches)
    assert int(np.asarray(model.optimizer.iterations)) == 0


@pytest.mark.parametrize("family", ["t5", pytest.param("transformer", marks=pytest.mark.thorough)])
def test_a_model_trains_and_resumes_with_batches_of_different_lengths(family: str, tmp_path: Path):
    def model() -> Any:
        keras.utils.set_random_seed(0)
        head = keras_tx.Seq2SeqLMHead(label_smoothing=0.1)
        made = getattr(keras_tx, family)("tiny", depth=1, processing=TRANSFORM, head=head)
        made.compile(keras_tx.transformer_recipe(made, warmup=20, learning_rate=1e-2))
        return made

    batches = sequence_to_sequence_batches(SOURCES, TARGETS, TRANSFORM, batch_size=8)
    shapes = {(inputs["input_ids"].shape[1], labels.shape[1]) for inputs, labels in every(batches)}
    assert len(shapes) > 3
    whole, resumed = model(), model()
    history = keras_tx.fit_resumable(
        whole, batches, tmp_path / "a", epochs=2, validation_data=batches, verbose=0
    )
    keras_tx.fit_resumable(resumed, batches, tmp_path / "b", epochs=1, validation_data=batches, verbose=0)
    again = keras_tx.fit_resumable(
        resumed, batches, tmp_path / "b", epochs=2, validation_data=batches, verbose=0
    )
    assert again.history == history.history
    assert history.history["loss"][1] < history.history["loss"][0]
