"""Operations on the logits of the next token: probabilities, penalty, top-k, and drawing a token."""

from __future__ import annotations

import math

import numpy as np

from keras_tx.errors import RunError

SMALLEST = 1e-30  # a temperature that leaves only the best token, and by which float32 can divide
BLOCK = 256  # weights that are summed together; a running sum over all takes as long as everything else
GROUP = 64


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, in float64."""
    shifted = logits.astype("float64") - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def log_probability(logits: np.ndarray, token: int) -> float:
    """`log_softmax` for one token of logits (vocabulary,), in a quarter of the time."""
    most = logits.max()
    return float(logits[token]) - float(most) - math.log(np.exp(logits - most).sum())


def penalize(logits: np.ndarray, tokens: np.ndarray, penalty: float) -> np.ndarray:
    """Divides positive logits of these tokens by the penalty, and multiplies negative ones by it."""
    logits = logits.copy()
    values = logits[tokens]
    logits[tokens] = np.where(values > 0, values / penalty, values * penalty)
    return logits


def top_k_ids(logits: np.ndarray, k: int) -> np.ndarray:
    """The ids of the k largest logits, in ascending order; of equal logits the first ids.

    The k-th largest of the maxima of groups is a lower bound: only logits that reach it are compared.
    """
    groups = len(logits) // GROUP
    candidates = None
    if groups >= k:
        maxima = logits[: groups * GROUP].reshape(GROUP, groups).max(axis=0)
        candidates = np.flatnonzero(logits >= np.partition(maxima, -k)[-k])
    values = logits if candidates is None else logits[candidates]
    least = np.partition(values, -k)[-k]
    indices = np.flatnonzero(values >= least)
    if len(indices) > k:
        equal = indices[values[indices] == least]
        indices = np.setdiff1d(indices, equal[k - len(indices) :], assume_unique=True)
    return indices if candidates is None else candidates[indices]


def draw_token(
    logits: np.ndarray,
    random: np.random.Generator,
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> int:
    """A random token, after temperature, top-k, top-p and min-p, in this order.

    It makes a few passes over the logits: they are neither sorted nor all summed.

    >>> draw_token(np.array([0.0, 9.0, 1.0], "float32"), np.random.default_rng(0), top_p=0.9)
    1
    """
    most = logits.max()
    if not math.isfinite(most):
        raise nan_error()
    ids = None
    if top_k is not None and top_k < len(logits):
        ids = top_k_ids(logits, top_k)
        logits = logits[ids]
    weights = np.subtract(logits, most, dtype="float32")  # the same dtype for logits of any dtype
    if temperature is not None:
        weights /= np.float32(max(temperature, SMALLEST))
    np.exp(weights, out=weights)  # the likeliest token has weight 1
    sums = _block_sums(weights)
    nucleus = None if top_p is None or top_p >= 1.0 else top_p * float(sums[-1])
    if min_p is not None:
        weights *= weights >= np.float32(min_p)
        sums = _block_sums(weights)
    index = _draw_index(weights, sums, random)
    if nucleus is not None:
        index = _draw_in_nucleus(weights, index, nucleus, random)
    return index if ids is None else int(ids[index])


def _draw_index(weights: np.ndarray, sums: np.ndarray, random: np.random.Generator) -> int:
    """A random index, with probabilities proportional to the weights."""
    target = random.random() * sums[-1]
    block = int(np.searchsorted(sums, target, side="right"))
    start = block * BLOCK
    inside = weights[start : start + BLOCK]
    rest = target - (sums[block - 1] if block else 0.0)
    index = int(np.searchsorted(inside.cumsum(dtype="float64"), rest, side="right"))
    if index == len(inside):  # rounding: the block's sum is a little above that of its parts
        index = int(np.flatnonzero(inside)[-1])
    return start + index


def _block_sums(weights: np.ndarray) -> np.ndarray:
    """The running sum at the end of each block."""
    blocks, rest = divmod(len(weights), BLOCK)
    sums = np.zeros(blocks + (rest > 0))
    weights[: blocks * BLOCK].reshape(blocks, BLOCK).sum(axis=1, out=sums[:blocks])
    if rest:
        sums[blocks] = weights[blocks * BLOCK :].sum()
    return sums.cumsum()


def _draw_in_nucleus(weights: np.ndarray, index: int, nucleus: float, random: np.random.Generator) -> int:
    """A random index among the largest weights that together reach `nucleus`.

    The nucleus is not computed. An `index` drawn from all weights lies in it if the weights before it, in
    descending order, sum to less; otherwise no later one does, and the next index is drawn from those before.
    """
    while True:
        before = weights > weights[index]
        before[:index] |= weights[:index] == weights[index]
        if float(np.dot(weights, before)) < nucleus:
            return index
        weights = weights * before
        index = _draw_index(weights, _block_sums(weights), random)


def nan_error() -> RunError:
    return RunError(
        "The model's logits are NaN. Its training diverged or its weights are damaged; run keras-tx verify."
    )
