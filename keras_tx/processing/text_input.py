"""Checks of text inputs; errors contain the index of the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tx.errors import TextError


def check_texts(name: str, texts: Any, start: int = 0) -> list[str]:
    """Returns a list of texts from one text or a sequence of them; `start` is the index of the first."""
    if isinstance(texts, str):
        texts = [texts]
    items = _as_list(name, texts, "a text or a list of texts")
    for index, item in enumerate(items, start):
        _check_text(f"{name}[{index}]", item)
    return items


def check_words(name: str, texts: Any, start: int = 0) -> list[list[str]]:
    """Returns a list of lists of words; `start` is the index of the first."""
    if isinstance(texts, str):
        raise TextError(f"{name} is a text, expected lists of words.")
    rows = []
    for index, words in enumerate(_as_list(name, texts, "a list of lists of words"), start):
        if isinstance(words, str):
            raise TextError(f"{name}[{index}] is a text, expected a list of words. Pass {name}.split().")
        rows.append(_as_list(f"{name}[{index}]", words, "a list of words"))
        for place, word in enumerate(rows[-1]):
            _check_text(f"{name}[{index}][{place}]", word)
    return rows


def _as_list(name: str, items: Any, expected: str) -> list[Any]:
    if isinstance(items, str | bytes):
        pass
    elif isinstance(items, Sequence):
        return list(items)
    elif getattr(items, "ndim", None) == 1:  # an array, or a column of a data frame
        return list(np.asarray(items, object))
    raise TextError(f"{name} is {type(items).__module__}.{type(items).__qualname__}, expected {expected}.")


def _check_text(name: str, text: Any) -> None:
    if not isinstance(text, str):
        remedy = ". Decode it with .decode('utf-8')" if isinstance(text, bytes) else ""
        raise TextError(f"{name} is {text!r:.60} ({type(text).__name__}), expected a text{remedy}.")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise TextError(
                f"{name} has {text[error.start]!r} at character {error.start}, a lone surrogate. "
                "Read the text with errors='replace'."
            ) from None
