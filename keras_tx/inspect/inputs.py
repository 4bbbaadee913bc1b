"""InputAdapter: images, texts and tensors as the tensors of a model."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import InputError
from keras_tx.processing import ImageTransform, Row, TextTransform, image_file
from keras_tx.processing.image import are_several

Tensors = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class InputAdapter:
    """Converts the inputs of an Inspector to tensors by name.

    Args:
        name: of the model, for messages.
        names: of the tensors that the model accepts.
        transform: the image or text transform of the model; None if it has none.
        image_tensor: converts images to the model's tensor.
        start_id: the first token of every target of an encoder-decoder.
    """

    name: str
    names: tuple[str, ...]
    transform: ImageTransform | TextTransform | None
    image_tensor: Callable[[Any], Any] | None = None
    start_id: int | None = None

    @property
    def kind(self) -> str:
        """ "image", "text" or "arrays"."""
        if isinstance(self.transform, ImageTransform):
            return "image"
        return "text" if contract.INPUT_IDS in self.names else "arrays"

    def tensors(self, inputs: Any, targets: Any = None) -> Tensors:
        """Returns the tensors of inputs, and of the targets of an encoder-decoder.

        Raises:
            InputError: if the inputs are of another kind than those of the model.
        """
        if isinstance(inputs, Mapping):
            tensors = dict(inputs)
        elif self.kind == "image":
            tensors = {self.names[0]: self._images(inputs)}
        elif self.kind == "text":
            tensors = self._texts(inputs, "inputs")
        else:
            tensors = self._array(inputs)
        if targets is not None:
            tensors |= self._targets(targets)
        for name, value in tensors.items():
            if np.shape(value)[:1] == (0,):
                raise InputError(f"The inputs are empty: {name!r} has the shape {np.shape(value)}.")
        return tensors

    def tokens(self, tensors: Tensors, part: str | None) -> list[list[str]]:
        """Returns the tokens of each row; ids as decimal numbers if there is no tokenizer."""
        if self.kind != "text":
            raise InputError(f"{self.name!r} does not accept texts, so it has no tokens. Call grid(inputs).")
        target = part in ("decoder", "cross")
        ids = np.asarray(tensors[contract.DECODER_INPUT_IDS if target else contract.INPUT_IDS])
        texts = self.token_texts(target)
        return [[texts(int(number)) for number in row] for row in ids]

    def token_texts(self, target: bool = False) -> Callable[[int], str]:
        """Returns a function from an id to its token, which is the id without a tokenizer."""
        if not isinstance(self.transform, TextTransform):
            return str
        return token_texts(self.transform.target if target else self.transform)

    def token_id(self, token: str) -> int | None:
        """Returns the id of a token of the vocabulary, or of a text that is one token; else None."""
        if not isinstance(self.transform, TextTransform):
            return None
        known = self.transform.vocabulary.get(token)
        if known is not None or not token:
            return known
        (piece,) = self.transform.pieces(token)
        alone = len(piece) == 1 and self.transform.decode(piece.ids) == token
        return int(piece.ids[0]) if alone else None

    def _images(self, inputs: Any) -> Any:
        first = inputs[0] if isinstance(inputs, list | tuple) and inputs else inputs
        if isinstance(first, str) and not os.path.exists(first):
            raise InputError(
                f"inputs is {first!r:.60}, but {self.name!r} accepts images and no such file exists. Pass "
                "the path of an image, a Pillow image or an array; for a text, inspect a text model."
            )
        assert self.image_tensor is not None
        return self.image_tensor(inputs if are_several(inputs) else [inputs])

    def _texts(self, inputs: Any, argument: str) -> Tensors:
        """The tensors of texts, or of an array of token ids."""
        if _are_ids(inputs):
            return {contract.INPUT_IDS: inputs}
        transform = self._tokenizer(inputs, argument)
        return transform([inputs] if isinstance(inputs, str) else inputs)

    def _targets(self, targets: Any) -> Tensors:
        """The decoder's input, as in training: the start token, then the target without its end token."""
        if _are_ids(targets):
            rows = [list(row) for row in targets]
        else:
            transform = self._tokenizer(targets, "targets").target
            rows = [_without_end(row) for row in transform.encode(targets)]
        rows = [[self.start_id, *row] for row in rows]
        pad_id = self.transform.pad_id if isinstance(self.transform, TextTransform) else 0
        longest = max(map(len, rows))
        ids = [[*row, *[pad_id] * (longest - len(row))] for row in rows]
        mask = [[1] * len(row) + [0] * (longest - len(row)) for row in rows]
        return {
            contract.DECODER_INPUT_IDS: np.array(ids, "int64"),
            contract.DECODER_ATTENTION_MASK: np.array(mask, "int64"),
        }

    def _tokenizer(self, texts: Any, argument: str) -> TextTransform:
        """The transform; raises an InputError if the first text is none, or there is no tokenizer."""
        first = texts[0] if isinstance(texts, list | tuple) and texts else texts
        if not isinstance(first, str) or _is_image_file(first):
            raise InputError(
                f"{argument} is {_shown(first)}, but {self.name!r} accepts texts. Pass a text, a list of "
                "texts or a dict of tensors; for an image, inspect an image model."
            )
        if not isinstance(self.transform, TextTransform):
            raise InputError(
                f"{argument} is a text, but {self.name!r} has no tokenizer. Pass token ids, such as "
                f"{{{contract.INPUT_IDS!r}: ids}}, or create the model with processing=."
            )
        return self.transform

    def _array(self, inputs: Any) -> Tensors:
        if len(self.names) != 1 or not hasattr(inputs, "shape"):
            raise InputError(
                f"inputs is {_shown(inputs)}, but {self.name!r} accepts a dict of the tensors "
                f"{', '.join(self.names)}."
            )
        return {self.names[0]: inputs}


