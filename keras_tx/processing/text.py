"""The text transform: texts to the ids that the model takes. NumPy and tokenizers only."""

from __future__ import annotations

import dataclasses
import functools
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from keras_tx import contract
from keras_tx.errors import ConfigError, TextError, nearest, user_stacklevel, whole_number
from keras_tx.processing import tokenizer_files
from keras_tx.processing.special_tokens import Frame, Piece, Row, frame_of, piece_of
from keras_tx.processing.text_input import check_texts, check_words

Texts = str | Sequence[str] | np.ndarray

TOO_LONG = ("warn", "raise", "cut")
SIDES = ("right", "left")
OFFSETS = "offset_mapping"  # as Hugging Face names it


@dataclasses.dataclass(frozen=True)
class TextTransform:
    """Texts to the arrays that the model takes; the same for training and inference.

    A call takes a text or a list of them, alone or in pairs, and gives a dict of int64 arrays (batch,
    sequence) under the names of the exported graph: `input_ids`, `attention_mask` and, with `segments`,
    `token_type_ids`. Made by `load`, or by `processing.wordpiece`, `byte_bpe`, `characters` and the functions
    that train a vocabulary. The tokenizer is one of Hugging Face's `tokenizers`; what it does is
    written in its tokenizer.json, which every client of the exported folder reads.

    Args:
        tokenizer: the text of a tokenizer.json. What it says about truncation and padding is dropped:
            the next fields say it.
        max_length: the most tokens of a row, special ones included. None: as many as the model has
            positions, once it is part of a model.
        too_long: what happens to a text with more: "warn" cuts it with a warning that says how much,
            "raise" refuses it, "cut" cuts it without a word.
        multiple: rows are padded to the longest, and its length up to a multiple of this; `max_length` for
            batches of one shape.
        padding_side: "right", or "left" for a decoder that continues texts; encoders refuse "left".
        segments: whether to give `token_type_ids`.
        pad_token ... eos_token: what the special tokens are called.
    """

    tokenizer: str = dataclasses.field(repr=False)
    max_length: int | None = None
    too_long: str = "warn"
    multiple: int = 1
    padding_side: str = "right"
    segments: bool = True
    pad_token: str | None = None
    unk_token: str | None = None
    cls_token: str | None = None
    sep_token: str | None = None
    mask_token: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.tokenizer, str):
            raise ConfigError(
                f"tokenizer is {type(self.tokenizer).__name__}, expected tokenizer.json's text."
            )
        object.__setattr__(self, "tokenizer", tokenizer_files.parse(self.tokenizer).to_str())
        object.__setattr__(self, "multiple", whole_number("multiple", self.multiple))
        for name, known in (("too_long", TOO_LONG), ("padding_side", SIDES)):
            if getattr(self, name) not in known:
                value = getattr(self, name)
                raise ConfigError(f"{name}={value!r} is unknown. {nearest(str(value), known)}")
        tokenizer_files.kinds.check_special(
            self._tokenizer.get_vocab(),
            {name: token for name in tokenizer_files.SPECIAL_TOKENS if (token := getattr(self, name))},
        )
        if self.max_length is not None:
            object.__setattr__(self, "max_length", whole_number("max_length", self.max_length))
            self._room(pair=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> TextTransform:
        """From a folder that `save` or Hugging Face wrote, from one with vocab.txt or with vocab.json and
        merges.txt, or from a tokenizer.json; `options` are fields that shall be otherwise."""
        fields = tokenizer_files.fields_of(Path(path))
        try:
            return cls(**{**fields, **options})
        except ConfigError as error:
            if options or not Path(path).is_dir():
                raise
            raise ConfigError(f"{Path(path) / contract.TOKENIZER_CONFIG}: {error}") from error

    @classmethod
    def of(cls, tokenizer: Any) -> TextTransform:
        """From a TextTransform, a tokenizers.Tokenizer, tokenizer.json's text, or what `load` reads."""
        if isinstance(tokenizer, TextTransform):
            return tokenizer
        if isinstance(tokenizer, Tokenizer):
            return cls(**tokenizer_files.fields_of_tokenizer(tokenizer))
        if not isinstance(tokenizer, str | os.PathLike):
            raise ConfigError(
                f"tokenizer is a {type(tokenizer).__name__}, expected a TextTransform, a "
                f"tokenizers.Tokenizer, or the path of a {contract.TOKENIZER} or of its folder."
            )
        if isinstance(tokenizer, str) and tokenizer.lstrip().startswith("{"):
            return cls(**tokenizer_files.fields_of_tokenizer(tokenizer_files.parse(tokenizer)))
        return cls.load(tokenizer)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the tokenizer's files of the exported folder; AutoTokenizer.from_pretrained opens it."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, text in self.files().items():
            Path(folder, name).write_text(text, encoding="utf-8", newline="\n")

    def files(self) -> dict[str, str]:
        """The text of each file that `save` writes, by its name."""
        return tokenizer_files.files_of(self)

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id."""
        return max(self._tokenizer.get_vocab().values()) + 1

    @property
    def vocabulary(self) -> dict[str, int]:
        return self._tokenizer.get_vocab()

    @property
    def pad_id(self) -> int:
        """What padding consists of; 0 without a pad_token, since nobody looks at it behind the mask."""
        return 0 if self.pad_token is None else self.id_of(self.pad_token)

    def id_of(self, token: str) -> int:
        number = self._tokenizer.token_to_id(token)
        if number is None:
            raise ConfigError(f"The vocabulary has no token {token!r}.")
        return number

    def special_ids(self) -> set[int]:
        """The ids that stand for no piece of text."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {number for number, token in added.items() if token.special}

    def decode(self, ids: Sequence[int] | np.ndarray, *, special: bool = False) -> str:
        """The text of ids; without special tokens unless they are asked for."""
        return self._tokenizer.decode([int(number) for number in ids], skip_special_tokens=not special)

    def __call__(self, texts: Texts, pairs: Texts | None = None, *, offsets: bool = False) -> dict[str, Any]:
        """The arrays of a padded batch; with `offsets` also `offset_mapping` (batch, sequence, 2)."""
        return self.pad(self.encode(texts, pairs), offsets=offsets)

    def encode(self, texts: Any, pairs: Any = None, *, words: bool = False, start: int = 0) -> list[Row]:
        """The rows of texts before padding; with `words`, of texts that are lists of words.

        Rows that are too long are cut, in a pair the longer text first. A text may be empty if the tokenizer
        adds special tokens, which are then its row. If the texts are part of a longer list, `start` is the
        index of the first, for messages.
        """
        first, second = self._pieces(texts, pairs, words, start, empty=self._may_be_empty(words))
        partners = [None] * len(first) if second is None else second
        rows = [
            self.join(one, two, index) for index, (one, two) in enumerate(zip(first, partners, strict=True))
        ]
        room = self._room(second is not None)
        if room is not None:
            lengths = [
                len(one) + (0 if two is None else len(two)) for one, two in zip(first, partners, strict=True)
            ]
            self._report(np.asarray(lengths), room, "texts" if second is None else "texts and pairs", start)
        return rows

    def pieces(self, texts: Texts) -> list[Piece]:
        """The tokens of each text without special ones, whole: what `join` makes rows of."""
        return self._pieces(texts, None, False, empty=False)[0]

    def join(self, first: Piece, second: Piece | None = None, index: int = 0) -> Row:
        """A row of one text or two, cut without a word to max_length: the longer one first."""
        room = self._room(second is not None)
        if second is None:
            return self._frame(False).row(index, first if room is None else first[:room])
        if room is not None and len(first) + len(second) > room:
            kept = _shares(len(first), len(second), room)
            first, second = first[: kept[0]], second[: kept[1]]
        return self._frame(True).row(index, first, second)

    def windows(
        self, texts: Any, pairs: Any = None, *, overlap: int = 128, words: bool = False, start: int = 0
    ) -> list[Row]:
        """Rows that together hold all of every text; those of a long one overlap by so many tokens. With
        `words`, of texts that are lists of words.

        Of pairs the second text is long, a document, and the first, a question, stands in every
        row. `row.text` says of which text a row is, its offsets where in the text its tokens are. `start` as
        for `encode`.
        """
        if isinstance(overlap, bool) or not isinstance(overlap, int) or overlap < 0:
            raise ConfigError(f"overlap is {overlap!r}, expected a whole number, 0 or more.")
        first, second = self._pieces(texts, pairs, words, start, empty=self._may_be_empty(words))
        frame, room = self._frame(second is not None), self._room(second is not None)
        if room is None:
            raise ConfigError("windows needs a max_length: dataclasses.replace(transform, max_length=384).")
        rows = []
        for index, one in enumerate(first):
            document = one if second is None else second[index]
            left = room - (0 if second is None else len(one))
            if left <= overlap:
                of = "" if second is None else f", of which texts[{start + index}] takes {len(one)}"
                raise TextError(
                    f"max_length={self.max_length} leaves room for {room} tokens{of}; windows that overlap "
                    f"by {overlap} do not fit. Lower overlap, raise max_length, or shorten the question."
                )
            places = range(0, max(1, len(document) - overlap), left - overlap)
            for piece in (document[place : place + left] for place in places):
                rows.append(frame.row(index, piece) if second is None else frame.row(index, one, piece))
        return rows

    def pad(
        self, rows: Sequence[Row], *, length: int | None = None, offsets: bool = False
    ) -> dict[str, np.ndarray]:
        """The arrays of a batch of rows, padded to the longest and on to a multiple, or to `length`."""
        longest = max((len(row) for row in rows), default=0)
        if length is None:
            length = -(-longest // self.multiple) * self.multiple
            if self.max_length is not None:
                length = max(longest, min(length, self.max_length))
        elif length < longest:
            raise TextError(f"A row has {longest} tokens; it cannot be padded to {length}.")
        batch: dict[str, Any] = {
            contract.INPUT_IDS: np.full((len(rows), length), self.pad_id, "int64"),
            contract.ATTENTION_MASK: np.zeros((len(rows), length), "int64"),
        }
        if self.segments:
            batch[contract.TOKEN_TYPE_IDS] = np.zeros((len(rows), length), "int64")
        if offsets:
            batch[OFFSETS] = np.zeros((len(rows), length, 2), "int64")
        for index, row in enumerate(rows):
            place = self.place(row, length)
            batch[contract.INPUT_IDS][index, place] = row.ids
            batch[contract.ATTENTION_MASK][index, place] = 1
            if self.segments:
                batch[contract.TOKEN_TYPE_IDS][index, place] = row.segments
            if offsets:
                batch[OFFSETS][index, place] = row.offsets
        return batch

    def place(self, row: Row, length: int) -> slice:
        """Where a row stands in a batch of that length."""
        return slice(0, len(row)) if self.padding_side == "right" else slice(length - len(row), length)

    @property
    def _tokenizer(self) -> Tokenizer:
        return _parsed(self.tokenizer)

    def _frame(self, pair: bool) -> Frame:
        return _framed(self.tokenizer, pair)

    def _room(self, pair: bool) -> int | None:
        """The tokens that are left beside the special ones; None without a limit."""
        if self.max_length is None:
            return None
        special = len(self._frame(pair))
        if self.max_length <= special:
            raise ConfigError(f"max_length={self.max_length} leaves no room beside {special} special tokens.")
        return self.max_length - special

    def _may_be_empty(self, words: bool) -> bool:
        """Whether a text may be empty: its row then has the special tokens, if the tokenizer adds any."""
        return not words and len(self._frame(False)) > 0

    def _pieces(
        self, texts: Any, pairs: Any, words: bool, start: int = 0, *, empty: bool
    ) -> tuple[list[Piece], list[Piece] | None]:
        check = check_words if words else check_texts
        first = self._encoded(check("texts", texts, start), "texts", words, start, empty)
        if pairs is None:
            return first, None
        second = self._encoded(check("pairs", pairs, start), "pairs", words, start, empty)
        if len(first) != len(second):
            raise TextError(
                f"There are {len(first)} texts but {len(second)} pairs: one for each is expected."
            )
        return first, second

    def _encoded(self, texts: list[Any], name: str, words: bool, start: int, empty: bool) -> list[Piece]:
        encode = functools.partial(
            self._tokenizer.encode_batch, is_pretokenized=words, add_special_tokens=False
        )
        try:
            pieces = [piece_of(encoding) for encoding in encode(texts)]
        except Exception as error:  # tokenizers raises nothing more precise
            for index, text in enumerate(texts):
                try:
                    encode([text])
                except Exception:
                    reason = self._reason(error, text)
                    raise TextError(f"{name}[{start + index}] cannot be encoded: {reason}.") from error
            raise
        for index, piece in enumerate(pieces):
            if not len(piece) and not empty:
                raise TextError(
                    f"{name}[{start + index}] gives no token: it is {texts[index]!r:.60}. Remove the "
                    "row, or put a word in its place."
                )
        return pieces

    def _reason(self, error: Exception, text: Any) -> str:
        known, text = self.vocabulary, "".join(text)
        outside = sorted({character for character in text if character not in known})
        if self.unk_token is None and outside:
            return f"the vocabulary has no {''.join(outside)!r:.60}, and no unk_token"
        return str(error)

    def _report(self, lengths: np.ndarray, room: int, name: str, start: int) -> None:
        over = np.flatnonzero(lengths > room)
        if not over.size or self.too_long == "cut":
            return
        worst = int(over[np.argmax(lengths[over])])
        if self.too_long == "raise":
            index = int(over[0])
            raise TextError(
                f"Row {start + index} of {name} has {lengths[index]} tokens; max_length={self.max_length} "
                f"leaves room for {room}. Shorten it, split it into windows, or let too_long='warn' cut it."
            )
        lost = int((lengths[over] - room).sum())
        warnings.warn(
            f"{over.size} of {lengths.size} texts are longer than max_length={self.max_length} and lost "
            f"{100 * lost / lengths.sum():.1f} % of all tokens; row {start + worst} lost the most, "
            f"{lengths[worst] - room} of its {lengths[worst]}. Split them into windows, raise max_length, or "
            "choose what happens to them: dataclasses.replace(transform, too_long='cut'), or 'raise'.",
            stacklevel=user_stacklevel(),
        )


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> Tokenizer:
    """Never changed after this, so that threads may share it."""
    return tokenizer_files.parse(text)


@functools.lru_cache(maxsize=16)
def _framed(text: str, pair: bool) -> Frame:
    return frame_of(_parsed(text), pair)


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How much of each text of a pair stays, as `tokenizers` has it with "longest_first"."""
    short = min(first, second, room // 2)
    return (short, min(second, room - short)) if first <= second else (min(first, room - short), short)
