"""How a token is chosen from the logits: greedy, or drawn after temperature, top-k, top-p and min-p."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError, true_or_false, whole_number
from keras_tx.generation.truncated_sampling import drawn, not_numbers


@dataclasses.dataclass(frozen=True)
class Sampling:
    """What decides on the next token, by the names and in the order of transformers.

    >>> Sampling().samples, Sampling(top_k=40).samples, Sampling(temperature=0).samples
    (False, True, False)

    Args:
        do_sample: whether tokens are drawn; False takes the best one (greedy). By default drawn where
            temperature, top_k, top_p, min_p or seed is given. A temperature of 0 is greedy, as in most
            servers; together with do_sample=True it is refused, as in transformers.
        temperature: logits are divided by it; below 1 likely tokens become likelier.
        top_k: only the k likeliest tokens; by default all.
        top_p: only the likeliest tokens that together reach this probability.
        min_p: only tokens at least so likely as this share of the likeliest one's probability.
        repetition_penalty: above 1 tokens that the text has already become less likely, the prompt included.
        seed: the same seed, prompt and model give the same tokens; None draws anew each time.
    """

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.do_sample is not None:
            true_or_false("do_sample", self.do_sample)
        if self.temperature is not None:
            _check(
                "temperature", self.temperature, 0.0, math.inf, "0 or more; 0 takes the best token each time"
            )
        if self.top_k is not None:
            whole_number("top_k", self.top_k)
        if self.top_p is not None:
            _check("top_p", self.top_p, 0.0, 1.0, "above 0 and at most 1", above=True)
        if self.min_p is not None:
            _check("min_p", self.min_p, 0.0, 1.0, "0 to 1")
        _check(
            "repetition_penalty", self.repetition_penalty, 0.0, math.inf, "above 0; 1 changes nothing", True
        )
        if self.seed is not None:
            _whole("seed", self.seed)
        if self.do_sample and self.temperature == 0:
            raise ConfigError(
                "temperature is 0 with do_sample=True. Give a temperature above 0 to draw tokens, or leave "
                "do_sample out: 0 by itself takes the best token each time."
            )

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn."""
        if self.do_sample is not None:
            return self.do_sample
        given = (self.temperature, self.top_k, self.top_p, self.min_p, self.seed)
        return self.temperature != 0 and any(x is not None for x in given)

    def generators(self, count: int) -> list[np.random.Generator]:
        """One for each sample of a prompt.

        All prompts of a batch get the same ones, so that a prompt gives alone what it gives among others.
        """
        entropy = np.random.SeedSequence(self.seed).entropy
        return [np.random.default_rng([entropy, index]) for index in range(count)]  # type: ignore[list-item]


class Seen:
    """The tokens that a text has, for the repetition penalty: each once, and ready to index with."""

    def __init__(self, text: Iterable[int] = ()) -> None:
        self._known: set[int] = set()
        self._ids = np.zeros(64, "int64")
        for token in text:
            self.add(token)

    def add(self, token: int) -> None:
        count = len(self._known)
        self._known.add(token)
        if len(self._known) == count:
            return
        if count == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
        self._ids[count] = token

    @property
    def ids(self) -> np.ndarray:
        return self._ids[: len(self._known)]


def choose(logits: np.ndarray, options: Sampling, seen: Seen, random: np.random.Generator | None) -> int:
    """The next token for logits (vocabulary,); `seen` is what the text has, the prompt included.

    >>> choose(np.array([0.0, 3.0, 1.0]), Sampling(), Seen(), None)
    1
    """
    if options.repetition_penalty != 1.0:
        logits = penalized(logits, seen.ids, options.repetition_penalty)
    if not options.samples:
        token = int(logits.argmax())
        if not math.isfinite(logits[token]):
            raise not_numbers()
        return token
    assert random is not None
    return drawn(
        logits,
        random,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
    )


def penalized(logits: np.ndarray, seen: np.ndarray, penalty: float) -> np.ndarray:
    """Positive logits of tokens that the text has are divided by the penalty, negative ones multiplied."""
    logits = logits.copy()
    found = logits[seen]
    logits[seen] = np.where(found > 0, found / penalty, found * penalty)
    return logits


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, in float64."""
    shifted = logits.astype("float64") - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def log_probability(logits: np.ndarray, token: int) -> float:
    """What log_softmax gives for one token of logits (vocabulary,), in a quarter of the time."""
    most = logits.max()
    return float(logits[token]) - float(most) - math.log(np.exp(logits - most).sum())


def _check(name: str, value: Any, least: float, most: float, expected: str, above: bool = False) -> None:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not least <= value <= most or math.isinf(value) or (above and value == least):
        raise ConfigError(f"{name} is {value!r}, expected a number {expected}.")


def _whole(name: str, value: Any) -> None:
    try:
        good = not isinstance(value, bool) and operator.index(value) >= 0
    except TypeError:
        good = False
    if not good:
        raise ConfigError(f"{name} is {value!r}, expected a whole number, 0 or more.")