def token_texts(transform: TextTransform) -> Callable[[int], str]:
    """Returns a function from an id to its token; tokens of bytes are decoded, so that " the" is readable.

    Bytes that are a part of a character are shown as "<0xC3>", as in the vocabularies of Llama.
    """
    names = {number: name for name, number in transform.vocabulary.items()}
    decoder = json.loads(transform.tokenizer).get("decoder") or {}
    if decoder.get("type") != "ByteLevel":
        return lambda number: names.get(number, str(number))
    alphabet = _byte_level_alphabet()

    def text(number: int) -> str:
        decoded = transform.decode([number], special=True)
        name = names.get(number, str(number))
        if "\ufffd" not in decoded or not alphabet.keys() >= set(name):
            return decoded or name
        characters = bytes(alphabet[character] for character in name).decode("utf-8", "surrogateescape")
        return "".join(map(_readable, characters))

    return text


def _readable(character: str) -> str:
    """The character; "<0xC3>" for a byte, which Python has decoded as a surrogate."""
    number = ord(character)
    return f"<0x{number - 0xDC00:02X}>" if 0xDC80 <= number <= 0xDCFF else character


def _byte_level_alphabet() -> dict[str, int]:
    """The bytes of the characters in names of tokens of GPT-2's byte-level tokenizers."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]  # printable in Latin-1
    hidden = [number for number in range(256) if number not in shown]
    return {chr(number): number for number in shown} | {chr(256 + i): x for i, x in enumerate(hidden)}


def _are_ids(inputs: Any) -> bool:
    """Whether this is an array of token ids (batch, tokens)."""
    return isinstance(inputs, np.ndarray) and inputs.ndim == 2 and inputs.dtype.kind in "iu"


def _without_end(row: Row) -> list[int]:
    """The ids of a row without the special tokens that the tokenizer adds at its end."""
    count = len(row)
    while count and row.parts[count - 1] < 0:
        count -= 1
    return row.ids[:count].tolist()


def _is_image_file(text: str) -> bool:
    path = Path(text) if len(text) < 1000 and "\n" not in text else None
    return path is not None and path.suffix.lower() in image_file.SUFFIXES and path.is_file()


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f"{value!r:.60}"
    shape = getattr(value, "shape", None)
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return f"a {kind}" + ("" if shape is None else f" of shape {tuple(shape)}")
