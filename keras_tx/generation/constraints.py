"""Constraints on the next token: suppressed, allowed and forced ids, bad words, and repeated n-grams."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError, InputError

LISTS = ("suppress_tokens", "begin_suppress_tokens", "allowed_ids", "forced_eos_token_id")


@dataclasses.dataclass(frozen=True)
class Constraints:
    """Which tokens may follow a text, with the names, the order and the results of transformers.

    A list that is empty or None, and a number that is 0 or None, has no effect.

    Args:
        bad_words_ids: sequences of tokens that never occur in the new text; a prompt may end with their
            beginning. A sequence of one stop token has no effect.
        suppress_tokens: tokens that are never generated.
        begin_suppress_tokens: tokens that are not generated first, or not after the forced first token.
        allowed_ids: a vocabulary shortlist, which transformers does not have: only these and the stop tokens
            are generated; None for all.
        forced_bos_token_id: the token after the first one of a text, such as the target language of a
            multilingual encoder-decoder. It has no effect after a prompt of several tokens.
        forced_eos_token_id: the last token of a text that has reached `max_new_tokens`, or a list of tokens.
        no_repeat_ngram_size: no sequence of so many tokens occurs twice in a text, prompt included.
        min_new_tokens: number of new tokens before a stop token.

    Raises:
        ConfigError: if a value is not valid, or a forced token is suppressed.
    """

    bad_words_ids: Sequence[Sequence[int]] | None = ()
    suppress_tokens: Sequence[int] | None = ()
    begin_suppress_tokens: Sequence[int] | None = ()
    allowed_ids: Sequence[int] | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | Sequence[int] | None = None
    no_repeat_ngram_size: int | None = 0
    min_new_tokens: int | None = 0

    def __post_init__(self) -> None:
        checked = {
            "bad_words_ids": _checked_words(self.bad_words_ids),
            "suppress_tokens": _checked_list("suppress_tokens", self.suppress_tokens),
            "begin_suppress_tokens": _checked_list("begin_suppress_tokens", self.begin_suppress_tokens),
            "allowed_ids": _checked_shortlist(self.allowed_ids),
            "forced_bos_token_id": _checked_first(self.forced_bos_token_id),
            "forced_eos_token_id": _checked_last(self.forced_eos_token_id),
            "no_repeat_ngram_size": _checked_number("no_repeat_ngram_size", self.no_repeat_ngram_size),
            "min_new_tokens": _checked_number("min_new_tokens", self.min_new_tokens),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        self._check_forced()

    def _check_forced(self) -> None:
        """Raises a ConfigError for forced tokens that are all suppressed."""
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            forced = _as_tuple(getattr(self, name))
            if forced and {*forced} <= {*_as_tuple(self.suppress_tokens)}:
                raise ConfigError(
                    f"{name} is {_shown(forced)}, but suppress_tokens excludes it. Omit one of them."
                )

    @property
    def active(self) -> bool:
        """Whether any token is excluded."""
        return self != UNCONSTRAINED

    def check(self, vocabulary_size: int) -> None:
        """Raises a ConfigError for an id that the vocabulary does not have."""
        ids = {name: _as_tuple(getattr(self, name)) for name in (*LISTS, "forced_bos_token_id")}
        ids["bad_words_ids"] = tuple(one for word in self.bad_words_ids or () for one in word)
        for name, values in ids.items():
            for one in values:
                if one >= vocabulary_size:
                    raise ConfigError(f"{name} has {one}, expected ids from 0 to {vocabulary_size - 1}.")

    def apply(
        self, scores: np.ndarray, text: Sequence[int], made: int, last: bool, stop_ids: frozenset[int]
    ) -> np.ndarray:
        """Scores (vocabulary,) of the next token with -inf for excluded tokens; a forced token has score 0.

        Args:
            scores: logits or log probabilities; they are not changed.
            text: the tokens of the text, prompt included.
            made: how many of them are new.
            last: whether the text ends with the next token, whichever it is.
            stop_ids: the stop tokens.
        """
        if not self.active:
            return scores
        forced = _as_tuple(self.forced_eos_token_id) if last else ()
        if not forced and len(text) == 1:
            forced = _as_tuple(self.forced_bos_token_id)
        if forced:
            result = np.full_like(scores, -np.inf)
            result[list(forced)] = 0.0
        else:
            result = self._allowed(scores, text, made, stop_ids)
        result[list(_as_tuple(self.suppress_tokens))] = -np.inf
        if made == self._begin(len(text) - made):
            result[list(_as_tuple(self.begin_suppress_tokens))] = -np.inf
        return result

    def _allowed(
        self, scores: np.ndarray, text: Sequence[int], made: int, stop_ids: frozenset[int]
    ) -> np.ndarray:
        """The scores where no token is forced."""
        if self.allowed_ids is None:
            result = scores.copy()
        else:
            allowed = [*self.allowed_ids, *stop_ids]
            result = np.full_like(scores, -np.inf)
            result[allowed] = scores[allowed]
        if self.no_repeat_ngram_size:
            result[repeating_tokens(text, self.no_repeat_ngram_size)] = -np.inf
        result[self._bad_words.last_tokens(text, stop_ids)] = -np.inf
        if made < (self.min_new_tokens or 0):
            result[list(stop_ids)] = -np.inf
        return result

    def _begin(self, prompt_length: int) -> int:
        """The number of new tokens before the one to which begin_suppress_tokens applies."""
        return int(prompt_length == 1 and self.forced_bos_token_id is not None)

    @cached_property
    def _bad_words(self) -> _BadWords:
        return _BadWords(self.bad_words_ids or ())


class _BadWords:
    """Sequences by their beginnings, so that the time of a step does not depend on their number."""

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self._single = {word[0] for word in words if len(word) == 1}
        self._last: dict[tuple[int, ...], list[int]] = {}
        for *start, last in words:
            if start:
                self._last.setdefault(tuple(start), []).append(last)
        self._lengths = sorted({len(start) for start in self._last})

    def last_tokens(self, text: Sequence[int], stop_ids: frozenset[int]) -> list[int]:
        """The tokens that would complete a sequence."""
        tokens = [*(self._single - stop_ids)]
        for length in self._lengths:
            if length <= len(text):
                tokens += self._last.get(tuple(text[-length:]), ())
        return tokens


def repeating_tokens(text: Sequence[int], size: int) -> list[int]:
    """The tokens after which the last `size` tokens would occur twice.

    >>> repeating_tokens([5, 6, 7, 5, 6], 3)
    [7]
    """
    if len(text) < size:
        return []
    start = tuple(text[len(text) + 1 - size :])
    windows = range(len(text) + 1 - size)
    return [text[i + size - 1] for i in windows if tuple(text[i : i + size - 1]) == start]


def no_token_error() -> InputError:
    return InputError(
        "All tokens are excluded by regex, json_schema, allowed_ids, bad_words_ids, suppress_tokens, "
        "begin_suppress_tokens, min_new_tokens or no_repeat_ngram_size. Allow more tokens."
    )


def _is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | dict)


def _as_tuple(value: Any) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _shown(ids: tuple[int, ...]) -> str:
    return str(ids[0]) if len(ids) == 1 else str(list(ids))


def _checked_words(value: Any) -> tuple[tuple[int, ...], ...]:
    if value is None:
        return ()
    if not _is_list(value):
        raise ConfigError(f"bad_words_ids is {value!r}, expected a list of lists of ids.")
    words = tuple(_checked_ids("bad_words_ids", word) for word in value)
    if () in words:
        raise ConfigError("bad_words_ids has an empty sequence. Pass at least one id for each.")
    return words


def _checked_shortlist(value: Any) -> tuple[int, ...] | None:
    ids = None if value is None else _checked_ids("allowed_ids", value)
    if ids == ():
        raise ConfigError("allowed_ids is empty. Pass at least one id, or None for the whole vocabulary.")
    return ids


def _checked_first(value: Any) -> int | None:
    return None if value is None else _checked_ids("forced_bos_token_id", [value])[0]


def _checked_last(value: Any) -> tuple[int, ...] | None:
    return (
        _checked_list("forced_eos_token_id", value if value is None or _is_list(value) else [value]) or None
    )


def _checked_list(name: str, value: Any) -> tuple[int, ...]:
    return () if value is None else _checked_ids(name, value)


def _checked_ids(name: str, value: Any) -> tuple[int, ...]:
    if not _is_list(value):
        raise ConfigError(f"{name} is {value!r}, expected a list of ids.")
    ids = tuple(_id(one) for one in value)
    for one, number in zip(value, ids, strict=True):
        if number < 0:
            raise ConfigError(f"{name} has {one!r}, expected ids, 0 or more.")
    return ids


def _checked_number(name: str, value: Any) -> int:
    number = 0 if value is None else _id(value)
    if number < 0:
        raise ConfigError(f"{name} is {value!r}, expected a whole number, 0 or more.")
    return number


def _id(value: Any) -> int:
    """The value if it is a whole number, 0 or more; -1 otherwise."""
    try:
        return -1 if isinstance(value, bool) else max(operator.index(value), -1)
    except TypeError:
        return -1


UNCONSTRAINED = Constraints()
CONSTRAINTS = tuple(field.name for field in dataclasses.fields(Constraints))
