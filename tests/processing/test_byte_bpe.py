"""Byte-level BPE against GPT-2's published algorithm, written out here in plain Python."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_tx.processing import train_byte_bpe

regex = pytest.importorskip("regex", reason='pip install "keras-tx[parity]"')

# Radford et al.: contractions, words, numbers and the rest, each with the space before it; white space.
PATTERN = regex.compile(r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
CORPUS = ["It's the cat's mat, isn't it?\n\n  The 12 cats  they're naïve.\t\r\n"] * 3
TRANSFORM = train_byte_bpe(CORPUS, 340)


@cache
def letters() -> dict[int, str]:
    """A visible character for each byte."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def encode(text: str) -> list[int]:
    model = json.loads(TRANSFORM.tokenizer)["model"]
    ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    ids = []
    for word in PATTERN.findall(text):
        pieces = [letters()[byte] for byte in word.encode("utf-8")]
        while len(pieces) > 1:
            pair = min(pairwise(pieces), key=lambda x: ranks.get(x, len(ranks)))
            if pair not in ranks:
                break
            merged, index = [], 0
            while index < len(pieces):
                if tuple(pieces[index : index + 2]) == pair:
                    merged.append("".join(pair))
                    index += 2
                else:
                    merged.append(pieces[index])
                    index += 1
            pieces = merged
        ids += [model["vocab"][piece] for piece in pieces]
    return ids


@given(st.lists(st.one_of(st.text(), st.sampled_from([*CORPUS[0].split(" "), "\n\n", "  ", "'", " "]))))
@settings(max_examples=300)
def test_ids_equal_those_of_gpt2(parts):
    text = "".join(["a", *parts]).replace("<|endoftext|>", "")
    assert TRANSFORM.encode(text)[0].ids.tolist() == encode(text)
    assert TRANSFORM.decode(encode(text)) == text
