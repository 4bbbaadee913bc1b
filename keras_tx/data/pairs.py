"""Batches of source and target texts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.data.batches import Batches
from keras_tx.errors import ConfigError, TextError
from keras_tx.processing import Row, TextTransform

PadPairs = Callable[[Sequence[Row], Sequence[Row]], tuple[Any, Any]]


def sequence_to_sequence_batches(
    sources: Any,
    targets: Any,
    transform: TextTransform,
    *,
    start_id: int | None = None,
    batch_size: int = 32,
    shuffle: bool = True,
    seed: int = 0,
    **options: Any,
) -> Batches:
    """Returns batches for a Seq2SeqLMHead, from pairs of texts.

    The decoder's input is the target shifted by one, after the start token. Labels are the tokens of the
    target and its end token, -100 at padding.

    A source longer than the transform's `max_length` is truncated with a warning, as `too_long` defines. A
    longer target raises an error, because a truncated one has no end.

    >>> from keras_tx.processing import train_wordpiece
    >>> transform = train_wordpiece(["uno due tre", "one two three"], 60)
    >>> batches = sequence_to_sequence_batches(["uno", "due tre"], ["one", "two three"], transform)
    >>> inputs, labels = batches[0]
    >>> sorted(inputs), labels.shape == inputs["decoder_input_ids"].shape
    (['attention_mask', 'decoder_input_ids', 'input_ids'], True)

    Args:
        sources: one text per sample.
        targets: one text per sample.
        transform: the tokenizer. Its `target_tokenizer`, if it has one, splits the targets.
        start_id: the first input of the decoder, `model.start_id`; by default the padding token.
        batch_size, shuffle, seed, options: as for `Batches`. Batches have samples of similar length, source
            and target together.

    Returns:
        `Batches` of the model's inputs and of labels (batch, target).

    Raises:
        ConfigError: the tokenizer has no end token, or `start_id` is out of range.
        TextError: a text is invalid, a source is empty, or a target is too long; the message contains its
            index.
    """
    rows = _encoded("sources", sources, transform)
    for row in rows:
        if row.parts.max(initial=-1) < 0:
            raise TextError(f"sources[{row.text}] has no tokens. Remove the pair.")
    answers = _target_rows(targets, transform.target)
    if len(rows) != len(answers):
        raise TextError(f"There are {len(rows)} sources but {len(answers)} targets.")
    start_id = checked_start_id(start_id, transform)
    pad = pair_padding(transform, start_id)

    def pack(chosen: np.ndarray, random: np.random.Generator) -> tuple[Any, Any]:
        return pad([rows[number] for number in chosen], [answers[number] for number in chosen])

    def content() -> Iterator[np.ndarray]:
        yield from (row.ids for row in (*rows, *answers))

    lengths = [len(row) + len(answer) for row, answer in zip(rows, answers, strict=True)]
    batches = Batches(pack, lengths, batch_size, shuffle=shuffle, seed=seed, content=content, **options)
    batches.start_id, batches.longest = start_id, max(map(len, [*rows, *answers]))
    return batches


def checked_start_id(start_id: int | None, transform: TextTransform) -> int:
    """Returns the first input of the decoder, by default the padding token."""
    if start_id is None:
        if transform.pad_token is None:
            raise ConfigError("The transform has no pad_token. Pass start_id=model.start_id.")
        return transform.pad_id
    if type(start_id) is not int or start_id < 0:
        raise ConfigError(f"start_id={start_id!r} is out of range. Pass model.start_id.")
    return start_id


def pair_padding(transform: TextTransform, start_id: int) -> PadPairs:
    """Returns a function of the rows of sources and of targets that returns inputs and labels."""
    transform = dataclasses.replace(transform, segments=False)
    # Padding on the left would separate the start token from the target.
    padded_right = dataclasses.replace(transform, padding_side="right")

    def pad(sources: Sequence[Row], targets: Sequence[Row]) -> tuple[Any, Any]:
        answers = padded_right.pad(targets)
        ids = answers[contract.INPUT_IDS]
        shifted = np.insert(ids[:, :-1], 0, start_id, axis=1)
        labels = np.where(answers[contract.ATTENTION_MASK] == 1, ids, contract.NO_LABEL)
        return {**transform.pad(sources), contract.DECODER_INPUT_IDS: shifted}, labels

    return pad


def end_id(transform: TextTransform) -> int:
    """Returns the id of the token that ends a text."""
    token = transform.eos_token or transform.sep_token
    if token is None:
        raise ConfigError(
            "The transform has no eos_token, so a target has no end. Set it: "
            "dataclasses.replace(transform, eos_token='</s>')."
        )
    return transform.id_of(token)


def plain_row(ids: np.ndarray) -> Row:
    """Returns a row of these ids."""
    zeros = np.zeros(len(ids), "int64")
    return Row(0, ids, zeros, zeros, zeros, np.zeros((len(ids), 2), "int64"))


def _target_rows(targets: Any, transform: TextTransform) -> list[Row]:
    """The targets with their end token."""
    rows = _encoded("targets", targets, dataclasses.replace(transform, max_length=None))
    if any(row.parts[-1] >= 0 for row in rows):  # the tokenizer adds no end token
        end = end_id(transform)
        rows = [plain_row(np.append(row.ids, end)) for row in rows]
    longest = transform.max_length
    for index, row in enumerate(rows):
        if longest is not None and len(row) > longest:
            raise TextError(
                f"targets[{index}] has {len(row)} tokens, but max_length={longest}. Shorten or remove it, or "
                "create the model with a larger max_length."
            )
    return rows


def _encoded(name: str, texts: Any, transform: TextTransform) -> list[Row]:
    try:
        return transform.encode(texts)
    except TextError as error:
        raise TextError(f"{name}: {error}") from error
