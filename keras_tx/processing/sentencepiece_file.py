"""Reads SentencePiece's model files: protobuf messages with pieces, scores and rules for characters."""

from __future__ import annotations

import dataclasses
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError
from keras_tx.protobuf import VARINT, read_fields, read_varint

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
UNIGRAM, BPE = 1, 2
MODEL_TYPES = {UNIGRAM: "unigram", BPE: "bpe", 3: "word", 4: "char"}
SPACE = "▁"

Value = int | bytes


@dataclasses.dataclass(frozen=True)
class SentencePieceModel:
    """The parts of a model file that determine ids and texts."""

    name: str
    pieces: list[tuple[str, float, int]]  # text, score and type, in the order of the ids
    model_type: int
    byte_fallback: bool
    special: dict[str, str]  # pieces of unk_token, bos_token, eos_token and pad_token
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    charsmap: bytes  # empty for the identity

    def of_type(self, kind: int) -> list[str]:
        """Returns the pieces of a type."""
        return [piece for piece, _, other in self.pieces if other == kind]


def read_model(file: str | os.PathLike[str] | bytes) -> SentencePieceModel:
    """Reads a model file, such as spiece.model or tokenizer.model, or its bytes.

    Raises:
        ConfigError: the file is damaged, or has a setting that is not supported.
    """
    name = "The SentencePiece model" if isinstance(file, bytes) else str(file)
    try:
        content = file if isinstance(file, bytes) else Path(file).read_bytes()
        fields = _message(content)
        return _model(name, fields)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}.") from None
    except (ValueError, IndexError, KeyError, struct.error) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{name} is not a SentencePiece model, or is damaged. Copy it again.") from None


def _model(name: str, fields: dict[int, list[Value]]) -> SentencePieceModel:
    trainer, normalizer = (_message(_last(fields, number, b"")) for number in (2, 3))
    pieces = [_piece(_message(_bytes(value))) for value in fields[1]]
    kinds = [kind for _, _, kind in pieces]
    if (
        len({piece for piece, _, _ in pieces}) < len(pieces)
        or kinds.count(UNKNOWN) != 1
        or NORMAL not in kinds
    ):
        raise ValueError("equal pieces, no unknown piece or no normal one")
    refused = {  # settings that change ids or texts in a way that tokenizers does not support
        "treat_whitespace_as_suffix": bool(_last(trainer, 24, 0)),
        "escape_whitespaces=False": not _last(normalizer, 5, 1),
        "a denormalizer": bool(_last(_message(_last(fields, 5, b"")), 2, b"")),
        "unused pieces": UNUSED in kinds,
    }
    for setting in (setting for setting, present in refused.items() if present):
        raise ConfigError(f"{name} has {setting}, which is not supported. {remedy(name)}")
    return SentencePieceModel(
        name=name,
        pieces=pieces,
        model_type=_last(trainer, 3, UNIGRAM),
        byte_fallback=bool(_last(trainer, 35, 0)),
        special=_special(trainer, pieces),
        add_dummy_prefix=bool(_last(normalizer, 3, 1)),
        remove_extra_whitespaces=bool(_last(normalizer, 4, 1)),
        charsmap=_last(normalizer, 2, b""),
    )


def _special(trainer: dict[int, list[Value]], pieces: list[tuple[str, float, int]]) -> dict[str, str]:
    """The special tokens, by the fields of their ids."""
    ids = {"unk_token": (40, 0), "bos_token": (41, 1), "eos_token": (42, 2), "pad_token": (43, -1)}
    places = {use: _signed(_last(trainer, number, default)) for use, (number, default) in ids.items()}
    return {
        use: pieces[place][0]
        for use, place in places.items()
        if 0 <= place < len(pieces) and pieces[place][2] in (CONTROL, UNKNOWN)
    }


def remedy(name: str) -> str:
    """Returns the end of an error message: the line that writes a tokenizer.json with transformers."""
    folder = str(Path(name).parent) if Path(name).suffix else "FOLDER"
    return (
        "Convert it: transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder) with "
        f"folder={folder!r}."
    )


