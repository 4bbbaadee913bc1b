"""Batches of contexts with their choices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx.data.batches import Batches
from keras_tx.errors import TextError
from keras_tx.processing import TextTransform
from keras_tx.processing.choices import encode_choices, pad_choices


def multiple_choice_batches(
    contexts: Sequence[str],
    choices: Sequence[Sequence[str]],
    answers: Sequence[int] | np.ndarray,
    transform: TextTransform,
    *,
    batch_size: int = 16,
    shuffle: bool = True,
    seed: int = 0,
    **options: Any,
) -> Batches:
    """Returns batches for a MultipleChoiceHead.

    >>> from keras_tx.processing import train_wordpiece
    >>> transform = train_wordpiece(["the cat sat on the mat", "in London"], 60)
    >>> choices = ["on the mat", "in London"]
    >>> batches = multiple_choice_batches(["the cat sat"], [choices], [0], transform)
    >>> inputs, labels = batches[0]
    >>> inputs["input_ids"].shape[:2], labels.tolist()
    ((1, 2), [0])

    Args:
        contexts: one text per sample: the beginning of a story, or a question.
        choices: a list of texts per sample; their numbers may differ.
        answers: the index of the correct choice of each sample.
        transform: the tokenizer.
        batch_size, shuffle, seed, options: as for `Batches`.

    Returns:
        `Batches` of the model's inputs (batch, choices, sequence) and of the answers (batch,).

    Raises:
        TextError: a text or an answer is invalid; the message contains its index.
    """
    samples = encode_choices(contexts, choices, transform)
    labels = np.asarray(answers)
    if labels.shape != (len(samples),):
        raise TextError(f"There are {len(samples)} contexts but answers of shape {labels.shape}.")
    for index, (rows, label) in enumerate(zip(samples, labels.tolist(), strict=True)):
        if type(label) is not int or not 0 <= label < len(rows):
            raise TextError(f"answers[{index}] is {label!r}, expected an index from 0 to {len(rows) - 1}.")

    def pack(chosen: np.ndarray, random: np.random.Generator) -> tuple[Any, Any]:
        return pad_choices([samples[number] for number in chosen], transform), labels[chosen]

    def content() -> Iterator[np.ndarray]:
        yield from (row.ids for rows in samples for row in rows)
        yield labels

    lengths = [max(map(len, rows)) for rows in samples]
    return Batches(pack, lengths, batch_size, shuffle=shuffle, seed=seed, content=content, **options)
