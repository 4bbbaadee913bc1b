"""A token drawn from logits in a few passes over them: what is not needed is neither sorted nor summed."""

from __future__ import annotations

import math

import numpy as np

from keras_tx.errors import InputError

SMALLEST = 1e-30  # a temperature that leaves the best token alone, and by which float32 can divide
BLOCK = 256  # weights summed at once; a running sum over all takes as long as everything else together
GROUP = 64


def drawn(
    logits: np.ndarray,
    random: np.random.Generator,
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> int:
    """A token, each as often as temperature, top-k, top-p and min-p, in this order, make it likely.

    >>> drawn(np.array([0.0, 9.0, 1.0], "float32"), np.random.default_rng(0), top_p=0.9)
    1
    """
    most = logits.max()
    if not math.isfinite(most):
        raise not_numbers()
    ids = None
    if top_k is not None and top_k < len(logits):
        ids = best(logits, top_k)
        logits = logits[ids]
    weights = np.subtract(logits, most, dtype="float32")  # of one dtype, whoever computed the logits
    if temperature is not None:
        weights /= np.float32(max(temperature, SMALLEST))
    np.exp(weights, out=weights)  # the likeliest token has 1
    sums = _sums(weights)
    needed = None if top_p is None or top_p >= 1.0 else top_p * float(sums[-1])
    if min_p is not None:
        weights *= weights >= np.float32(min_p)
        sums = _sums(weights)
    place = _place(weights, sums, random)
    if needed is not None:
        place = _within_nucleus(weights, place, needed, random)
    return place if ids is None else int(ids[place])


def best(logits: np.ndarray, count: int) -> np.ndarray:
    """The ids of the largest logits, in order of their ids; of equal ones at the end, the first.

    The largest of each group are a sample, of which the one in place `count` is low enough: far fewer logits
    than all are then compared.
    """
    groups = len(logits) // GROUP
    candidates = None
    if groups >= count:
        largest = logits[: groups * GROUP].reshape(GROUP, groups).max(axis=0)
        candidates = np.flatnonzero(logits >= np.partition(largest, -count)[-count])
    found = logits if candidates is None else logits[candidates]
    least = np.partition(found, -count)[-count]
    taken = np.flatnonzero(found >= least)
    if len(taken) > count:
        equal = taken[found[taken] == least]
        taken = np.setdiff1d(taken, equal[count - len(taken) :], assume_unique=True)
    return taken if candidates is None else candidates[taken]


def _place(weights: np.ndarray, sums: np.ndarray, random: np.random.Generator) -> int:
    """An index, each as often as its weight says."""
    target = random.random() * sums[-1]
    block = int(np.searchsorted(sums, target, side="right"))
    start = block * BLOCK
    inside = weights[start : start + BLOCK]
    rest = target - (sums[block - 1] if block else 0.0)
    place = int(np.searchsorted(inside.cumsum(dtype="float64"), rest, side="right"))
    if place == len(inside):  # rounding: the block's sum is a little above that of its parts
        place = int(np.flatnonzero(inside)[-1])
    return start + place


def _sums(weights: np.ndarray) -> np.ndarray:
    """The running sum at the end of each block."""
    blocks, rest = divmod(len(weights), BLOCK)
    sums = np.zeros(blocks + (rest > 0))
    weights[: blocks * BLOCK].reshape(blocks, BLOCK).sum(axis=1, out=sums[:blocks])
    if rest:
        sums[blocks] = weights[blocks * BLOCK :].sum()
    return sums.cumsum()


def _within_nucleus(weights: np.ndarray, place: int, needed: float, random: np.random.Generator) -> int:
    """An index among the likeliest ones that together weigh as much as is needed.

    These are never made out. A `place` drawn from all is one of them if those before it, in order of their
    weights, weigh less; if not, nor is any behind it, and the next is drawn from those before it.
    """
    while True:
        before = weights > weights[place]
        before[:place] |= weights[:place] == weights[place]
        if float(np.dot(weights, before)) < needed:
            return place
        weights = weights * before
        place = _place(weights, _sums(weights), random)


def not_numbers() -> InputError:
    return InputError(
        "The model's logits are not numbers (NaN): no token is the best, and none can be drawn. Its training "
        "has diverged, or its weights are damaged; keras-tx verify tells which."
    )
