"""Hard negatives: documents that are similar to a query but do not answer it, from embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tx.errors import ConfigError, InputError, whole_number

ROWS = 1024  # queries whose similarities are in memory together
NONE = -1


def mine_hard_negatives(
    queries: Any,
    documents: Any,
    positives: Any,
    *,
    count: int = 1,
    skip: int = 0,
    margin: float | None = None,
) -> np.ndarray:
    """Returns the documents most similar to each query that are not its positives.

    >>> import numpy as np
    >>> documents = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> mine_hard_negatives(documents[:1], documents, [0]).tolist()
    [[1]]

    Args:
        queries: vectors of the queries (queries, width); their norm has no effect.
        documents: vectors of the documents (documents, width).
        positives: the index of the positive of each query, or a list of indices per query.
        count: negatives per query.
        skip: the number of most similar candidates that are left out, because they may be unlabelled
            positives.
        margin: negatives have a cosine below (1 - margin) times that of the positive; of several positives,
            the most similar one counts. None for no limit. 0.05 leaves out most unlabelled positives (Moreira
            et al., "NV-Retriever", 2024).

    Returns:
        Indices of documents (queries, count), most similar first; -1 if there are not enough.

    Raises:
        InputError: the shapes of the arrays do not match, or an index is out of range.
        ConfigError: `count`, `skip` or `margin` is out of range.
    """
    count = whole_number("count", count)
    if type(skip) is not int or skip < 0:
        raise ConfigError(f"skip={skip!r} is out of range. Pass a whole number, 0 or more.")
    if margin is not None and not 0 <= margin < 1:
        raise ConfigError(f"margin={margin!r} is out of range. Pass None, or 0 or more and less than 1.")
    queries, documents = _unit("queries", queries), _unit("documents", documents)
    if queries.shape[1] != documents.shape[1]:
        raise InputError(
            f"queries have {queries.shape[1]} dimensions, but documents have {documents.shape[1]}."
        )
    own = _indices(positives, len(queries), len(documents))
    negatives = np.full((len(queries), count), NONE)
    for start in range(0, len(queries), ROWS):
        scores = queries[start : start + ROWS] @ documents.T
        for row, similar in enumerate(scores):
            places = own[start + row]
            best = similar[places].max()
            similar[places] = -np.inf
            order = np.argsort(-similar, kind="stable")[skip : len(similar) - len(set(places))]
            if margin is not None:
                order = order[similar[order] < (1 - margin) * best]
            negatives[start + row, : len(order[:count])] = order[:count]
    return negatives


def _unit(name: str, vectors: Any) -> np.ndarray:
    array = np.asarray(vectors, "float32")
    if array.ndim != 2 or not array.size:
        raise InputError(f"{name} has the shape {array.shape}, expected (rows, width).")
    if not np.isfinite(array).all():
        raise InputError(f"{name} has numbers that are NaN or infinite.")
    return array / np.maximum(np.linalg.norm(array, axis=1, keepdims=True), 1e-12)


def _indices(positives: Any, queries: int, documents: int) -> list[list[int]]:
    if len(positives) != queries:
        raise InputError(f"There are {queries} queries but {len(positives)} positives.")
    own: list[list[int]] = []
    for index, one in enumerate(positives):
        places: Sequence[int] = [int(x) for x in np.atleast_1d(one)]
        if not places or min(places) < 0 or max(places) >= documents:
            raise InputError(
                f"positives[{index}] is {one!r}, expected one or more indices from 0 to {documents - 1}."
            )
        own.append(list(places))
    return own
