"""Blocks of one length from a token file, with the next tokens as labels."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, whole_number
from keras_tx.processing import TokenFile
from keras_tx.training.packing.batches import Batches


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
    """Batches for a CausalLMHead: ids (batch, length), and as labels the ids one further.

    The file may be larger than memory: of it only the blocks of a batch are read. A pass over it has each
    token as a label once. Blocks begin elsewhere in each pass, and the few tokens that do not fill a batch
    are others each time. With `shuffle=False` all of the file comes as it is, the last block filled with
    labels of -100.

    Documents stand one behind the other, as GPT-2 was trained: a block may begin in one, the end-of-text
    token tells the next from it, and the loss counts all tokens. `separate_documents=True` keeps them
    apart: a block is of one document and filled up with labels of -100, so that neither attention nor
    loss reaches from one into another. It costs the padding, which for documents much shorter than `length`
    is most of it.

    Args:
        tokens: a TokenFile, or the path of one.
        length: tokens in a block: at most the model's `max_length`.
        steps: batches in an epoch, which is then a part of a pass, or more than one; by default an epoch is
            a pass. The whole training is the same batches in any case.
        separate_documents: whether each block is of one document.
        shuffle: False gives the blocks in order, for validation.
        options: those of keras.utils.PyDataset: `workers`, `max_queue_size` ...
    """
    if not isinstance(tokens, TokenFile):
        tokens = TokenFile(tokens)
    if steps is not None and not shuffle:
        raise ConfigError("steps goes with shuffle=True: each epoch would be over another part of the file.")
    kind = _SeparateDocuments if separate_documents else _Packed
    return kind(tokens, length, batch_size, steps=steps, shuffle=shuffle, seed=seed, **options)


class _Blocks(Batches):
    """Shuffled, all batches have one shape. The numbers in the order are what `packed` takes."""

    def __init__(
        self,
        tokens: TokenFile,
        length: int,
        batch_size: int,
        *,
        steps: int | None,
        shuffle: bool,
        seed: int,
        **options: Any,
    ) -> None:
        self.tokens = tokens
        self.length = whole_number("length", length)
        self.steps = None if steps is None else whole_number("steps", steps)
        self.vocabulary_size = tokens.vocabulary_size  # TextModel.check compares it with the model's
        size = whole_number("batch_size", batch_size)
        count = self.count(size, shuffle)
        if count < (size if shuffle else 1):
            raise ConfigError(
                f"{tokens.path} has {len(tokens)} tokens, too few for a batch of {size} blocks of {length} "
                "and the token behind each. Lower batch_size or length, or take more text."
            )
        same = np.broadcast_to(np.int32(self.length), (count,))
        super().__init__(self.packed, same, size, shuffle=shuffle, seed=seed, **options)

    def count(self, batch_size: int, shuffle: bool) -> int:
        """How many blocks a pass has."""
        raise NotImplementedError

    def packed(self, numbers: np.ndarray, random: np.random.Generator) -> tuple[Any, Any]:
        """Ids and labels of the blocks with these numbers."""
        raise NotImplementedError

    def passed(self, number: int) -> list[np.ndarray]:
        """The batches of a pass."""
        order = super()._ordered(number)
        # What does not fill a batch is left out, and comes in another pass.
        return [batch for batch in order if batch.size == self.batch_size] if self.shuffle else order

    def fingerprint(self) -> dict[str, Any]:
        told = {
            "length": self.length,
            "steps": self.steps,
            "separate_documents": isinstance(self, _SeparateDocuments),
        }
        return {
            **super().fingerprint(),
            **told,
            "tokens": len(self.tokens),
            "vocabulary_size": self.vocabulary_size,
        }

    def filled(self, starts: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Blocks from these places on, with so many labels each."""
        real = np.arange(self.length) < sizes[:, None]
        places = starts[:, None] + np.arange(self.length + 1)
        rows = self.tokens.at(np.minimum(places, len(self.tokens) - 1))
        ids, labels = np.where(real, rows[:, :-1], 0), np.where(real, rows[:, 1:], contract.NO_LABEL)
        return ids.astype("int32"), labels.astype("int32")

    def _ordered(self, epoch: int) -> list[np.ndarray]:
        if self.steps is None:
            return self.passed(epoch)
        batches: list[np.ndarray] = []
        while len(batches) < self.steps:
            number, first = divmod(epoch * self.steps + len(batches), self.lengths.size // self.batch_size)
            batches += self.passed(number)[first : first + self.steps - len(batches)]
        return batches


class _Packed(_Blocks):
    """Block behind block, whatever documents are in it; a number is the place where a block begins."""

    def count(self, batch_size: int, shuffle: bool) -> int:
        labels = len(self.tokens) - 1
        if not shuffle:
            return -(-labels // self.length)
        batch = batch_size * self.length
        # Less by what the beginning moves, if there is more than one batch.
        return batch_size * min(labels // batch, max(1, (labels - self.length + 1) // batch))

    def packed(self, numbers: np.ndarray, random: np.random.Generator) -> tuple[Any, Any]:
        return self.filled(numbers, np.minimum(self.length, len(self.tokens) - 1 - numbers))

    def passed(self, number: int) -> list[np.ndarray]:
        first, order = 0, super().passed(number)
        if self.shuffle:
            left = len(self.tokens) - 1 - self.lengths.size * self.length
            first = int(np.random.default_rng([self.seed, number, 0]).integers(left + 1))
        return [first + batch * self.length for batch in order]


class _SeparateDocuments(_Blocks):
    """Each block of one document."""

    def count(self, batch_size: int, shuffle: bool) -> int:
        first, end = self.tokens.documents()
        labels = end - first - 1
        blocks = -(-labels // self.length)  # of each document
        within = np.arange(blocks.sum()) - np.repeat(np.cumsum(blocks) - blocks, blocks)
        self.starts = np.repeat(first, blocks) + within * self.length
        self.sizes = np.minimum(self.length, np.repeat(labels, blocks) - within * self.length)
        return self.starts.size

    def packed(self, numbers: np.ndarray, random: np.random.Generator) -> tuple[Any, Any]:
        return self.filled(self.starts[numbers], self.sizes[numbers])
