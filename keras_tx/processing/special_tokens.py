"""Rows of tokens: texts with the special tokens of the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from tokenizers import Encoding, Tokenizer

from keras_tx.errors import ConfigError


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One row of the model's input before padding. Each array has an entry for each token.

    Args:
        text: the index of the text.
        ids: of the tokens.
        segments: token_type_ids: 0, and for most models 1 in the second text of a pair.
        parts: 0 in the first text, 1 in the second, -1 at special tokens.
        words: the index of the word in its text, -1 at special tokens.
        offsets: (tokens, 2), the first character and the one after the last; 0, 0 at special tokens.
    """

    text: int
    ids: np.ndarray
    segments: np.ndarray
    parts: np.ndarray
    words: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """The tokens of one text without special tokens, or a slice of them."""

    ids: np.ndarray
    words: np.ndarray
    offsets: np.ndarray  # (tokens, 2)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> Piece:
        return Piece(self.ids[part], self.words[part], self.offsets[part])


def piece_of(encoding: Encoding) -> Piece:
    words = [-1 if word is None else word for word in encoding.word_ids]
    offsets = np.array(encoding.offsets, "int64").reshape(-1, 2)
    return Piece(np.array(encoding.ids, "int64"), np.array(words, "int64"), offsets)


def joined(pieces: Sequence[Piece]) -> Piece:
    """Concatenates texts. Words are numbered through; offsets stay those in each text."""
    words, first = [], 0
    for piece in pieces:
        words.append(piece.words + first)
        first += int(piece.words.max(initial=-1)) + 1
    ids, offsets = ([getattr(piece, name) for piece in pieces] for name in ("ids", "offsets"))
    return Piece(np.concatenate(ids), np.concatenate(words), np.concatenate(offsets))


@dataclasses.dataclass(frozen=True, eq=False)
class Frame:
    """The special tokens before, between and after the texts of a row: `[CLS] a [SEP] b [SEP]`."""

    special: tuple[np.ndarray, ...]  # ids: before the first text, after it, and after the second
    segments: tuple[np.ndarray, ...]
    of_texts: tuple[int, ...]  # the segment of each text

    def __len__(self) -> int:
        return sum(map(len, self.special))

    def row(self, index: int, *texts: Piece | None) -> Row:
        pieces = [piece for piece in texts if piece is not None]
        ids, segments = [self.special[0]], [self.segments[0]]
        parts, words = [_none(self.special[0])], [_none(self.special[0])]
        offsets = [np.zeros((len(self.special[0]), 2), "int64")]
        for part, piece in enumerate(pieces):
            after = self.special[part + 1]
            ids += [piece.ids, after]
            segments += [np.full(len(piece), self.of_texts[part]), self.segments[part + 1]]
            parts += [np.full(len(piece), part), _none(after)]
            words += [piece.words, _none(after)]
            offsets += [piece.offsets, np.zeros((len(after), 2), "int64")]
        return Row(index, *(np.concatenate(arrays) for arrays in (ids, segments, parts, words, offsets)))


def _none(ids: np.ndarray) -> np.ndarray:
    return np.full(len(ids), -1)


# Branches: most are comprehensions over the two texts of a sample.
def frame_of(tokenizer: Tokenizer, pair: bool) -> Frame:
    """Returns the special tokens that the tokenizer adds around texts, from those around a sample."""
    sample, count = _sample(tokenizer)
    whole = tokenizer.encode(sample, sample if pair else None)
    parts = np.array([-1 if part is None else part for part in whole.sequence_ids])
    ids, segments = np.array(whole.ids, "int64"), np.array(whole.type_ids, "int64")
    places = [np.flatnonzero(parts == part) for part in range(2 if pair else 1)]
    whole_texts = all(len(at) == count == at[-1] - at[0] + 1 for at in places)
    if not whole_texts or (pair and places[0][0] > places[1][0]):
        raise ConfigError("The tokenizer's post_processor does not keep the texts whole and in order.")
    edges = [0, *(edge for at in places for edge in (at[0], at[-1] + 1)), len(ids)]
    between = [slice(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
    return Frame(
        tuple(ids[part] for part in between),
        tuple(segments[part] for part in between),
        tuple(int(segments[at[0]]) for at in places),
    )


def _sample(tokenizer: Tokenizer) -> tuple[str, int]:
    """A text of the vocabulary, and its number of tokens."""
    special = tokenizer.get_added_tokens_decoder()
    for token, number in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        if number not in special:
            count = len(tokenizer.encode(token, add_special_tokens=False))
            if count:
                return token, count
    raise ConfigError("The tokenizer's vocabulary has special tokens only.")
