"""Lane: the sequences of the model with one adapter, each in a row of the cache."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from keras_tx.runtime.cached_decoder import CachedDecoder
from keras_tx.runtime.shared_cache import PADDED, SharedCacheDecoder
from keras_tx.serving.engine.cache_rows import PlainRows, SharedRows, bytes_per_token
from keras_tx.serving.engine.prefix_cache import PrefixCache
from keras_tx.serving.engine.sequence import Sequence

if TYPE_CHECKING:
    from keras_tx.runtime.tasks.text_generation import TextGenerator


class Lane:
    """Admits, prefills and decodes sequences.

    Args:
        generator: the model, with its adapter.
        max_streams: number of rows.
        batched: whether all rows decode in one run, and prompts are prefilled in chunks.
        prefixes: keys and values of the beginnings of texts; None for none.
        lookup: whether a sequence that runs alone guesses its next tokens.

    Attributes:
        tokens: number of generated tokens.
        guessed, accepted: number of guessed tokens, and of those that were right.
    """

    def __init__(
        self,
        generator: TextGenerator,
        max_streams: int,
        batched: bool,
        prefixes: PrefixCache | None,
        lookup: bool,
    ) -> None:
        decoder = generator.decoder
        assert isinstance(decoder, SharedCacheDecoder | CachedDecoder)
        self.bytes_per_token = bytes_per_token(decoder)
        self.tokens = self.guessed = self.accepted = 0
        self._lookup = lookup
        self._step_seconds = 0.0  # of a decode step of one sequence
        shared = isinstance(decoder, SharedCacheDecoder)
        self.rows = SharedRows(decoder, max_streams) if shared else PlainRows(decoder)
        self._batched = batched
        self._prefixes = prefixes if shared else None
        self._places: list[Sequence | None] = []  # by row

    @property
    def sequences(self) -> list[Sequence]:
        return [sequence for sequence in self._places if sequence is not None]

    def add(self, sequence: Sequence) -> None:
        """Gives a sequence a free row."""
        row = self._places.index(None) if None in self._places else len(self._places)
        self.rows.open(row, sequence.reserved, self._lengths())
        self._places[row : row + 1] = [sequence]
        sequence.row = row
        if self._prefixes is not None and isinstance(self.rows, SharedRows):
            for values in self._prefixes.find(sequence.adapter, sequence.ids[:-1]):  # the last one has logits
                self.rows.write(row, sequence.cached, values)
                sequence.cached += values[0].shape[1]
            sequence.restored = sequence.cached

    def _store_prefix(self, sequence: Sequence) -> None:
        if self._prefixes is not None and isinstance(self.rows, SharedRows):
            ids = sequence.ids[: sequence.cached]
            read = partial(self.rows.read, sequence.row)
            self._prefixes.store(sequence.adapter, ids, self.bytes_per_token, read)

    def remove_ended(self) -> None:
        for row, sequence in enumerate(self._places):
            if sequence is not None and sequence.ended:
                self._store_prefix(sequence)
                self.rows.close(row)
                self._places[row] = None

    def compact(self) -> None:
        """Moves the last rows to free ones, so that a decode step has no free rows between others."""
        while None in self._places:
            last = self._places.pop()
            if last is not None:
                row = self._places.index(None)
                self.rows.move(last.row, row, last.cached)
                self._places[row] = last
                last.row = row

    def trim(self) -> None:
        """Returns memory that removed sequences used."""
        reserved = [0 if sequence is None else sequence.reserved for sequence in self._places]
        self.rows.trim(reserved, self._lengths())

    def _lengths(self) -> list[int]:
        return [0 if sequence is None else sequence.cached for sequence in self._places]

    def group(self, sequences: list[Sequence], most: int) -> list[Sequence]:
        """The first sequence, and those behind it whose whole prompts can run with its prompt.

        Args:
            sequences: in the order of their arrival.
            most: number of tokens with padding.
        """
        group = sequences[:1]
        for sequence in sequences[1:] if self._batched else ():
            longer = [*group, sequence]
            lengths = [len(x.ids) for x in longer]
            padded = len(longer) * max(lengths)
            neighbors = sequence.adapter == group[-1].adapter and sequence.row == group[-1].row + 1
            if not neighbors or any(x.cached for x in longer) or padded > min(most, PADDED * sum(lengths)):
                break
            group = longer
        return group

    def prefill(self, group: list[Sequence], most: int) -> int:
        """Runs the prompts of a group, or at most so many tokens of one prompt; returns how many."""
        if len(group) > 1 and isinstance(self.rows, SharedRows):
            try:
                logits = self.rows.prefill(group[0].row, [sequence.ids for sequence in group])
            except Exception:  # one by one, to find the sequence that fails
                return sum(self.prefill([sequence], most) for sequence in group)
            for sequence, row in zip(group, logits, strict=True):
                self._advance(sequence, sequence.prompt_length, row)
            return sum(sequence.prompt_length for sequence in group)
        (sequence,) = group
        start = sequence.cached
        end = min(len(sequence.ids), start + most) if self._batched else len(sequence.ids)
        self._run(sequence, end)
        return end - start

    def decode(self, alone: bool) -> None:
        """Runs a token of each sequence; sequences whose prompt is not in the cache run its next token.

        Args:
            alone: whether no other sequence runs in the engine.
        """
        sequences = self.sequences
        decoding = [sequence for sequence in sequences if sequence.decodes and not sequence.ended]
        if isinstance(self.rows, SharedRows) and self._batched and decoding:
            if alone and self._lookup:
                return self._decode_with_guess(self.rows, decoding[0])
            try:
                tokens = [sequence.ids[sequence.cached] for sequence in sequences]
                logits = self.rows.decode(tokens, [sequence.cached for sequence in sequences])
            except Exception:  # one by one, to find the sequence that fails
                pass
            else:
                for sequence, row in zip(sequences, logits, strict=True):
                    if not sequence.ended:
                        self._advance(sequence, sequence.cached + 1, row)
                return
        for sequence in decoding:
            self._run(sequence, len(sequence.ids))

    def _decode_with_guess(self, rows: SharedRows, sequence: Sequence) -> None:
        """Runs a token and a guess of the tokens after it; adds those that were right, and one more."""
        ids = sequence.ids
        guess = sequence.lookup.guess(sequence.reserved - len(ids)) if self._step_seconds else []
        start = time.perf_counter()
        try:
            if guess:
                logits = rows.run(sequence.row, [ids[-1], *guess], sequence.cached, all_logits=True)
            else:
                logits = rows.decode([ids[-1]], [sequence.cached])
        except Exception as error:
            return sequence.fail(error)
        seconds = time.perf_counter() - start
        accepted = 0
        self._advance(sequence, sequence.cached + 1, logits[0])
        while accepted < len(guess) and not sequence.ended and ids[-1] == guess[accepted]:
            accepted += 1
            self._advance(sequence, sequence.cached + 1, logits[accepted])
        if guess:
            sequence.lookup.record(len(guess), accepted, seconds / self._step_seconds)
            self.guessed += len(guess)
            self.accepted += accepted
        else:
            self._step_seconds += (seconds - self._step_seconds) * (0.1 if self._step_seconds else 1.0)
        return None

    def _run(self, sequence: Sequence, end: int) -> None:
        """Runs the tokens of a sequence before `end`; an error ends the sequence."""
        try:
            logits = self.rows.run(sequence.row, sequence.ids[sequence.cached : end], sequence.cached)
        except Exception as error:
            sequence.fail(error)
        else:
            self._advance(sequence, end, logits[-1])

    def _advance(self, sequence: Sequence, cached: int, logits: np.ndarray) -> None:
        """Chooses the next token if the whole text is in the cache."""
        sequence.cached = cached
        if cached == len(sequence.ids):
            try:
                sequence.add_next(logits)
            except Exception as error:  # of its constraints, or NaN
                sequence.fail(error)
            else:
                self.tokens += 1
            if cached == sequence.prompt_length:
                self._store_prefix(sequence)
