"""Contexts with several choices: arrays (batch, choices, sequence) of their pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tx.errors import TextError
from keras_tx.processing.special_tokens import Row
from keras_tx.processing.text import TextTransform
from keras_tx.processing.text_input import check_texts


def encode_choices(
    contexts: Any, choices: Sequence[Sequence[str]], transform: TextTransform, start: int = 0
) -> list[list[Row]]:
    """Returns a row for each choice of each context: the pair of both.

    Args:
        contexts: texts.
        choices: a list of texts for each context.
        transform: the tokenizer.
        start: the index of the first context in a longer list, for messages.

    Raises:
        TextError: a text is invalid, or a context has no choices.
    """
    contexts = check_texts("contexts", contexts, start)
    if len(choices) != len(contexts):
        raise TextError(f"There are {len(contexts)} contexts but {len(choices)} lists of choices.")
    counts = []
    for index, texts in enumerate(choices):
        if isinstance(texts, str) or not len(texts):
            raise TextError(f"choices[{start + index}] is {texts!r:.80}, expected a list of texts.")
        counts.append(len(texts))
    pairs = [(context, text) for context, texts in zip(contexts, choices, strict=True) for text in texts]
    if not pairs:
        return []
    rows = iter(transform.encode([first for first, _ in pairs], [second for _, second in pairs]))
    return [[next(rows) for _ in range(count)] for count in counts]


def pad_choices(
    samples: Sequence[Sequence[Row]], transform: TextTransform, length: int | None = None
) -> dict[str, np.ndarray]:
    """Returns arrays (batch, choices, sequence); missing choices are padding."""
    most = max(map(len, samples))
    batch = transform.pad([row for rows in samples for row in rows], length=length)
    places = [most * index + choice for index, rows in enumerate(samples) for choice in range(len(rows))]
    arrays = {}
    for name, array in batch.items():
        fill = transform.pad_id if name == "input_ids" else 0
        whole = np.full((len(samples) * most, array.shape[1]), fill, array.dtype)
        whole[places] = array
        arrays[name] = whole.reshape(len(samples), most, -1)
    return arrays
