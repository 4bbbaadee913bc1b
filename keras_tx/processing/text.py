"""The text transform: tokenizes texts. NumPy and tokenizers only."""

from __future__ import annotations

import dataclasses
import functools
import itertools
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
SENTINEL = "<extra_id_"


@dataclasses.dataclass(frozen=True)
class TextTransform:
    """Tokenizes texts, in the same way for training and inference.

    A call accepts a text or a list of texts, alone or in pairs, and returns a dict of int64 arrays (batch,
    sequence) with the names of the exported graph: `input_ids`, `attention_mask` and, with `segments`,
    `token_type_ids`. Create one with `load`, `processing.wordpiece`, `byte_bpe`, `characters`, or a function
    that trains a vocabulary. Its tokenizer.json defines the tokenizer for all clients of an exported folder.

    Args:
        tokenizer: the text of a tokenizer.json. Its truncation and padding are ignored.
        max_length: the largest number of tokens per row, including special tokens. By default the number of
            positions of the model.
        too_long: what happens to longer texts: "warn" truncates them with a warning, "raise" raises a
            TextError, "cut" truncates them without a warning.
        multiple: rows are padded to the longest one, rounded up to a multiple of this; `max_length` for
            batches of one shape.
        padding_side: "right", or "left" for text generation. Encoders require "right".
        segments: whether a call returns `token_type_ids`.
        pad_token ... eos_token: the special tokens.
        target_tokenizer: the text of the tokenizer.json that splits the targets of an encoder-decoder, if it
            differs from `tokenizer`. Both have the same ids.
        chat_template: the Jinja template that converts the messages of a chat to a text. It is written to
            tokenizer_config.json; `keras-tx serve` uses it.
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
    target_tokenizer: str | None = dataclasses.field(default=None, repr=False)
    chat_template: str | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("tokenizer", "target_tokenizer"):
            text = getattr(self, name)
            if text is None and name == "target_tokenizer":
                continue
            if not isinstance(text, str):
                raise ConfigError(f"{name} is {type(text).__name__}, expected tokenizer.json's text.")
            object.__setattr__(self, name, tokenizer_files.parse(text, name).to_str())
        if self.target_tokenizer is not None:
            self._check_same_ids(self.target_tokenizer)
        if self.chat_template is not None and not isinstance(self.chat_template, str):
            raise ConfigError(
                f"chat_template is {self.chat_template!r:.80}, expected a template as a string."
            )
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
        """Loads a transform.

        Args:
            path: a folder written by `save` or Hugging Face, a folder with vocab.txt, or with vocab.json and
                merges.txt, or a tokenizer.json.
            options: fields that override those of the files.

        Raises:
            ConfigError: the files are missing or invalid.
        """
        fields = tokenizer_files.fields_of(Path(path))
        try:
            return cls(**{**fields, **options})
        except ConfigError as error:
            if options or not Path(path).is_dir():
                raise
            raise ConfigError(f"{Path(path) / contract.TOKENIZER_CONFIG}: {error}") from error

    @classmethod
    def of(cls, tokenizer: Any) -> TextTransform:
        """Returns a transform from a TextTransform, a tokenizers.Tokenizer, the text of a tokenizer.json, "
        "or a path."""
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
        """Writes the files of the tokenizer into a folder, which AutoTokenizer.from_pretrained can load."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, text in self.files().items():
            Path(folder, name).write_text(text, encoding="utf-8", newline="\n")

    def files(self) -> dict[str, str]:
        """Returns the text of each file that `save` writes, by its name."""
        return tokenizer_files.files_of(self)

    @property
    def target(self) -> TextTransform:
        """The transform of the targets of an encoder-decoder; this one without a target_tokenizer."""
        if self.target_tokenizer is None:
            return self
        return dataclasses.replace(self, tokenizer=self.target_tokenizer, target_tokenizer=None)

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest id."""
        return max(self._tokenizer.get_vocab().values()) + 1

    @property
    def vocabulary(self) -> dict[str, int]:
        return self._tokenizer.get_vocab()

    @property
    def pad_id(self) -> int:
        """The id of padding; 0 without a pad_token, because padding is masked."""
        return 0 if self.pad_token is None else self.id_of(self.pad_token)

    def id_of(self, token: str) -> int:
        number = self._tokenizer.token_to_id(token)
        if number is None:
            raise ConfigError(f"The vocabulary has no token {token!r}.")
        return number

    def special_ids(self) -> set[int]:
        """Returns the ids of the special tokens."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {number for number, token in added.items() if token.special}

    def sentinel_ids(self) -> list[int]:
        """Returns the ids of T5's `<extra_id_0>`, `<extra_id_1>` ..., in the order of their numbers.

        The ids of some vocabularies ascend, and those of others descend.
        """
        ids = {name.removeprefix("▁"): number for name, number in self.vocabulary.items() if SENTINEL in name}
        count = itertools.takewhile(lambda number: f"{SENTINEL}{number}>" in ids, itertools.count())
        return [ids[f"{SENTINEL}{number}>"] for number in count]

    def decode(self, ids: Sequence[int] | np.ndarray, *, special: bool = False) -> str:
        """Returns the text of ids, with special tokens if `special` is true."""
        return self._tokenizer.decode([int(number) for number in ids], skip_special_tokens=not special)

    def count(self, text: str) -> int:
        """Returns the number of tokens of the row of a text: with special tokens, at most `max_length`."""
        (text,) = check_texts("text", [text])
        count = len(self._tokenizer.encode(text, add_special_tokens=False)) + len(self._frame(False))
        return count if self.max_length is None else min(count, self.max_length)

    def __call__(self, texts: Texts, pairs: Texts | None = None, *, offsets: bool = False) -> dict[str, Any]:
        """Returns the arrays of a padded batch; with `offsets` also `offset_mapping` (batch, sequence, 2)."""
        return self.pad(self.encode(texts, pairs), offsets=offsets)

    def encode(self, texts: Any, pairs: Any = None, *, words: bool = False, start: int = 0) -> list[Row]:
        """Returns the rows of texts before padding.

        Rows longer than `max_length` are truncated, in a pair the longer text first. A text may be empty if
        the tokenizer adds special tokens, which are then its row.

        Args:
            texts: one text or several.
            pairs: second texts.
            words: whether the texts are lists of words.
            start: the index of the first text in a longer list, for messages.

        Raises:
            TextError: a text is invalid; the message contains its index.
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
        """Returns all tokens of each text without special tokens, for `join`."""
        return self._pieces(texts, None, False, empty=False)[0]

    def join(self, first: Piece, second: Piece | None = None, index: int = 0) -> Row:
        """Returns a row of one text or two, truncated to max_length without a warning."""
        room = self._room(second is not None)
        if second is None:
            return self._frame(False).row(index, first if room is None else first[:room])
        if room is not None and len(first) + len(second) > room:
            shares = _shares(len(first), len(second), room)
            first, second = first[: shares[0]], second[: shares[1]]
        return self._frame(True).row(index, first, second)

    def windows(
        self, texts: Any, pairs: Any = None, *, overlap: int = 128, words: bool = False, start: int = 0
    ) -> list[Row]:
        """Returns rows with all tokens of every text; long texts become several overlapping rows.

        In pairs the second text is split, and the first one is in every row (a question and its document).
        `row.text` is the index of the text, and `row.offsets` are the places of its tokens.

        Args:
            texts, pairs, words, start: as for `encode`.
            overlap: the number of tokens that consecutive rows share.

        Raises:
            ConfigError: `max_length` is None.
            TextError: a text is invalid, or the rows are too short for the overlap.
        """
        if isinstance(overlap, bool) or not isinstance(overlap, int) or overlap < 0:
            raise ConfigError(f"overlap is {overlap!r}, expected a whole number, 0 or more.")
        first, second = self._pieces(texts, pairs, words, start, empty=self._may_be_empty(words))
        frame, room = self._frame(second is not None), self._room(second is not None)
        if room is None:
            raise ConfigError("max_length is None. Set it: dataclasses.replace(transform, max_length=384).")
        rows = []
        for index, one in enumerate(first):
            document = one if second is None else second[index]
            left = room - (0 if second is None else len(one))
            if left <= overlap:
                used = "" if second is None else f", {len(one)} of them for texts[{start + index}]"
                raise TextError(
                    f"overlap={overlap} is too large for rows of {room} tokens{used} "
                    f"(max_length={self.max_length}). Decrease overlap, increase max_length, or shorten the "
                    "question."
                )
            places = range(0, max(1, len(document) - overlap), left - overlap)
            for piece in (document[place : place + left] for place in places):
                rows.append(frame.row(index, piece) if second is None else frame.row(index, one, piece))
        return rows

    def pad(
        self, rows: Sequence[Row], *, length: int | None = None, offsets: bool = False
    ) -> dict[str, np.ndarray]:
        """Returns the arrays of a batch of rows, padded to the longest row, rounded up to `multiple`, or to "
        "`length`."""
        longest = max((len(row) for row in rows), default=0)
        if length is None:
            length = -(-longest // self.multiple) * self.multiple
            if self.max_length is not None:
                length = max(longest, min(length, self.max_length))
        elif length < longest:
            raise TextError(f"length={length} is less than the {longest} tokens of a row.")
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
        """Returns the columns of a row in a batch of this length."""
        return slice(0, len(row)) if self.padding_side == "right" else slice(length - len(row), length)

    def _check_same_ids(self, target: str) -> None:
        ids, others = self.vocabulary, _parsed(target).get_vocab()
        for token in ids.keys() | others.keys():
            if ids.get(token) != others.get(token):
                raise ConfigError(
                    f"target_tokenizer has the id {others.get(token)} for {token!r}, but tokenizer has "
                    f"{ids.get(token)}. Only a shared vocabulary is supported."
                )

    @property
    def _tokenizer(self) -> Tokenizer:
        return _parsed(self.tokenizer)

    def _frame(self, pair: bool) -> Frame:
        return _framed(self.tokenizer, pair)

    def _room(self, pair: bool) -> int | None:
        """The largest number of tokens besides the special ones; None without a limit."""
        if self.max_length is None:
            return None
        special = len(self._frame(pair))
        if self.max_length <= special:
            raise ConfigError(
                f"max_length={self.max_length} is too small for {special} special tokens and a text."
            )
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
            raise TextError(f"There are {len(first)} texts but {len(second)} pairs, expected as many.")
        return first, second

    def _encoded(self, texts: list[Any], name: str, words: bool, start: int, empty: bool) -> list[Piece]:
        encode = functools.partial(
            self._tokenizer.encode_batch, is_pretokenized=words, add_special_tokens=False
        )
        try:
            pieces = [piece_of(encoding) for encoding in encode(texts)]
        except Exception as error:  # tokenizers raises no narrower class
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
                    f"{name}[{start + index}]={texts[index]!r:.60} has no tokens. Remove the row."
                )
        return pieces

    def _reason(self, error: Exception, text: Any) -> str:
        known, text = self.vocabulary, "".join(text)
        outside = sorted({character for character in text if character not in known})
        if self.unk_token is None and outside:
            return f"the vocabulary has no {''.join(outside)!r:.60}, and there is no unk_token"
        return str(error)

    def _report(self, lengths: np.ndarray, room: int, name: str, start: int) -> None:
        over = np.flatnonzero(lengths > room)
        if not over.size or self.too_long == "cut":
            return
        worst = int(over[np.argmax(lengths[over])])
        if self.too_long == "raise":
            index = int(over[0])
            raise TextError(
                f"Row {start + index} of {name} has {lengths[index]} tokens, expected at most {room} "
                f"(max_length={self.max_length}). Shorten it, or truncate it with too_long='warn'."
            )
        lost = int((lengths[over] - room).sum())
        warnings.warn(
            f"{over.size} of {lengths.size} texts are longer than max_length={self.max_length} and lost "
            f"{100 * lost / lengths.sum():.1f} % of all tokens; row {start + worst} lost the most, "
            f"{lengths[worst] - room} of its {lengths[worst]}. Split them, increase max_length, or turn this "
            "warning off: dataclasses.replace(transform, too_long='cut').",
            stacklevel=user_stacklevel(),
        )


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> Tokenizer:
    """Not modified afterwards, so that threads can share it."""
    return tokenizer_files.parse(text)


@functools.lru_cache(maxsize=16)
def _framed(text: str, pair: bool) -> Frame:
    return frame_of(_parsed(text), pair)


def _shares(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of each text of a pair are kept, as in `tokenizers` with "longest_first"."""
    short = min(first, second, room // 2)
    return (short, min(second, room - short)) if first <= second else (min(first, room - short), short)
