"""Choosing the next token: greedy, or at random with temperature, top-k, top-p and min-p."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError, true_or_false, whole_number
from keras_tx.generation.logits import draw_token, nan_error, penalize


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Options for choosing the next token, with the names and the order of transformers.

    >>> Sampling().samples, Sampling(top_k=40).samples, Sampling(temperature=0).samples
    (False, True, False)

    Args:
        do_sample: whether tokens are drawn at random; False chooses the likeliest token (greedy). By default
            True if temperature, top_k, top_p, min_p or seed is passed. A temperature of 0 is greedy, as in
            most servers; with do_sample=True it is an error, as in transformers.
        temperature: divisor of the logits; values below 1 make likely tokens likelier.
        top_k: draw from the k likeliest tokens; by default from all.
        top_p: draw from the likeliest tokens whose probabilities sum to this value.
        min_p: draw from tokens whose probability is at least this share of the highest.
        repetition_penalty: values above 1 make tokens of the prompt and of the text less likely.
        seed: the same seed, prompt and model produce the same tokens; None draws a new seed each time.

    Raises:
        ConfigError: if a value is out of range.
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
            _check("temperature", self.temperature, 0.0, math.inf, "0 or more; 0 is greedy")
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
            whole_number("seed", self.seed, least=0)
        if self.do_sample and self.temperature == 0:
            raise ConfigError(
                "temperature is 0 with do_sample=True. Pass a temperature above 0, or omit do_sample."
            )

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn at random."""
        if self.do_sample is not None:
            return self.do_sample
        options = (self.temperature, self.top_k, self.top_p, self.min_p, self.seed)
        return self.temperature != 0 and any(x is not None for x in options)

    def generators(self, count: int) -> list[np.random.Generator]:
        """A random generator for each sample of a prompt.

        They are the same for all prompts of a batch: a prompt has the same result alone and in a batch.
        """
        entropy = np.random.SeedSequence(self.seed).entropy
        return [np.random.default_rng([entropy, index]) for index in range(count)]  # type: ignore[list-item]


class DistinctTokens:
    """The distinct tokens of a text, as an index array for the repetition penalty."""

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


def choose_token(
    logits: np.ndarray, options: Sampling, previous: DistinctTokens, random: np.random.Generator | None
) -> int:
    """The next token, for logits (vocabulary,) and the tokens of the text, prompt included.

    >>> choose_token(np.array([0.0, 3.0, 1.0]), Sampling(), DistinctTokens(), None)
    1
    """
    if options.repetition_penalty != 1.0:
        logits = penalize(logits, previous.ids, options.repetition_penalty)
    if not options.samples:
        token = int(logits.argmax())
        if not math.isfinite(logits[token]):
            raise nan_error()
        return token
    assert random is not None
    return draw_token(
        logits,
        random,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
    )


def _check(name: str, value: Any, least: float, most: float, expected: str, above: bool = False) -> None:
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not least <= value <= most or math.isinf(value) or (above and value == least):
        raise ConfigError(f"{name} is {value!r}, expected a number {expected}.")
