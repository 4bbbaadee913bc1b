"""Blocks of a token file, with the next tokens as labels."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.data.batches import Batches
from keras_tx.errors import ConfigError, whole_number
from keras_tx.processing import TokenFile

PackBlocks = Callable[[np.ndarray, np.ndarray, np.random.Generator], tuple[Any, Any]]


def causal_lm_batches(
    tokens: TokenFile | str | os.PathLike[str],
    length: int,
    batch_size: int = 32,
    *,
    steps: int | None = None,
    separate_documents: bool = False,
    shuffle: bool = True,
    seed: int = 0,
    **options: Any,
) -> Batches:
    """Returns batches for a CausalLMHead: ids (batch, length), and the next ids as labels.

    Only the blocks of a batch are read, so the file may be larger than memory. Each token is a label once
    per pass. Blocks start at different places in each pass, and a few tokens that do not fill a batch are
    left out, different ones each time. With `shuffle=False`, all blocks are in order, and the last one is
    padded with labels of -100.

    By default documents are concatenated, as for GPT-2: a block may contain several documents with
    end-of-text tokens between them, and all tokens have labels. With `separate_documents=True`, a block
    contains one document and is padded with labels of -100, so that attention does not cross documents.
    For documents much shorter than `length`, most tokens are then padding.

    Args:
        tokens: a TokenFile, or the path of one.
        length: tokens per block, at most the model's `max_length`.
        steps: batches per epoch; by default an epoch is one pass over the file. The sequence of batches does
            not depend on it.
        separate_documents: whether each block contains one document only.
        shuffle: whether blocks are shuffled; pass False for validation.
        batch_size, seed, options: as for `Batches`.

    Raises:
        ConfigError: the file is not a token file, or has too few tokens.
    """
    return token_blocks(
        tokens,
        length,
        batch_size,
        _next_tokens,
        ahead=1,
        separate_documents=separate_documents,
        steps=steps,
        shuffle=shuffle,
        seed=seed,
        **options,
    )


def _next_tokens(
    rows: np.ndarray, sizes: np.ndarray, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    real = np.arange(rows.shape[1] - 1) < sizes[:, None]
    ids, labels = np.where(real, rows[:, :-1], 0), np.where(real, rows[:, 1:], contract.NO_LABEL)
    return ids.astype("int32"), labels.astype("int32")


def token_blocks(
    tokens: TokenFile | str | os.PathLike[str],
    length: int,
    batch_size: int,
    pack_blocks: PackBlocks,
    *,
    separate_documents: bool,
    steps: int | None,
    shuffle: bool,
    **options: Any,
) -> Batches:
    """Returns batches of blocks of a token file.

    Args:
        tokens: a TokenFile, or the path of one.
        length: tokens per block.
        pack_blocks: a function of the rows of tokens (batch, length + ahead), the number of real ones in each
            without those ahead, and a random generator. It returns inputs and labels.
        separate_documents, steps, shuffle: as for `causal_lm_batches`.
        options: `ahead`, the number of tokens after a block that are read with it; `settings`, a dict of
            other values that determine the batches; `seed` and options of `Batches`.
    """
    if steps is not None and not shuffle:
        raise ConfigError(f"steps={steps} requires shuffle=True, but shuffle=False. Remove one of them.")
    tokens = tokens if isinstance(tokens, TokenFile) else TokenFile(tokens)
    kind = _SeparateDocuments if separate_documents else _Packed
    return kind(tokens, length, batch_size, pack_blocks, steps=steps, shuffle=shuffle, **options)


class _Blocks(Batches):
    """Base of the blocks; if shuffled, all batches have one shape."""

    def __init__(
        self,
        tokens: TokenFile,
        length: int,
        batch_size: int,
        pack_blocks: PackBlocks,
        *,
        ahead: int,
        settings: dict[str, Any] | None = None,
        steps: int | None,
        shuffle: bool,
        seed: int,
        **options: Any,
    ) -> None:
        self.tokens = tokens
        self.pack_blocks, self.ahead, self.settings = pack_blocks, ahead, settings or {}
        self.length = whole_number("length", length)
        self.steps = None if steps is None else whole_number("steps", steps)
        self.vocabulary_size = tokens.vocabulary_size  # TextModel.check compares it with the model's
        size = whole_number("batch_size", batch_size)
        count = self.count(size, shuffle)
        if count < (size if shuffle else 1):
            raise ConfigError(
                f"{tokens.path} has {len(tokens)} tokens, too few for a batch of {size} blocks of "
                f"{length}{' + 1' * ahead} tokens. Decrease batch_size or length."
            )
        same = np.broadcast_to(np.int32(self.length), (count,))
        options["content"] = lambda: [tokens.stored]
        super().__init__(self.packed, same, size, shuffle=shuffle, seed=seed, **options)

    def count(self, batch_size: int, shuffle: bool) -> int:
        """The number of blocks per pass."""
        raise NotImplementedError

    def places(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first token of each of these blocks, and its number of tokens."""
        raise NotImplementedError

    def packed(self, numbers: np.ndarray, random: np.random.Generator) -> tuple[Any, Any]:
        """Inputs and labels of these blocks."""
        starts, sizes = self.places(numbers)
        places = starts[:, None] + np.arange(self.length + self.ahead)
        return self.pack_blocks(self.tokens.at(np.minimum(places, len(self.tokens) - 1)), sizes, random)

    def passed(self, number: int) -> list[np.ndarray]:
        """The batches of a pass."""
        order = super()._ordered(number)
        # Tokens that do not fill a batch are in another pass.
        return [batch for batch in order if batch.size == self.batch_size] if self.shuffle else order

    def fingerprint(self) -> dict[str, Any]:
        return {
            **super().fingerprint(),
            "length": self.length,
            "steps": self.steps,
            "separate_documents": isinstance(self, _SeparateDocuments),
            "vocabulary_size": self.vocabulary_size,
            **self.settings,
        }

    def _ordered(self, epoch: int) -> list[np.ndarray]:
        if self.steps is None:
            return self.passed(epoch)
        batches: list[np.ndarray] = []
        while len(batches) < self.steps:
            number, first = divmod(epoch * self.steps + len(batches), self.lengths.size // self.batch_size)
            batches += self.passed(number)[first : first + self.steps - len(batches)]
        return batches


class _Packed(_Blocks):
    """Consecutive blocks across documents; the index of a block is its first token."""

    def count(self, batch_size: int, shuffle: bool) -> int:
        tokens = len(self.tokens) - self.ahead
        if not shuffle:
            return -(-tokens // self.length)
        batch = batch_size * self.length
        # The start varies by up to one block, if there is more than one batch.
        return batch_size * min(tokens // batch, max(1, (tokens - self.length + 1) // batch))

    def places(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return numbers, np.minimum(self.length, len(self.tokens) - self.ahead - numbers)

    def passed(self, number: int) -> list[np.ndarray]:
        first, order = 0, super().passed(number)
        if self.shuffle:
            left = len(self.tokens) - self.ahead - self.lengths.size * self.length
            first = int(np.random.default_rng([self.seed, number, 0]).integers(left + 1))
        return [first + batch * self.length for batch in order]


class _SeparateDocuments(_Blocks):
    """Each block of one document."""

    def count(self, batch_size: int, shuffle: bool) -> int:
        first, end = self.tokens.documents()
        # Without a token ahead, the end-of-text token is not a part of the text.
        tokens = end - first - (self.ahead or self.tokens.at(end - 1) == self.tokens.end_of_text)
        blocks = -(-tokens // self.length)  # of each document
        within = np.arange(blocks.sum()) - np.repeat(np.cumsum(blocks) - blocks, blocks)
        self.starts = np.repeat(first, blocks) + within * self.length
        self.sizes = np.minimum(self.length, np.repeat(tokens, blocks) - within * self.length)
        return self.starts.size

    def places(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.starts[numbers], self.sizes[numbers]
