"""Batches for pre-training encoders: masked tokens and next sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.data.batches import Batches
from keras_tx.data.masking import mask_tokens
from keras_tx.errors import ConfigError, TextError
from keras_tx.processing import Row, TextTransform
from keras_tx.processing.special_tokens import Piece, joined

Mask = Callable[[Sequence[Row], dict[str, np.ndarray], np.random.Generator], np.ndarray]


def masked_lm_batches(
    texts: Sequence[str],
    transform: TextTransform,
    *,
    rate: float = 0.15,
    whole_words: bool = False,
    batch_size: int = 32,
    shuffle: bool = True,
    seed: int = 0,
    **options: Any,
) -> Batches:
    """Returns batches for a MaskedLMHead; each epoch masks different tokens.

    Args:
        texts: long texts become several rows.
        transform: a tokenizer with a mask_token.
        rate: the share of tokens that are predicted.
        whole_words: whether all tokens of a word are masked together.
        batch_size, shuffle, seed, options: as for `Batches`.

    Raises:
        ConfigError: the transform has no mask_token.
        TextError: a text is invalid or has no token to mask; the message contains its index.
    """
    rows = transform.encode(texts) if transform.max_length is None else transform.windows(texts, overlap=0)
    for row in rows:
        if row.parts.max() < 0:
            raise TextError(f"texts[{row.text}] has no token to mask. Remove it.")
    mask = _masking(transform, rate, whole_words)

    def pack(numbers: np.ndarray, random: np.random.Generator) -> tuple[Any, Any]:
        chosen = [rows[number] for number in numbers]
        batch = transform.pad(chosen)
        labels = mask(chosen, batch, random)
        return batch, labels

    def content() -> Iterator[np.ndarray]:
        yield from (array for row in rows for array in (row.ids, row.words))

    lengths = [len(row) for row in rows]
    return Batches(pack, lengths, batch_size, shuffle=shuffle, seed=seed, content=content, **options)


def sentence_pair_batches(
    documents: Sequence[Sequence[str]],
    transform: TextTransform,
    *,
    rate: float | None = 0.15,
    whole_words: bool = False,
    batch_size: int = 32,
    shuffle: bool = True,
    seed: int = 0,
    **options: Any,
) -> Batches:
    """Returns batches for a PretrainingHead, or with `rate=None` for a NextSentenceHead.

    Sentences are joined into halves of `max_length`. In each epoch, the second half of a row is either the
    one after the first (label 0) or a random one of another document (label 1).

    Args:
        documents: a list of sentences per document.
        transform: a tokenizer with a mask_token, unless `rate` is None.
        rate, whole_words: as for `masked_lm_batches`; with `rate=None` no token is masked.
        batch_size, shuffle, seed, options: as for `Batches`.

    Raises:
        TextError: there are not several documents of several sentences, or a sentence is invalid.
    """
    halves = [_halves(index, document, transform) for index, document in enumerate(documents)]
    followed = [(i, j) for i, document in enumerate(halves) for j in range(len(document) - 1)]
    if len(halves) < 2 or not followed:
        raise TextError(
            f"There are {len(halves)} documents with {len(followed)} pairs of sentences, expected at least "
            "two documents and one pair."
        )
    mask = None if rate is None else _masking(transform, rate, whole_words)

    def pack(numbers: np.ndarray, random: np.random.Generator) -> tuple[Any, Any]:
        rows, labels = [], random.integers(0, 2, len(numbers))
        for number, label in zip(numbers, labels, strict=True):
            i, j = followed[number]
            second = _elsewhere(halves, i, random) if label else halves[i][j + 1]
            rows.append(transform.join(halves[i][j], second))
        batch = transform.pad(rows)
        if mask is None:
            return batch, labels
        hidden = mask(rows, batch, random)
        return batch, {contract.PREDICTION_LOGITS: hidden, contract.SEQ_RELATIONSHIP_LOGITS: labels}

    def content() -> Iterator[np.ndarray]:
        yield from (array for document in halves for half in document for array in (half.ids, half.words))

    lengths = [len(halves[i][j]) + len(halves[i][j + 1]) for i, j in followed]
    return Batches(pack, lengths, batch_size, shuffle=shuffle, seed=seed, content=content, **options)


def _halves(index: int, document: Sequence[str], transform: TextTransform) -> list[Piece]:
    """The sentences of a document, joined while they fit into half of a row."""
    if isinstance(document, str):
        raise TextError(f"documents[{index}] is a text, expected a list of its sentences.")
    try:
        sentences = transform.pieces(document)
    except TextError as error:
        raise TextError(f"documents[{index}]: {error}") from error
    if not sentences:
        raise TextError(f"documents[{index}] has no sentence.")
    total = sum(map(len, sentences))
    longest = total // 2 if transform.max_length is None else min(total, transform.max_length) // 2
    groups: list[list[Piece]] = []
    for sentence in sentences:
        if groups and sum(map(len, groups[-1])) + len(sentence) <= longest:
            groups[-1].append(sentence)
        else:
            groups.append([sentence])
    return [joined(group) for group in groups]


def _elsewhere(halves: list[list[Piece]], document: int, random: np.random.Generator) -> Piece:
    other = int(random.integers(0, len(halves) - 1))
    there = halves[other + (other >= document)]
    return there[int(random.integers(0, len(there)))]


def _masking(transform: TextTransform, rate: float, whole_words: bool) -> Mask:
    if transform.mask_token is None:
        raise ConfigError(
            "The transform has no mask_token. Set it: dataclasses.replace(transform, mask_token='[MASK]')."
        )
    mask_id = transform.id_of(transform.mask_token)
    special = np.array(sorted(transform.special_ids()), "int64")
    replacements = np.setdiff1d(np.array(list(transform.vocabulary.values()), "int64"), special)

    def mask(rows: Sequence[Row], batch: dict[str, np.ndarray], random: np.random.Generator) -> np.ndarray:
        ids = batch[contract.INPUT_IDS]
        allowed, words = np.zeros(ids.shape, bool), np.zeros(ids.shape, "int64")
        for index, row in enumerate(rows):
            place = transform.place(row, ids.shape[1])
            allowed[index, place] = row.parts >= 0
            words[index, place] = 2 * row.words + row.parts  # a pair has a first word twice
        allowed &= ~np.isin(ids, special)
        hidden, labels = mask_tokens(
            ids,
            allowed,
            random,
            mask_id=mask_id,
            replacements=replacements,
            rate=rate,
            words=words if whole_words else None,
        )
        batch[contract.INPUT_IDS] = hidden
        return labels

    return mask