def _piece(fields: dict[int, list[Value]]) -> tuple[str, float, int]:
    (score,) = struct.unpack("<f", _last(fields, 2, bytes(4)))
    return _bytes(fields[1][-1]).decode("utf-8"), score, _last(fields, 3, NORMAL)


def _message(data: Value) -> dict[int, list[Value]]:
    """The values of a protobuf message, by the number of their field."""
    fields: dict[int, list[Value]] = {}
    data = _bytes(data)
    for field in read_fields(data):
        part = data[field.first : field.end]
        value = read_varint(part, 0, len(part))[0] if field.wire_type == VARINT else part
        fields.setdefault(field.number, []).append(value)
    return fields


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number in place of bytes")
    return value


def _last(fields: dict[int, list[Value]], number: int, default: Any) -> Any:
    value = fields.get(number, [default])[-1]
    if isinstance(value, bytes) is not isinstance(default, bytes):
        raise ValueError(f"field {number} has another type")
    return value


class Charsmap:
    """The rules of a precompiled charsmap: replacements of sequences of characters.

    The charsmap is the size of a double-array trie, its units, and the replacements, each ending with a zero.
    """

    def __init__(self, charsmap: bytes, name: str) -> None:
        size = int.from_bytes(charsmap[:4], "little")
        if not 4 < size <= len(charsmap) - 4 or size % 4 or not charsmap.endswith(b"\0"):
            raise _damaged(name)
        self._name = name
        self._units = np.frombuffer(charsmap[4 : 4 + size], "<u4").astype("int64")
        self._texts = charsmap[4 + size :]

    def get(self, text: str) -> str | None:
        """Returns the replacement of these characters together, or None."""
        place = np.zeros(1, "int64")
        for byte in text.encode("utf-8"):
            _, place = self._children(place, np.array([byte]))
        return next(self._replacements(place), None) if place.size else None

    def characters(self) -> dict[str, str]:
        """Returns the replacement of each single character that has one."""
        try:
            return self._characters()
        except (ValueError, IndexError):
            raise _damaged(self._name) from None

    def _characters(self) -> dict[str, str]:
        rules: dict[str, str] = {}
        places, keys = np.zeros(1, "int64"), [b""]
        while keys:
            rows, places = self._children(places, np.arange(1, 256))
            keys = [
                keys[row] + bytes([int(unit) & 0xFF])
                for row, unit in zip(rows, self._units[places], strict=True)
            ]
            whole = np.array([len(key) == _character_bytes(key[0]) for key in keys], bool)
            ends = whole & (self._units[places] >> 8 & 1 == 1)
            complete = [keys[index].decode("utf-8") for index in np.flatnonzero(ends)]
            rules |= zip(complete, self._replacements(places[ends]), strict=True)
            places, keys = places[~whole], [key for key, done in zip(keys, whole, strict=True) if not done]
        return rules

    def _first(self, places: np.ndarray) -> np.ndarray:
        """The place of the children of nodes, before their labels."""
        units = self._units[places]
        return places ^ ((units >> 10) << ((units & 512) >> 6))

    def _children(self, places: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The row of the parent and the place of each child with one of the labels."""
        children = self._first(places)[:, None] ^ labels
        inside = children < len(self._units)
        same = (self._units[np.where(inside, children, 0)] & 0x800000FF) == labels
        rows, columns = np.nonzero(inside & same)
        return rows, children[rows, columns]

    def _replacements(self, places: np.ndarray) -> Iterator[str]:
        ends = places[self._units[places] >> 8 & 1 == 1]
        for start in self._units[self._first(ends)] & 0x7FFFFFFF:
            yield self._texts[start : self._texts.index(b"\0", start)].decode("utf-8")


def _damaged(name: str) -> ConfigError:
    return ConfigError(f"{name} has a damaged precompiled_charsmap. Copy the file again.")


def _character_bytes(first: int) -> int:
    """The number of bytes of a character in UTF-8, from its first byte."""
    return 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
