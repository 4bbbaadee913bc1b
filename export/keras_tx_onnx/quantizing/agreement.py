"""Agreement: how often a graph answers like another one, which needs no labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from keras_tx import contract

Arrays = Mapping[str, np.ndarray]

LOGITS = (contract.LOGITS, contract.PREDICTION_LOGITS)
SPANS = (contract.START_LOGITS, contract.END_LOGITS)
VECTORS = (
    contract.SENTENCE_EMBEDDING,
    contract.IMAGE_EMBEDS,
    contract.POOLER_OUTPUT,
    contract.LAST_HIDDEN_STATE,
)


def answers(
    outputs: Arrays, mask: np.ndarray | None = None, problem_type: str | None = None
) -> np.ndarray | None:
    """The answers in the outputs of a batch.

    Args:
        outputs: by name.
        mask: 1 at tokens, 0 at padding, which has no answer.
        problem_type: of a classifier.

    Returns:
        The class of each row or token, the first and last token of each span, whether each label applies, or
        unit vectors. None if there are none of these, as in a regression.
    """
    if problem_type == contract.REGRESSION:
        return None
    for name in LOGITS:
        if name in outputs and outputs[name].ndim >= 2 and outputs[name].shape[-1] > 1:
            several = problem_type == contract.MULTI_LABEL
            return _of_tokens(outputs[name] > 0 if several else outputs[name].argmax(-1), mask)
    if all(name in outputs for name in SPANS):
        return np.stack([outputs[name].argmax(-1) for name in SPANS])
    for name in VECTORS:
        if name in outputs:
            return _of_tokens(_unit_vectors(outputs[name].astype("float32")), mask)
    return None


def agreement(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> float:
    """The share of equal answers of batches, or the mean cosine of vectors."""
    total = count = 0.0
    for one, other in zip(expected, actual, strict=True):
        if one.dtype.kind == "f":
            total += float((one * other).sum())
            count += one.size / one.shape[-1]
        else:
            total += float((one == other).sum())
            count += one.size
    return total / max(count, 1)


def _of_tokens(values: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """The values at tokens; all values if they are not those of the tokens of the mask."""
    return values if mask is None or values.shape[:2] != mask.shape else values[mask != 0]


def _unit_vectors(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
