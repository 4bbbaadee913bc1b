"""Text of tokens while they come."""

from __future__ import annotations

import numpy as np
import pytest

from keras_tx.processing.detokenizer import Detokenizer


def lossy(ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


@pytest.mark.parametrize("text", ["naïve", "日本 🙂!", "a\u0301", "👩‍👩‍👧", ""])
def test_characters_come_whole(text: str):
    pieces = Detokenizer(lossy)
    found = [pieces.add(byte) for byte in text.encode()]
    assert "\ufffd" not in "".join(found)
    assert "".join(found) + pieces.end() == text


def test_bytes_that_are_no_text_come_as_decoding_gives_them():
    random = np.random.default_rng(0)
    for _ in range(50):
        ids = random.integers(0, 256, 40).tolist()
        pieces = Detokenizer(lossy)
        assert "".join(map(pieces.add, ids)) + pieces.end() == lossy(ids)


def test_half_a_character_in_the_prompt_is_completed():
    first, second = "é".encode()
    pieces = Detokenizer(lossy, prompt=[97, first])
    assert pieces.add(second) == "é"


def test_a_space_in_front_is_kept_by_a_decoder_that_drops_the_first():
    words = {1: " to", 2: " be"}
    pieces = Detokenizer(lambda ids: "".join(words[i] for i in ids).removeprefix(" "), prompt=[1])
    assert [pieces.add(2), pieces.add(1)] == [" be", " to"]


def test_what_may_be_a_stop_string_is_held_back():
    pieces = Detokenizer(lossy, stop=["END", "###"])
    assert [pieces.add(byte) for byte in b"an EN#d END and more"] == [
        *("a", "n", " ", "", "", "EN", "#d"),
        *(" ", "", "", ""),
        *[""] * 9,
    ]
    assert pieces.stopped
    assert pieces.end() == ""


def test_what_was_held_back_comes_at_the_end():
    pieces = Detokenizer(lossy, stop=["END"])
    assert [pieces.add(byte) for byte in b"an EN"] == ["a", "n", " ", "", ""]
    assert pieces.end() == "EN"
    assert pieces.end() == ""
