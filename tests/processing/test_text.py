"""TextTransform: its batches, its errors, and its folder, which other libraries read."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keras_tx
from keras_tx import contract
from keras_tx.errors import ConfigError, TextError
from keras_tx.processing import (
    TextTransform,
    byte_bpe,
    character_vocabulary,
    characters,
    train_byte_bpe,
    train_wordpiece,
    wordpiece,
)

CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "A quick answer to the question: the dog jumps, too!",
    "Über den Wolken, élan vital, naïve café. 東京 and 大阪 are cities \U0001f600.",
] * 3
WORDPIECE = train_wordpiece(CORPUS, 200, max_length=16, too_long="cut")
CASED = train_wordpiece(CORPUS, 200, lowercase=False)
BYTES = train_byte_bpe(CORPUS, 300)
CHARACTERS = character_vocabulary(CORPUS, unk_token="<unk>", pad_token="<pad>")
ROBERTA = train_byte_bpe(
    CORPUS, 300, bos_token="<s>", eos_token="</s>", cls_token="<s>", sep_token="</s>", unk_token="<unk>",
    pad_token="<pad>", mask_token="<mask>",
)  # fmt: skip
KINDS = {"wordpiece": WORDPIECE, "cased": CASED, "bytes": BYTES, "roberta": ROBERTA, "characters": CHARACTERS}
TEXTS = ["The lazy fox", "Élan VITAL\tis 東京\u200b!", "zzz [MASK] \U0001f600 dog's"]


def lists(batch: dict[str, np.ndarray]) -> dict[str, list]:
    return {name: array.tolist() for name, array in batch.items()}


def test_batch_has_input_names_of_the_contract():
    vocabulary = [*"[PAD] [UNK] [CLS] [SEP] [MASK]".split(), "good", "##ness", "!"]
    transform = wordpiece(vocabulary)
    assert lists(transform(["Goodness!", "good bad"], ["!", "good"], offsets=True)) == {
        contract.INPUT_IDS: [[2, 5, 6, 7, 3, 7, 3], [2, 5, 1, 3, 5, 3, 0]],
        contract.ATTENTION_MASK: [[1] * 7, [1] * 6 + [0]],
        contract.TOKEN_TYPE_IDS: [[0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 0]],
        "offset_mapping": [
            [[0, 0], [0, 4], [4, 8], [8, 9], [0, 0], [0, 1], [0, 0]],
            [[0, 0], [0, 4], [5, 8], [0, 0], [0, 4], [0, 0], [0, 0]],
        ],
    }
    assert all(array.dtype == np.int64 for array in transform("good").values())
    assert transform.decode([2, 5, 6, 3]) == "goodness"
    assert transform.special_ids() == {0, 1, 2, 3, 4}


def test_padding_to_a_multiple_is_limited_by_max_length():
    ids = dataclasses.replace(WORDPIECE, multiple=7)(["dog", "the quick brown fox"])["input_ids"]
    assert ids.shape == (2, 7)
    longest = dataclasses.replace(WORDPIECE, multiple=7)(CORPUS[0] * 2)["input_ids"]
    assert longest.shape == (1, 16)
    left = dataclasses.replace(WORDPIECE, padding_side="left")(["dog", "the dog"])
    assert left["attention_mask"].tolist() == [[0, 1, 1, 1], [1, 1, 1, 1]]
    assert WORDPIECE.pad(WORDPIECE.encode("dog"), length=9)["input_ids"].shape == (1, 9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model_type", [None, "bert", "distilbert", "roberta", "gpt2", "llama"])
def test_transformers_reads_saved_folder(kind, model_type, tmp_path):
    transformers = pytest.importorskip("transformers", reason='pip install "keras-tx[parity]"')
    transform = KINDS[kind]
    transform.save(tmp_path)
    if model_type:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.model_max_length == (transform.max_length or 10**30)
    for name in ("pad_token", "mask_token", "eos_token"):
        assert getattr(theirs, name) == getattr(transform, name)
    limit = {} if transform.max_length is None else {"max_length": transform.max_length, "truncation": True}
    for texts in ((TEXTS,), (TEXTS, TEXTS[::-1])):
        ours = [row.ids.tolist() for row in transform.encode(*texts)]
        assert ours == theirs(*texts, **limit)["input_ids"]
    if transform.pad_token:
        expected = {name: np.array(rows) for name, rows in theirs(TEXTS, padding=True, **limit).items()}
        got = transform(TEXTS)
        assert set(got) == set(expected)
        for name in got:
            np.testing.assert_array_equal(got[name], expected[name])


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load(kind, tmp_path):
    transform = dataclasses.replace(KINDS[kind], multiple=8, too_long="raise", max_length=64)
    transform.save(tmp_path)
    assert TextTransform.load(tmp_path) == transform
    assert TextTransform.load(tmp_path, max_length=32).max_length == 32


@pytest.mark.parametrize("kind", ["wordpiece", "bytes", "roberta"])
def test_vocabulary_files_equal_tokenizer_json(kind, tmp_path):
    transform = KINDS[kind]
    transform.save(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    loaded = TextTransform.load(tmp_path)
    assert loaded.vocabulary == transform.vocabulary
    for mine, theirs in zip(loaded.encode(TEXTS, TEXTS[1:] + TEXTS[:1]), transform.encode(TEXTS, TEXTS[1:] + TEXTS[:1]), strict=True):  # fmt: skip  # noqa: E501
        assert mine.ids.tolist() == theirs.ids.tolist()


def test_load_from_tokenizer_json_only(tmp_path):
    WORDPIECE.save(tmp_path)
    alone = TextTransform.load(tmp_path / "tokenizer.json")
    assert (alone.mask_token, alone.segments, alone.max_length) == ("[MASK]", True, None)
    assert alone("the fox")["input_ids"].tolist() == WORDPIECE("the fox")["input_ids"].tolist()


@given(texts=st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=4), limit=st.integers(4, 20))
def test_truncation_and_windows_equal_tokenizers(texts, limit):
    """Compared with the truncation of `tokenizers`, for random texts and pairs."""
    from tokenizers import Tokenizer

    firsts, seconds = (["dog " + text for text in column] for column in zip(*texts, strict=True))
    transform = dataclasses.replace(CASED, max_length=limit, too_long="cut")
    theirs = Tokenizer.from_str(CASED.tokenizer)
    theirs.enable_truncation(limit)
    for given_texts, inputs in (
        ((firsts,), firsts),
        ((firsts, seconds), list(zip(firsts, seconds, strict=True))),
    ):
        expected = theirs.encode_batch(inputs)
        for row, encoding in zip(transform.encode(*given_texts), expected, strict=True):
            assert row.ids.tolist() == encoding.ids
            assert row.segments.tolist() == encoding.type_ids
            assert [None if word < 0 else word for word in row.words] == encoding.word_ids
            assert [tuple(pair) for pair in row.offsets.tolist()] == encoding.offsets
            assert [None if part < 0 else part for part in row.parts] == encoding.sequence_ids
    theirs.enable_truncation(limit, stride=1, strategy="only_first")
    encodings = [theirs.encode(first) for first in firsts]
    expected = [piece for encoding in encodings for piece in (encoding, *encoding.overflowing)]
    assert [row.ids.tolist() for row in transform.windows(firsts, overlap=1)] == [x.ids for x in expected]


def test_windows_cover_the_document_and_repeat_the_question():
    document = " ".join(CORPUS)
    rows = WORDPIECE.windows(["the fox?", "dog?"], [document, "lazy"], overlap=2)
    assert [row.text for row in rows] == [0] * (len(rows) - 1) + [1]
    question = rows[0].ids[rows[0].parts == 0].tolist()
    seen = set()
    for before, row in zip([None, *rows[:-2]], rows[:-1], strict=True):
        assert len(row) <= 16 and row.ids[row.parts == 0].tolist() == question
        places = row.offsets[row.parts == 1]
        seen.update(tuple(place) for place in places.tolist())
        if before is not None:
            np.testing.assert_array_equal(before.offsets[before.parts == 1][-2:], places[:2])
    whole = dataclasses.replace(WORDPIECE, max_length=None).encode(document)[0]
    assert seen == {tuple(place) for place in whole.offsets[whole.parts == 0].tolist()}


def test_offsets_refer_to_the_original_text():
    text = "  Élan\u0301 VITAL, 東京 \U0001f600 naïve"
    for transform in KINDS.values():
        row = dataclasses.replace(transform, max_length=None).encode(text)[0]
        real = row.parts == 0
        assert real.any()
        tokens = {text[start:end].strip().lower() for start, end in row.offsets[real]}
        assert {"東", "京", "\U0001f600"} <= tokens


def test_words_of_pretokenized_text():
    row = WORDPIECE.encode([["quick", "zzzfox", "the", "dog"]], words=True)[0]
    assert sorted(set(row.words.tolist())) == [-1, 0, 1, 2, 3]
    assert (np.diff(row.words[row.parts == 0]) >= 0).all()


def test_truncation_warns_or_raises():
    transform = dataclasses.replace(WORDPIECE, too_long="warn", max_length=6)
    with pytest.warns(UserWarning, match="1 of 2 .*max_length=6.*row 1"):
        batch = transform(["dog", CORPUS[0]])
    assert batch["input_ids"].shape == (2, 6)
    with pytest.raises(TextError, match="Row 1 .*4.*max_length=6"):
        dataclasses.replace(transform, too_long="raise")(["dog", CORPUS[0]])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["dog", None], r"texts\[1\] is None \(NoneType\)"),
        (["dog", float("nan")], r"texts\[1\] is nan \(float\)"),
        ([b"dog"], r"texts\[0\] is b'dog' \(bytes\).*\.decode"),
        (["dog", "a\ud83d"], r"texts\[1\] has '\\ud83d' at character 1"),
        (7, "texts is builtins.int"),
        (b"dog", "texts is builtins.bytes"),
    ],
)
def test_invalid_text_raises_with_index(texts, message):
    with pytest.raises(TextError, match=message):
        WORDPIECE(texts)


def test_empty_text_requires_special_tokens():
    frame = [WORDPIECE.id_of("[CLS]"), WORDPIECE.id_of("[SEP]")]
    for empty in ("", " \u200b\x00"):
        batch = WORDPIECE(["dog", empty])
        assert batch["input_ids"][1][batch["attention_mask"][1] == 1].tolist() == frame
    ids = WORDPIECE([""], [""])["input_ids"][0].tolist()
    assert ids[:3] == [*frame, frame[1]]
    (row,) = WORDPIECE.windows([""], overlap=0)
    assert row.ids.tolist() == frame
    with pytest.raises(TextError, match=r"texts\[1\]=''"):
        WORDPIECE.pieces(["dog", ""])
    with pytest.raises(TextError, match=r"texts\[1\]=\[\]"):
        WORDPIECE.encode([["dog"], []], words=True)
    with pytest.raises(TextError, match=r"texts\[1\]=.*tokens"):
        characters("abc")(["a", ""])


def test_invalid_pairs_words_and_overlap_raise():
    with pytest.raises(TextError, match="2 .*1 pairs"):
        WORDPIECE(["a", "b"], ["c"])
    with pytest.raises(TextError, match=r"texts\[0\] .*words"):
        WORDPIECE.encode(["a b"], words=True)
    with pytest.raises(TextError, match="overlap=12"):
        WORDPIECE.windows("the quick fox", "dog", overlap=12)
    with pytest.raises(ConfigError, match="max_length.*None"):
        CASED.windows("dog")


def test_unknown_character_raises_without_unk_token():
    transform = characters("abc \n")
    assert transform(["a b\nc"])["input_ids"].tolist() == [[0, 3, 1, 4, 2]]
    with pytest.raises(TextError, match=r"texts\[1\] .*'xy'"):
        transform(["abc", "xay"])
    known = characters("abc", unk_token="?")
    assert known(["axa"])["input_ids"].tolist() == [[0, 3, 0]]


def test_invalid_vocabulary_raises(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\nhello\n")
    with pytest.raises(ConfigError, match=r"4 tokens.*sep_token '\[SEP\]', mask_token '\[MASK\]'"):
        wordpiece(tmp_path / "vocab.txt")
    with pytest.raises(ConfigError, match="'a' .*0 and 1"):
        wordpiece(["a", "a"])
    with pytest.raises(ConfigError, match="eos_token '<|endoftext|>'".replace("|", r"\|")):
        byte_bpe({"a": 0}, [])
    with pytest.raises(ConfigError, match=r"tokenizer\.json.*vocab\.txt"):
        TextTransform.load(Path(tmp_path).parent / "..")
    with pytest.raises(ConfigError, match="tokenizer.json: Model missing"):
        TextTransform("{}")
    with pytest.raises(ConfigError, match="max_length=2 .*2"):
        dataclasses.replace(WORDPIECE, max_length=2)


def test_training_is_deterministic_across_processes():
    script = (
        f"import sys; sys.path[:0] = {[*sys.path]!r}\n"
        "from keras_tx.processing import train_wordpiece, train_byte_bpe\n"
        f"texts = {CORPUS!r}\n"
        "print(train_wordpiece(texts, 200).vocabulary == eval(sys.stdin.readline()), end=' ')\n"
        "print(train_byte_bpe(texts, 300).vocabulary == eval(sys.stdin.readline()))\n"
    )
    known = f"{WORDPIECE.vocabulary!r}\n{BYTES.vocabulary!r}\n"
    for seed in "12":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", script], input=known, env=environment, capture_output=True, text=True
        )
        assert done.stdout.strip() == "True True", done.stderr


def test_trained_vocabulary_has_no_unknown_tokens_in_its_corpus():
    ids = np.concatenate([row.ids for row in dataclasses.replace(WORDPIECE, max_length=None).encode(CORPUS)])
    assert WORDPIECE.id_of("[UNK]") not in ids
    assert {"quick", "the"} <= set(WORDPIECE.vocabulary)
    assert WORDPIECE.vocabulary_size <= 200
    with pytest.raises(ConfigError, match="size=20"):
        train_wordpiece(CORPUS, 20)
    with pytest.raises(TextError, match="texts"):
        train_wordpiece("the text", 100)


@pytest.mark.parametrize("kind", ["bytes", "characters"])
# Hypothesis also draws strings of our source code; decode omits special tokens.
@given(text=st.text(min_size=1).filter(lambda text: "<|endoftext|>" not in text))
def test_decode_inverts_encode(kind, text):
    transform = KINDS[kind] if kind == "bytes" else character_vocabulary([text])
    assert transform.decode(transform.encode(text)[0].ids) == text


def test_model_saves_its_processing(tmp_path):
    pytest.importorskip("keras", reason="a serving machine has none")
    model = keras_tx.bert(
        "tiny", depth=1, width=64, max_length=12, processing=CASED, head=keras_tx.ClassifierHead(2)
    )
    assert model.config.vocabulary_size == CASED.vocabulary_size
    assert model.processing.max_length == 12
    model.save(tmp_path / "model.keras")
    again = keras_tx.load_model(tmp_path / "model.keras")
    assert again.processing == model.processing
    np.testing.assert_array_equal(again(again.processing(["the dog"])), model(model.processing(["the dog"])))
    without = keras_tx.bert("tiny", depth=1, segments=0, processing=CASED)
    assert set(without.processing("dog")) == {"input_ids", "attention_mask"}
    gpt = keras_tx.gpt("pico", vocabulary_size=300, processing=BYTES)
    assert tuple(gpt(gpt.processing(["the dog", "a"])).shape)[::2] == (2, 300)
    with pytest.raises(ConfigError, match="vocabulary_size"):
        keras_tx.bert("tiny", vocabulary_size=20, processing=CASED)
    with pytest.raises(ConfigError, match="'<pad>'"):
        keras_tx.bert("tiny", pad_id=7, processing=CHARACTERS)


@pytest.mark.parametrize("overlap", [-1, 1.5, True])
def test_overlap_out_of_range_raises(overlap):
    with pytest.raises(ConfigError, match=f"overlap is {overlap}"):
        WORDPIECE.windows("dog", overlap=overlap)


def test_length_below_that_of_a_row_raises():
    with pytest.raises(TextError, match=r"length=2 .*\d+ tokens"):
        WORDPIECE.pad(WORDPIECE.encode("the fox and the dog"), length=2)
