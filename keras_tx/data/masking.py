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
    """Masks random tokens, and returns the masked ids and the labels, both (batch, sequence).

    In each row, the share `rate` of the allowed tokens is selected, at least one. Of these, 80 % are replaced
    by the mask, 10 % by a random one of `replacements`, and 10 % are kept. Labels are the ids of selected
    tokens, and -100 elsewhere.

    Args:
        ids: (batch, sequence).
        allowed: (batch, sequence), true where a token may be selected.
        random: the generator for the selection.
        mask_id: the id of the mask.
        replacements: the ids of random replacements.
        rate: the share of tokens to select.
        words: (batch, sequence), the index of each token's word; whole words are then selected. The tokens
            of a word must be adjacent.
    """
    if not 0 < rate < 1:
        raise ConfigError(f"rate={rate!r}, expected a share between 0 and 1.")
    counts = np.rint(rate * allowed.sum(axis=1, keepdims=True))
    scores = random.random(ids.shape)
    if words is not None:
        # The tokens of a word share the score of its first token, so that they are adjacent when sorted.
        scores = np.take_along_axis(scores, _run_starts(words), axis=1)
    scores = np.where(allowed, scores, 2.0)
    order = np.argsort(scores, axis=1, kind="stable")
    in_order = np.take_along_axis(scores, order, axis=1)
    start = _run_starts(in_order)
    stop = ids.shape[1] - _run_starts(in_order[:, ::-1])[:, ::-1]
    # The last word may exceed the number: it is masked if more than half of it fits; at half, at random.
    half = random.choice((-0.25, 0.25), counts.shape)
    masked = ((start + stop) / 2 < counts + half) | (start == 0)
    chosen = np.zeros(ids.shape, bool)
    np.put_along_axis(chosen, order, masked, axis=1)
    chosen &= allowed
    labels = np.where(chosen, ids, contract.NO_LABEL)
    draw = random.random(ids.shape)
    any_token = replacements[random.integers(0, len(replacements), ids.shape)]
    hidden = np.where(draw < MASKED, mask_id, np.where(draw < MASKED + REPLACED, any_token, ids))
    return np.where(chosen, hidden, ids), labels


def _run_starts(values: np.ndarray) -> np.ndarray:
    """The start of the run of equal values that contains each position of each row."""
    begins = np.ones(values.shape, bool)
    begins[:, 1:] = values[:, 1:] != values[:, :-1]
    return np.maximum.accumulate(np.where(begins, np.arange(values.shape[1]), 0), axis=1)
