"""Dynamic masking, as in section 3.1 of Devlin et al."""

from __future__ import annotations

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError

MASKED, REPLACED = 0.8, 0.1  # shares of the chosen tokens; the rest stays as it is


def mask_tokens(
    ids: np.ndarray,
    allowed: np.ndarray,
    random: np.random.Generator,
    *,
    mask_id: int,
    replacements: np.ndarray,
    rate: float = 0.15,
    words: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The ids with some hidden, and labels: the id at those, -100 elsewhere; both (batch, sequence).

    In each row `rate` of the allowed tokens is chosen, one at least. Of the chosen, 80 % become
    the mask, 10 % any of `replacements`, and 10 % stay.

    Args:
        allowed: (batch, sequence), where something may be chosen.
        words: (batch, sequence), the number of the word that each token is a piece of; words are then
            chosen whole. The pieces of a word stand side by side.
    """
    if not 0 < rate < 1:
        raise ConfigError(f"rate={rate!r}, expected a share between 0 and 1.")
    wanted = np.rint(rate * allowed.sum(axis=1, keepdims=True))
    scores = random.random(ids.shape)
    if words is not None:
        # Tokens of one word take the score of its first, and so stand together in the order of scores.
        scores = np.take_along_axis(scores, _run_starts(words), axis=1)
    scores = np.where(allowed, scores, 2.0)
    order = np.argsort(scores, axis=1, kind="stable")
    in_order = np.take_along_axis(scores, order, axis=1)
    start = _run_starts(in_order)
    stop = ids.shape[1] - _run_starts(in_order[:, ::-1])[:, ::-1]
    # A word that would go beyond the number is taken if more than half of it is within; at half, by chance.
    half = random.choice((-0.25, 0.25), wanted.shape)
    taken = ((start + stop) / 2 < wanted + half) | (start == 0)
    chosen = np.zeros(ids.shape, bool)
    np.put_along_axis(chosen, order, taken, axis=1)
    chosen &= allowed
    labels = np.where(chosen, ids, contract.NO_LABEL)
    draw = random.random(ids.shape)
    any_token = replacements[random.integers(0, len(replacements), ids.shape)]
    hidden = np.where(draw < MASKED, mask_id, np.where(draw < MASKED + REPLACED, any_token, ids))
    return np.where(chosen, hidden, ids), labels


def _run_starts(values: np.ndarray) -> np.ndarray:
    """For each place of each row, where the run of equal values begins that it is in."""
    begins = np.ones(values.shape, bool)
    begins[:, 1:] = values[:, 1:] != values[:, :-1]
    return np.maximum.accumulate(np.where(begins, np.arange(values.shape[1]), 0), axis=1)
