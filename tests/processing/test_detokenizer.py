"""Detokenizer: the text of tokens as they are generated."""

from __future__ import annotations

import numpy as np
import pytest

from keras_tx.processing.detokenizer import Detokenizer


def lossy(ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


@pytest.mark.parametrize("text", ["naïve", "日本 🙂!", "a\u0301", "👩‍👩‍👧", ""])
def test_characters_are_never_split(text: str):
    pieces = Detokenizer(lossy)
    text_of_bytes = "".join(pieces.add(byte) for byte in text.encode())
    assert "\ufffd" not in text_of_bytes
    assert text_of_bytes + pieces.end() == text


def test_invalid_bytes_equal_decoding():
    random = np.random.default_rng(0)
    for _ in range(50):
        ids = random.integers(0, 256, 40).tolist()
        pieces = Detokenizer(lossy)
        assert "".join(map(pieces.add, ids)) + pieces.end() == lossy(ids)


def test_character_that_starts_in_the_prompt_is_completed():
    first, second = "é".encode()
    pieces = Detokenizer(lossy, prompt=[97, first])
    assert pieces.add(second) == "é"


def test_leading_space_is_kept():
    words = {1: " to", 2: " be"}
    pieces = Detokenizer(lambda ids: "".join(words[i] for i in ids).removeprefix(" "), prompt=[1])
    assert [pieces.add(2), pieces.add(1)] == [" be", " to"]


def test_possible_stop_string_is_held_back():
    pieces = Detokenizer(lossy, stop=["END", "###"])
    assert [pieces.add(byte) for byte in b"an EN#d END and more"] == [
        *("a", "n", " ", "", "", "EN", "#d"),
        *(" ", "", "", ""),
        *[""] * 9,
    ]
    assert pieces.stopped
    assert pieces.end() == ""


def test_end_returns_held_back_text():
    pieces = Detokenizer(lossy, stop=["END"])
    assert [pieces.add(byte) for byte in b"an EN"] == ["a", "n", " ", "", ""]
    assert pieces.end() == "EN"
    assert pieces.end() == ""


@pytest.mark.parametrize("kind", ["t5", "unigram with bytes", "llama", "gemma"])
def test_texts_of_sentencepiece_models_equal_decoding(kind):
    """With byte fallback an incomplete character is one replacement character for each of its bytes."""
    from keras_tx.processing import sentencepiece
    from tests.processing.test_sentencepiece import MODELS, encode, texts, train

    transform = sentencepiece(train(**MODELS[kind]))
    rows = ["東京 🙂🙂 大阪はéß" * 3, "日本語日本語日本語日本語 a", *texts(200, seed=3)]
    for piece in encode(transform, rows):
        ids = piece.ids.tolist()
        pieces = Detokenizer(transform.decode)
        assert "".join(map(pieces.add, ids)) + pieces.end() == transform.decode(ids)
        half = len(ids) // 2
        if half and "\ufffd" not in (start := transform.decode(ids[:half])):
            pieces = Detokenizer(transform.decode, prompt=ids[:half])
            assert start + "".join(map(pieces.add, ids[half:])) + pieces.end() == transform.decode(ids)
