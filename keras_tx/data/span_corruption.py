"""Span corruption, the pre-training of T5, as in section 3.1.4 of Raffel et al."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tx.data.batches import Batches
from keras_tx.data.blocks import token_blocks
from keras_tx.data.pairs import checked_start_id, end_id, pair_padding, plain_row
from keras_tx.errors import ConfigError, whole_number
from keras_tx.processing import TextTransform, TokenFile


def span_corruption_batches(
    tokens: TokenFile | str | os.PathLike[str],
    length: int,
    transform: TextTransform,
    batch_size: int = 32,
    *,
    rate: float = 0.15,
    mean_span_length: float = 3.0,
    start_id: int | None = None,
    steps: int | None = None,
    separate_documents: bool = False,
    shuffle: bool = True,
    seed: int = 0,
    **options: Any,
) -> Batches:
    """Returns batches for pre-training a T5: texts with missing spans, and the spans as targets.

    Each span is replaced by a sentinel token. The target consists of the sentinels, each followed by its
    span, and ends with the end token. Other spans are missing in each epoch. The blocks of the file are as
    long as `length` permits: with `length=512` a block has 568 tokens, and a target 114, as for T5.

    Only the blocks of a batch are read. Their order and `steps` are as for `causal_lm_batches`.

    Args:
        tokens: a TokenFile, or the path of one.
        length: the largest number of tokens of the encoder's input, at most the model's `max_length`.
        transform: the tokenizer of the file, with the sentinels `<extra_id_0>`, `<extra_id_1>` ...
        rate: the share of tokens in missing spans.
        mean_span_length: the mean number of tokens of a span.
        start_id: the first input of the decoder, `model.start_id`; by default the padding token.
        steps, separate_documents: as for `causal_lm_batches`.
        batch_size, shuffle, seed, options: as for `Batches`.

    Returns:
        `Batches` of the model's inputs and of labels (batch, target).

    Raises:
        ConfigError: the file is not a token file of this tokenizer or has too few tokens, or the tokenizer
            has too few sentinels.
    """
    tokens = tokens if isinstance(tokens, TokenFile) else TokenFile(tokens)
    if tokens.vocabulary_size != transform.vocabulary_size:
        raise ConfigError(
            f"{tokens.path} has vocabulary_size={tokens.vocabulary_size}, but the transform has "
            f"{transform.vocabulary_size} tokens. Pass the transform that wrote the file."
        )
    block = block_length(length, rate, mean_span_length)
    sentinels = transform.sentinel_ids()
    missing, spans = span_counts(block, rate, mean_span_length)
    if spans > len(sentinels):
        raise ConfigError(
            f"length={length} with rate={rate} has {spans} spans, but the tokenizer has {len(sentinels)} "
            "sentinels, '<extra_id_0>' and the following. Decrease length or rate."
        )
    start_id = checked_start_id(start_id, transform)
    end, pad = end_id(transform), pair_padding(transform, start_id)

    def pack(rows: np.ndarray, sizes: np.ndarray, random: np.random.Generator) -> tuple[Any, Any]:
        pairs = []
        for row, size in zip(rows, sizes, strict=True):
            mask = span_mask(int(size), random, rate, mean_span_length)
            pairs.append([plain_row(ids) for ids in corrupt_spans(row[:size], mask, sentinels, end)])
        return pad(*zip(*pairs, strict=True))

    batches = token_blocks(
        tokens,
        block,
        batch_size,
        pack,
        ahead=0,
        separate_documents=separate_documents,
        steps=steps,
        shuffle=shuffle,
        seed=seed,
        settings={"rate": rate, "mean_span_length": mean_span_length, "start_id": start_id},
        **options,
    )
    batches.start_id, batches.longest = start_id, max(length, missing + spans + 1)
    return batches


def span_counts(length: int, rate: float, mean_span_length: float) -> tuple[int, int]:
    """Returns the number of missing tokens of a text of `length` tokens, and their number of spans.

    >>> span_counts(568, 0.15, 3.0)
    (85, 28)
    """
    missing = min(max(round(length * rate), 1), max(length - 1, 1))
    spans = max(round(missing / mean_span_length), 1)
    return missing, min(spans, max(length - missing, 1))


def block_length(length: int, rate: float, mean_span_length: float) -> int:
    """Returns the length of the longest text whose corrupted form has at most `length` tokens.

    >>> block_length(512, 0.15, 3.0)
    568

    Raises:
        ConfigError: an argument is out of range.
    """
    length = whole_number("length", length)
    if not 0 < rate < 1:
        raise ConfigError(f"rate={rate!r}, expected a share between 0 and 1.")
    if not mean_span_length >= 1:
        raise ConfigError(f"mean_span_length={mean_span_length!r}, expected 1 or more.")
    if length < 3:
        raise ConfigError(f"length={length} is too small for a token, a sentinel and the end token.")
    block = 1

    def corrupted(size: int) -> int:
        missing, spans = span_counts(size, rate, mean_span_length)
        return size - missing + spans + 1

    while corrupted(block + 1) <= length:
        block += 1
    return block


def span_mask(size: int, random: np.random.Generator, rate: float, mean_span_length: float) -> np.ndarray:
    """Returns a mask (size,) that is true at the tokens of missing spans.

    Kept and missing spans alternate, and a kept one is the first. Each division of the kept tokens into
    spans, and of the missing ones, is equally probable.
    """
    missing, spans = span_counts(size, rate, mean_span_length)
    if size == 1:
        return np.ones(1, bool)
    lengths = [_division(size - missing, spans, random), _division(missing, spans, random)]
    return np.repeat(np.tile([False, True], spans), np.stack(lengths, axis=1).ravel())


def _division(count: int, parts: int, random: np.random.Generator) -> np.ndarray:
    """The lengths of `parts` consecutive, non-empty parts of `count` tokens."""
    cuts = 1 + np.sort(random.choice(count - 1, parts - 1, replace=False))
    return np.diff(cuts, prepend=0, append=count)


def corrupt_spans(
    ids: np.ndarray, mask: np.ndarray, sentinels: Sequence[int] | np.ndarray, end: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the source and the target of a text with missing spans.

    >>> ids, mask = np.array([5, 6, 7, 8, 9]), np.array([False, True, True, False, True])
    >>> corrupt_spans(ids, mask, sentinels=[30, 29], end=1)
    (array([ 5, 30,  8, 29,  1]), array([30,  6,  7, 29,  9,  1]))

    Args:
        ids: (tokens,).
        mask: (tokens,), true at the tokens of missing spans.
        sentinels: the ids of the sentinels, in the order of the spans.
        end: the id of the end token.
    """
    starts = mask & ~np.concatenate([[False], mask[:-1]])
    marks = np.asarray(sentinels, "int64")[: np.count_nonzero(starts)]
    source = ids.copy()
    source[starts] = marks
    source = source[starts | ~mask]
    target = np.insert(ids[mask], np.flatnonzero(starts[mask]), marks)
    return np.append(source, end), np.append(target, end)
