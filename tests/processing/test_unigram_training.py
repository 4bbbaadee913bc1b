"""train_unigram: a tokenizer like T5's from texts."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from keras_tx.errors import ConfigError, TextError
from keras_tx.processing import TextTransform, train_unigram
from tests.processing.test_text import CORPUS

TRANSFORM = train_unigram(CORPUS, 120, sentinels=20)


def test_special_tokens_come_first_and_sentinels_last():
    size = TRANSFORM.vocabulary_size
    assert size <= 120
    assert [TRANSFORM.id_of(token) for token in ("<pad>", "</s>", "<unk>")] == [0, 1, 2]
    assert TRANSFORM.sentinel_ids() == [*range(size - 1, size - 21, -1)]
    assert TRANSFORM.special_ids() == {0, 1, 2, *TRANSFORM.sentinel_ids()}
    assert TRANSFORM("")["input_ids"].tolist() == [[1]]
    assert TRANSFORM.decode(TRANSFORM("The  dog\n jumps,")["input_ids"][0]) == "The dog jumps,"
    ids = TRANSFORM("the <extra_id_0> fox <extra_id_19>")["input_ids"][0].tolist()
    assert [number for number in ids if number > size - 21] == [size - 1, size - 20]
    assert 2 not in TRANSFORM.encode(CORPUS[0])[0].ids and 2 in TRANSFORM.encode("ж")[0].ids


def test_own_special_tokens(tmp_path):
    transform = train_unigram(CORPUS, 100, sentinels=0, eos_token="<end>", mask_token="<mask>")
    assert (transform.eos_token, transform.id_of("<end>"), transform.sentinel_ids()) == ("<end>", 1, [])
    assert transform("dog")["input_ids"][0, -1] == 1
    assert transform.id_of("<mask>") == 3 and 3 in transform("the <mask> dog")["input_ids"]
    transform.save(tmp_path)
    assert TextTransform.load(tmp_path) == transform


def test_equal_texts_have_equal_tokenizers_across_processes():
    expected = hashlib.sha256(TRANSFORM.tokenizer.encode()).hexdigest()
    script = (
        f"import sys, hashlib; sys.path[:0] = {[*sys.path]!r}\n"
        "from keras_tx.processing import train_unigram\n"
        f"transform = train_unigram({CORPUS!r}, 120, sentinels=20)\n"
        "print(hashlib.sha256(transform.tokenizer.encode()).hexdigest())\n"
    )
    for seed in "12":
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert done.stdout.strip() == expected, done.stderr


def test_invalid_sizes_and_texts_raise():
    with pytest.raises(ConfigError, match="size=50.*at least 104"):
        train_unigram(CORPUS, 50)
    with pytest.raises(ConfigError, match="size=110 .*characters"):
        train_unigram(CORPUS, 110)
    with pytest.raises(ConfigError, match="sentinels is -1"):
        train_unigram(CORPUS, 110, sentinels=-1)
    with pytest.raises(TextError, match=r"texts is one text"):
        train_unigram("the text", 120)
    with pytest.raises(TextError, match=r"texts\[1\] is 3"):
        train_unigram(["the text", 3], 120)
    with pytest.raises(TextError, match="no characters"):
        train_unigram([" ", ""], 120)
