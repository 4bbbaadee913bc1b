"""Tokenization in tf.data: the ids equal those of the transform, or the text raises."""

from __future__ import annotations

import dataclasses
import re
import unicodedata

import keras
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from keras_tx.data import keras_hub_tokenizer, tf_data_tokenizer
from keras_tx.errors import ConfigError, TextError
from keras_tx.processing import character_vocabulary, train_byte_bpe, train_wordpiece, wordpiece

tf = pytest.importorskip("tensorflow", reason='pip install "keras-tx[cpu]"')
if keras.backend.backend() != "tensorflow":
    # keras-hub gives tensors of TensorFlow on every backend; once is enough
    pytest.skip("the pipeline is TensorFlow's on every backend", allow_module_level=True)

CORPUS = [
    "The quick brown fox, the lazy dog: it's naïve! Élan vital, über, señor.",
    "東京 and 大阪 \U0001f600 \U0001f680 [MASK] 1234567890 «quoted» — dashes, $5 + 3 = 8",
] * 3
TRANSFORMS = {
    "uncased": train_wordpiece(CORPUS, 200),
    "cased": train_wordpiece(CORPUS, 200, lowercase=False),
    "accents": train_wordpiece(CORPUS, 200, strip_accents=False),
}
TOKENIZERS = {name: keras_hub_tokenizer(transform, CORPUS) for name, transform in TRANSFORMS.items()}

# keras-hub lowercases by compatibility: the ellipsis becomes three dots, the sharp s two letters.
LATIN = [c for c in map(chr, range(0x21, 0x17F)) if unicodedata.normalize("NFKC", c).casefold() == c.lower()]
LETTERS = st.sampled_from([c for c in LATIN if unicodedata.category(c)[0] not in "CZ"])
CHINESE = st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF)
EMOJI = st.characters(min_codepoint=0x1F600, max_codepoint=0x1F64F)
AGREED = st.text(st.one_of(LETTERS, CHINESE, EMOJI, st.sampled_from(" \t\n.,!?'-[MASK]")), max_size=60)


@pytest.mark.parametrize("name", TRANSFORMS)
@settings(deadline=None)
@given(text=AGREED)
def test_wordpiece_agrees_on_latin_chinese_and_emoji(name, text):
    assume(text.strip() and all(len(word.encode()) < 100 for word in text.split()))
    ours = TRANSFORMS[name].pieces(text)[0].ids.tolist()
    assert np.asarray(TOKENIZERS[name](text)).tolist() == ours


@pytest.mark.parametrize(
    "text",
    [
        "fo\u200bx",  # the zero-width space vanishes here
        "fo\x07x",  # as does a control character
        "well… fine",  # an ellipsis is three dots there
        "é" * 60,  # not too long in characters, but in bytes
    ],
)
def test_texts_that_differ_raise(text):
    pieces = "the fox fo ##x well fine . … é ##é".split()
    transform = wordpiece([*"[PAD] [UNK] [CLS] [SEP] [MASK]".split(), *pieces], strip_accents=False)
    with pytest.raises(TextError, match=r"corpus\[1\]"):
        keras_hub_tokenizer(transform, ["the fox", text])


# keras-hub's byte-level BPE counts the signs of multiplication and division among the letters.
WORDS = st.text(
    st.one_of(
        LETTERS.filter(lambda c: c not in "\u00d7\u00f7"), CHINESE, EMOJI, st.sampled_from(".,!?'-0123")
    ),
    min_size=1,
)
# It also merges bytes of an emoji with those of a Chinese letter beside it.
SYMBOL_BESIDE_CHINESE = re.compile(
    "[\U0001f600-\U0001f64f][\u4e00-\u9fff]|[\u4e00-\u9fff][\U0001f600-\U0001f64f]"
)
BYTES = train_byte_bpe(CORPUS, 340)
BYTES_IN_TF = keras_hub_tokenizer(BYTES, CORPUS)


@settings(deadline=None)
@given(words=st.lists(WORDS))
def test_byte_level_bpe_agrees_on_single_spaces(words):
    text = " ".join(["the", *words])
    assume(not SYMBOL_BESIDE_CHINESE.search(text))
    assert np.asarray(BYTES_IN_TF(text)).tolist() == BYTES.pieces(text)[0].ids.tolist()


def test_byte_level_bpe_keeps_the_end_of_text():
    ids = np.asarray(BYTES_IN_TF("the fox<|endoftext|>the")).tolist()
    assert BYTES.id_of("<|endoftext|>") in ids
    breaks = train_byte_bpe(["the fox\n\n"] * 3, 300)  # with a token for two line breaks
    with pytest.raises(TextError, match=r"corpus\[0\]"):
        keras_hub_tokenizer(breaks, ["the fox\n\nthe dog"])


def test_other_tokenizers_raise():
    with pytest.raises(ConfigError, match="WordLevel"):
        keras_hub_tokenizer(character_vocabulary(CORPUS), CORPUS)


@settings(deadline=None, max_examples=50)
@given(texts=st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_ids_equal_those_of_the_transform(texts):
    texts = ["fox " + text for text in texts]
    transform = dataclasses.replace(TRANSFORMS["cased"], max_length=12, too_long="cut", multiple=4)
    got = tf_data_tokenizer(transform)(tf.constant([text.encode() for text in texts]))
    for name, expected in transform(texts).items():
        np.testing.assert_array_equal(got[name].numpy(), expected)


def test_pairs_have_static_shapes():
    tokenize = tf_data_tokenizer(TRANSFORMS["uncased"])
    data = tf.data.Dataset.from_tensor_slices((["the fox", "a dog!"], ["naïve", "it's \U0001f600"])).batch(2)
    data = data.map(tokenize)
    assert data.element_spec["token_type_ids"].shape.as_list() == [None, None]
    (batch,) = data.as_numpy_iterator()
    for name, expected in TRANSFORMS["uncased"](["the fox", "a dog!"], ["naïve", "it's \U0001f600"]).items():
        np.testing.assert_array_equal(batch[name], expected)
