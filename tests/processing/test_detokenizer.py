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
