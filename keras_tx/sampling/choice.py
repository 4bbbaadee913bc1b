"""How a token is chosen from the logits: greedy, or drawn after temperature, top-k, top-p and min-p."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError, whole_number

SMALLEST = 1e-30  # a temperature that leaves the best token alone, and by which float32 can divide
BLOCK = 64


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


def choose(
    logits: np.ndarray, options: Sampling, text: Sequence[int], random: np.random.Generator | None
) -> int:
    """The next token for logits (vocabulary,); `text` is what came before, the prompt included.

    >>> choose(np.array([0.0, 3.0, 1.0]), Sampling(), [], None)
    1
    """
    if options.repetition_penalty != 1.0:
        logits = penalized(logits, text, options.repetition_penalty)
    if not options.samples:
        return int(logits.argmax())
    assert random is not None
    ids, probabilities = warped(logits, options)
    place = int(np.searchsorted(probabilities.cumsum(), random.random(), side="right"))
    return int(ids[min(place, len(ids) - 1)])  # rounding may leave the sum a little below 1


def penalized(logits: np.ndarray, text: Sequence[int], penalty: float) -> np.ndarray:
    """Positive logits of tokens that the text has are divided by the penalty, negative ones multiplied."""
    seen = np.unique(np.asarray(text, "int64"))
    logits = logits.copy()
    logits[seen] = np.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
    return logits


def warped(logits: np.ndarray, options: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that remain, in order of their ids, and their probabilities."""
    few = options.top_k is not None and options.top_k < len(logits)
    ids = _best(logits, options.top_k) if few and options.top_k else np.arange(len(logits))
    scores = (logits[ids] if few else logits).astype("float32")
    scores -= scores.max()
    if options.temperature is not None:
        scores /= np.float32(max(options.temperature, SMALLEST))
    probabilities = np.exp(scores)
    probabilities /= np.float32(probabilities.sum(dtype="float64"))
    kept = None
    if options.top_p is not None and options.top_p < 1.0:
        kept = _nucleus(probabilities, options.top_p)
    if options.min_p is not None:
        likely = probabilities >= np.float32(options.min_p * probabilities.max())
        kept = likely if kept is None else kept & likely
    if kept is not None:
        ids, probabilities = ids[kept], probabilities[kept]
    shares = probabilities.astype("float64")
    return ids, shares / shares.sum()


def _best(logits: np.ndarray, count: int) -> np.ndarray:
    """The ids of the largest logits, in order of their ids.

    The largest of each block are a sample, of which the one in place `count` is low enough: far fewer logits
    than all are then compared.
    """
    blocks = len(logits) // BLOCK
    candidates = np.arange(len(logits))
    if blocks >= count:
        largest = logits[: blocks * BLOCK].reshape(blocks, BLOCK).max(axis=1)
        candidates = np.flatnonzero(logits >= np.partition(largest, -count)[-count])
    best = np.argpartition(logits[candidates], -count)[-count:]
    return np.sort(candidates[best])


def _nucleus(probabilities: np.ndarray, share: float) -> np.ndarray:
    """True for the likeliest that together reach a share; only those that may be among them are sorted."""
    least = probabilities.max() / 16
    candidates = np.flatnonzero(probabilities >= least)
    while len(candidates) < len(probabilities) and probabilities[candidates].sum(dtype="float64") < share:
        least /= 16
        candidates = np.flatnonzero(probabilities >= least)
    order = candidates[np.argsort(-probabilities[candidates], kind="stable")]
    sorted_ones = probabilities[order].astype("float64")
    kept = np.zeros(len(probabilities), bool)
    kept[order[sorted_ones.cumsum() - sorted_ones < share]] = True
    return kept


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, in float64."""
    shifted = logits.astype("float64") - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


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
