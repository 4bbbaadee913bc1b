"""Batches of texts for sentence embeddings: anchors with positives and negatives, and pairs with scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx.data.batches import Batches
from keras_tx.errors import TextError
from keras_tx.processing import TextTransform


def text_ranking_batches(
    anchors: Any,
    positives: Any,
    transform: TextTransform,
    *,
    negatives: Any = None,
    batch_size: int = 32,
    shuffle: bool = True,
    seed: int = 0,
    **options: Any,
) -> Batches:
    """Returns batches for a SentenceEmbeddingHead and MultipleNegativesRankingLoss.

    A batch has the texts of `batch_size` samples, one text per row: the anchor, its positive and its
    negatives, then those of the next sample.

    >>> from keras_tx.processing import train_wordpiece
    >>> questions, answers = ["where is Ada", "who sat"], ["Ada is in London", "the cat sat"]
    >>> transform = train_wordpiece(questions + answers, 80)
    >>> inputs, labels = text_ranking_batches(questions, answers, transform, shuffle=False)[0]
    >>> labels.tolist()
    [[0, 0, 0], [0, 1, 1], [1, 0, 2], [1, 1, 3]]

    Args:
        anchors: one text per sample, such as a question.
        positives: the text of each sample that is similar to its anchor.
        transform: the tokenizer.
        negatives: hard negatives: one text per sample, or lists of texts of the same length.
        batch_size: samples per batch.
        shuffle, seed, options: as for `Batches`.

    Returns:
        `Batches` of the model's inputs and of labels (rows, 3): the number of the sample in the batch, the
        role of the text (0 for the anchor, 1 for the positive, 2 and more for negatives), and the number of
        the text; equal texts have the same number.

    Raises:
        TextError: a text is invalid, or the lists have different lengths.
    """
    columns = [_texts("anchors", anchors), _texts("positives", positives), *_negative_columns(negatives)]
    return _batches(columns, transform, None, batch_size, shuffle=shuffle, seed=seed, **options)


def text_similarity_batches(
    texts: Any,
    pairs: Any,
    scores: Any,
    transform: TextTransform,
    *,
    batch_size: int = 32,
    shuffle: bool = True,
    seed: int = 0,
    **options: Any,
) -> Batches:
    """Returns batches for a SentenceEmbeddingHead and CoSENTLoss: pairs of texts with their similarity.

    >>> from keras_tx.processing import train_wordpiece
    >>> texts, others = ["a cat", "a dog"], ["the cat", "a film"]
    >>> transform = train_wordpiece(texts + others, 60)
    >>> batches = text_similarity_batches(texts, others, [0.75, 0.25], transform, shuffle=False)
    >>> batches[0][1].tolist()
    [[0.0, 0.75], [0.0, 0.75], [1.0, 0.25], [1.0, 0.25]]

    Args:
        texts: the first text of each pair.
        pairs: the second text of each pair.
        scores: the similarity of each pair; only the order of the scores matters.
        transform: the tokenizer.
        batch_size: pairs per batch.
        shuffle, seed, options: as for `Batches`.

    Returns:
        `Batches` of the model's inputs, one text per row, and of labels (rows, 2): the number of the pair in
        the batch, and its score.

    Raises:
        TextError: a text or a score is invalid, or the lists have different lengths.
    """
    numbers = np.asarray(scores, "float32")
    wrong = np.flatnonzero(~np.isfinite(numbers)) if numbers.ndim == 1 else np.array([0])
    if wrong.size:
        raise TextError(f"scores[{wrong[0]}] is {scores[wrong[0]]!r}, expected a finite number.")
    columns = [_texts("texts", texts), _texts("pairs", pairs)]
    return _batches(columns, transform, numbers, batch_size, shuffle=shuffle, seed=seed, **options)


def _texts(name: str, texts: Any) -> list[Any]:
    if isinstance(texts, str):
        raise TextError(f"{name} is a text, expected a list of texts.")
    return list(texts)


def _negative_columns(negatives: Any) -> list[list[Any]]:
    if negatives is None:
        return []
    rows = [[row] if isinstance(row, str) else list(row) for row in _texts("negatives", negatives)]
    for index, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise TextError(
                f"negatives[{index}] has {len(row)} texts, but negatives[0] has {len(rows[0])}. Pass equally "
                "many for each sample."
            )
    return [list(column) for column in zip(*rows, strict=True)]


def _batches(
    columns: Sequence[Sequence[Any]],
    transform: TextTransform,
    scores: np.ndarray | None,
    batch_size: int,
    **options: Any,
) -> Batches:
    counts = [len(column) for column in columns] + ([] if scores is None else [len(scores)])
    if len(set(counts)) > 1:
        raise TextError(f"The columns have different lengths: {', '.join(map(str, counts))}.")
    rows = [transform.encode(column) for column in columns]
    distinct: dict[Any, int] = {}
    numbers = np.array(
        [
            [distinct.setdefault(column[index], len(distinct)) for column in columns]
            for index in range(counts[0])
        ]
    )

    def pack(chosen: np.ndarray, random: np.random.Generator) -> tuple[Any, Any]:
        batch = transform.pad([column[number] for number in chosen for column in rows])
        sample = np.repeat(np.arange(len(chosen)), len(rows))
        if scores is not None:
            return batch, np.stack([sample, np.repeat(scores[chosen], len(rows))], axis=1).astype("float32")
        role = np.tile(np.arange(len(rows)), len(chosen))
        return batch, np.stack([sample, role, numbers[chosen].reshape(-1)], axis=1)

    def content() -> Iterator[np.ndarray]:
        yield from (row.ids for column in rows for row in column)
        yield numbers if scores is None else scores

    lengths = [max(len(column[index]) for column in rows) for index in range(counts[0])]
    return Batches(pack, lengths, batch_size, content=content, **options)
