"""Constraints on the next token: banned, allowed and forced ids, and repeated n-grams."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError, InputError, whole_number


@dataclasses.dataclass(frozen=True)
class Constraints:
    """Which tokens may follow a text. As in transformers, a forced token overrides the others.

    Args:
        banned_ids: tokens that are never generated (`bad_words_ids`).
        allowed_ids: a vocabulary shortlist: only these and the stop tokens are generated; None for all.
        forced_first_id: the first new token, such as the target language of a multilingual model
            (`forced_bos_token_id`).
        forced_last_id: the last token of a text that has reached `max_new_tokens` (`forced_eos_token_id`).
        no_repeat_ngram_size: no sequence of so many tokens occurs twice in a text.
        min_new_tokens: number of new tokens before a stop token.

    Raises:
        ConfigError: if a value is not valid.
    """

    banned_ids: Sequence[int] = ()
    allowed_ids: Sequence[int] | None = None
    forced_first_id: int | None = None
    forced_last_id: int | None = None
    no_repeat_ngram_size: int | None = None
    min_new_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("banned_ids", "allowed_ids"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _checked_ids(name, value))
        if self.allowed_ids is not None and not self.allowed_ids:
            raise ConfigError("allowed_ids is empty. Pass at least one id, or None for the whole vocabulary.")
        for name in ("forced_first_id", "forced_last_id"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, *_checked_ids(name, [value]))
        for name in ("no_repeat_ngram_size", "min_new_tokens"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole_number(name, value))

    @property
    def active(self) -> bool:
        """Whether any token is excluded."""
        return self != UNCONSTRAINED

    def check(self, vocabulary_size: int) -> None:
        """Raises a ConfigError for an id that the vocabulary does not have."""
        for name in ("banned_ids", "allowed_ids", "forced_first_id", "forced_last_id"):
            value: Any = getattr(self, name)
            ids = value if isinstance(value, tuple) else () if value is None else (value,)
            for one in ids:
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
        forced = self.forced_last_id if last else None
        if made == 0 and self.forced_first_id is not None and forced is None:
            forced = self.forced_first_id
        if forced is not None:
            result = np.full_like(scores, -np.inf)
            result[forced] = 0.0
            return result
        if self.allowed_ids is None:
            result = scores.copy()
        else:
            allowed = [*self.allowed_ids, *stop_ids]
            result = np.full_like(scores, -np.inf)
            result[allowed] = scores[allowed]
        result[list(self.banned_ids)] = -np.inf
        if made < (self.min_new_tokens or 0):
            result[list(stop_ids)] = -np.inf
        if self.no_repeat_ngram_size is not None:
            result[repeating_tokens(text, self.no_repeat_ngram_size)] = -np.inf
        return result


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
        "All tokens are excluded by allowed_ids, banned_ids, min_new_tokens or no_repeat_ngram_size. Allow "
        "more tokens."
    )


def _checked_ids(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, Iterable) or isinstance(value, str | bytes):
        raise ConfigError(f"{name} is {value!r}, expected a list of ids.")
    ids = []
    for one in value:
        try:
            number = -1 if isinstance(one, bool) else operator.index(one)
        except TypeError:
            number = -1
        if number < 0:
            raise ConfigError(f"{name} has {one!r}, expected ids, 0 or more.")
        ids.append(number)
    return tuple(ids)


UNCONSTRAINED = Constraints()
