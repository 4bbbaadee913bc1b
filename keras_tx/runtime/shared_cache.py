"""A graph that writes keys and values into the buffers from which it reads them: no step copies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import FolderError
from keras_tx.generation.decoding_loop import Decoder, read, step
from keras_tx.runtime.decoder_signature import Ports
from keras_tx.runtime.session import Binding, Session

# Of prompts that are read in one run: how many tokens, how many with padding for each real one, and logits.
MOST_TOKENS, PADDED, MOST_LOGITS = 2048, 1.25, 2**23


class SharedPast:
    """The keys and values of some texts, a row each, in buffers with room for more tokens.

    A row holds its text from the first place on: there is no padding, and texts may differ in length.
    """

    def __init__(self, ports: Ports, session: Session, arrays: list[np.ndarray], used: int = 0) -> None:
        self._ports = ports
        self._session = session
        self.arrays = arrays  # each (rows, heads, room, size)
        self.used = used  # places that are filled in the longest row
        self._binding: Binding | None = None
        self._fixed: tuple[np.ndarray, ...] = ()  # ids, positions, kept and logits of a run, bound once

    @classmethod
    def empty(cls, ports: Ports, session: Session, rows: int, room: int) -> SharedPast:
        # Zeros that nobody has written to take no memory yet.
        arrays = [np.zeros((rows, int(p.shape[1]), room, int(p.shape[3])), p.dtype) for p in ports.pasts]
        return cls(ports, session, arrays)

    @property
    def rows(self) -> int:
        return self.arrays[0].shape[0]

    @property
    def room(self) -> int:
        return self.arrays[0].shape[2]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def part(self, rows: slice) -> SharedPast:
        """Some rows, in the same memory."""
        if rows == slice(0, self.rows):
            return self
        return SharedPast(self._ports, self._session, [x[rows] for x in self.arrays], self.used)

    def copied(self, rows: Sequence[int], room: int) -> SharedPast:
        """These rows in new buffers."""
        found = SharedPast.empty(self._ports, self._session, len(rows), room)
        for old, new in zip(self.arrays, found.arrays, strict=True):
            for index, row in enumerate(rows):
                new[index, :, : self.used] = old[row, :, : self.used]
        found.used = self.used
        return found

    def keep(self, rows: Sequence[int], first: int) -> SharedPast:
        """These rows, in the buffers that there are; up to the token `first` they are equal anyway."""
        moved = [index for index, row in enumerate(rows) if index != row]
        if moved:
            sources = [rows[index] for index in moved]
            for array in self.arrays:
                array[moved, :, first : self.used] = array[sources, :, first : self.used]
        if len(rows) == self.rows:
            return self
        arrays = [array[: len(rows)] for array in self.arrays]
        return SharedPast(self._ports, self._session, arrays, self.used)

    def run(self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray, kept: int) -> np.ndarray:
        """Logits of so many of the last tokens; those of a step are valid until the next."""
        if self._binding is None:
            names = zip(self._ports.pasts, self._ports.presents, self.arrays, strict=True)
            self._binding = self._session.binding([(p.name, present, array) for p, present, array in names])
        shape = (len(ids), kept, self._ports.vocabulary_size)
        if not self._fixed or self._fixed[0].shape != ids.shape or self._fixed[3].shape != shape:
            logits = np.empty(shape, self._ports.logits.dtype)
            tokens = np.empty((2, *ids.shape), "int64")
            self._fixed = (tokens[0], tokens[1], np.array(kept), logits)
        own_ids, own_positions, own_kept, logits = self._fixed
        own_ids[:], own_positions[:] = ids, positions
        feed = {
            contract.INPUT_IDS: own_ids,
            contract.ATTENTION_MASK: mask,
            contract.POSITION_IDS: own_positions,
            contract.NUM_LOGITS_TO_KEEP: own_kept,
        }
        self._binding.run(feed, contract.LOGITS, logits)
        return logits


class SharedGraph:
    """The graph as keras_tx.generation's Decoder, on the CPU.

    Prompts are read into the beginning of their rows, those of like length in one run; then a step is one
    run for all.
    """

    def __init__(self, session: Session, context: int) -> None:
        self._ports = Ports.of(session)
        self._session = session
        if not self._ports.short:
            raise FolderError(
                f"{session.graph} gives the logits of all tokens, expected an input "
                f"{contract.NUM_LOGITS_TO_KEEP}. Export again."
            )
        self.vocabulary_size = self._ports.vocabulary_size
        self.context = context

    def run(
        self,
        ids: np.ndarray,
        mask: np.ndarray,
        positions: np.ndarray,
        past: Any,
        every: bool,
        room: int = 0,
    ) -> tuple[np.ndarray, Any]:
        lengths = mask.sum(axis=1)
        total = int(lengths.max())
        fresh = past is None
        if fresh:
            past = SharedPast.empty(self._ports, self._session, len(ids), self._room(total, room))
        elif past.room < total:
            past = past.copied(range(past.rows), self._room(total, max(room, total)))
        if ids.shape[1] == 1:
            real = (np.arange(total) < lengths[:, None]).astype("int64")
            logits = past.run(ids, real, positions, 1)
        else:
            logits = self._read(ids, lengths, positions, past, every, fresh)
        past.used = total
        return logits, past

    def select(self, past: Any, rows: Sequence[int], first: int = 0) -> Any:
        if len(rows) > past.rows:
            return past.copied(rows, past.room)
        return past.keep(rows, first)

    def _read(
        self,
        ids: np.ndarray,
        lengths: np.ndarray,
        positions: np.ndarray,
        past: SharedPast,
        every: bool,
        fresh: bool,
    ) -> np.ndarray:
        """Several tokens of each text, which are padded on the left."""
        found = []
        count = ids.shape[1]
        together = fresh and not every
        for rows in self._groups(lengths) if together else [slice(i, i + 1) for i in range(len(ids))]:
            own = lengths[rows]
            longest, shortest = int(own.max()), int(own.min())
            size = min(count, longest)  # of what is read now; where there is a past, texts are longer
            given, places = np.zeros((len(own), size), "int64"), np.zeros((len(own), size), "int64")
            for row, length in enumerate(own.tolist()):
                width = min(count, length)  # the graph wants padding on the right
                given[row, :width] = ids[rows][row, count - width :]
                places[row, :width] = positions[rows][row, count - width :]
            real = (np.arange(longest) < own[:, None]).astype("int64")
            kept = size if every else longest - shortest + 1
            logits = past.part(rows).run(given, real, places, kept)
            if not every:
                logits = logits[np.arange(len(own)), own - shortest][:, None]
            elif size < count:
                logits = np.pad(logits, ((0, 0), (count - size, 0), (0, 0)))
            found.append(logits)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _groups(self, lengths: np.ndarray) -> list[slice]:
        """Neighbours of like length: little padding is computed with them, and few logits of other tokens."""
        found = []
        start = 0
        for end in range(1, len(lengths) + 1):
            if end < len(lengths):
                own = lengths[start : end + 1]
                padded = len(own) * int(own.max())
                logits = len(own) * int(own.max() - own.min() + 1) * self.vocabulary_size
                if padded <= min(MOST_TOKENS, PADDED * int(own.sum())) and logits <= MOST_LOGITS:
                    continue
            found.append(slice(start, end))
            start = end
        return found

    def _room(self, total: int, further: int) -> int:
        return max(total, min(self.context, total + further))


def difference(plain: Decoder, shared: Decoder, *, batched: bool = True, steps: int = 4) -> float:
    """How far the logits of two decoders of one model lie apart, in units of their scale.

    Texts of different lengths are read and then continued token by token; where `batched`, all at once: a
    graph that rounds to int8 by the range of a whole batch gives a text other logits among others.
    """
    random = np.random.default_rng(0)
    longest = max(1, min(32, plain.context - steps))
    lengths = sorted({longest, (longest + 1) // 2, 1}, reverse=True)
    texts = [random.integers(0, plain.vocabulary_size, length).tolist() for length in lengths]
    further = random.integers(0, plain.vocabulary_size, (steps, len(texts))).tolist()
    worst = 0.0
    every = list(range(len(texts)))
    groups = [every[:1], every] if batched else [[row] for row in every]
    for rows in groups:
        results = []
        for decoder in (plain, shared):
            logits, mask, past = read(decoder, [texts[row] for row in rows], steps)
            found = [logits.copy()]
            for made, tokens in enumerate(further):
                own = [tokens[row] for row in rows]
                sizes = [lengths[row] + made + 1 for row in rows]
                logits, mask, past = step(decoder, own, sizes, mask, past, 0)
                found.append(logits.copy())
            results.append(np.stack(found).astype("float64"))
        expected, got = results
        if not np.isfinite(got).all():
            return float("inf")
        worst = max(worst, float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-6)))
    return worst
