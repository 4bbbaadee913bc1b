"""Decoder graphs that write keys and values into the buffers they read from, without copies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_tx import contract
from keras_tx.errors import FolderError
from keras_tx.generation.decoding_loop import Decoder, decode_step, prefill
from keras_tx.runtime.cached_decoder import CachedDecoder, DecoderSignature
from keras_tx.runtime.node_placement import read_graph
from keras_tx.runtime.session import Binding, Session
from keras_tx.runtime.shared_weights import SharedWeights

# Limits of prompts in one run: tokens, tokens with padding for each real one, and logits.
MOST_TOKENS, PADDED, MOST_LOGITS = 2048, 1.25, 2**23
# Of texts that compare two graphs: tokens, and the largest distance that they exceed.
STEP, DISTANT = 32, 1024
OPERATOR = "com.microsoft.GroupQueryAttention"


class SharedCache:
    """Keys and values of several texts, a row each, in buffers with room for more tokens.

    Each row stores its text from position 0: rows have no padding, and texts may differ in length.
    """

    def __init__(
        self, signature: DecoderSignature, session: Session, arrays: list[np.ndarray], used: int = 0
    ) -> None:
        self._signature = signature
        self._session = session
        self.arrays = arrays  # each (rows, heads, room, size)
        self.used = used  # filled places of the longest row
        self._binding: Binding | None = None
        self._buffers: tuple[np.ndarray, ...] = ()  # ids, positions, kept and logits, bound once

    @classmethod
    def empty(cls, signature: DecoderSignature, session: Session, rows: int, room: int) -> SharedCache:
        # The operating system provides memory for zeros only when they are first written to.
        shapes = [(rows, int(p.shape[1]), room, int(p.shape[3])) for p in signature.pasts]
        arrays = [np.zeros(s, p.dtype) for s, p in zip(shapes, signature.pasts, strict=True)]
        return cls(signature, session, arrays)

    @property
    def rows(self) -> int:
        return self.arrays[0].shape[0]

    @property
    def room(self) -> int:
        return self.arrays[0].shape[2]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def view(self, rows: slice) -> SharedCache:
        """Some rows, in the same memory."""
        if rows == slice(0, self.rows):
            return self
        return SharedCache(self._signature, self._session, [x[rows] for x in self.arrays], self.used)

    def copy(self, rows: Sequence[int], room: int) -> SharedCache:
        """These rows in new buffers."""
        cache = SharedCache.empty(self._signature, self._session, len(rows), room)
        for old, new in zip(self.arrays, cache.arrays, strict=True):
            for index, row in enumerate(rows):
                new[index, :, : self.used] = old[row, :, : self.used]
        cache.used = self.used
        return cache

    def reorder(self, rows: Sequence[int], first: int) -> SharedCache:
        """These rows in the same buffers; rows are equal up to the token `first`, which is not copied."""
        moved = [index for index, row in enumerate(rows) if index != row]
        if moved:
            sources = [rows[index] for index in moved]
            for array in self.arrays:
                array[moved, :, first : self.used] = array[sources, :, first : self.used]
        if len(rows) == self.rows:
            return self
        arrays = [array[: len(rows)] for array in self.arrays]
        return SharedCache(self._signature, self._session, arrays, self.used)

    def run(self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray, num_logits: int) -> np.ndarray:
        """Logits of the last `num_logits` tokens; the next run overwrites those of a decode step."""
        if self._binding is None:
            names = zip(self._signature.pasts, self._signature.presents, self.arrays, strict=True)
            self._binding = self._session.binding([(p.name, present, array) for p, present, array in names])
        shape = (len(ids), num_logits, self._signature.vocabulary_size)
        if not self._buffers or self._buffers[0].shape != ids.shape or self._buffers[3].shape != shape:
            logits = np.empty(shape, self._signature.logits.dtype)
            tokens = np.empty((2, *ids.shape), "int64")
            self._buffers = (tokens[0], tokens[1], np.array(num_logits), logits)
        bound_ids, bound_positions, bound_num_logits, logits = self._buffers
        bound_ids[:], bound_positions[:] = ids, positions
        feed = {
            contract.INPUT_IDS: bound_ids,
            contract.ATTENTION_MASK: mask,
            contract.POSITION_IDS: bound_positions,
            contract.NUM_LOGITS_TO_KEEP: bound_num_logits,
        }
        self._binding.run(feed, contract.LOGITS, logits)
        return logits


class SharedCacheDecoder:
    """A graph with a shared cache as keras_tx.generation's Decoder, on the CPU.

    Prefill runs prompts of similar length together; a decode step is one run for all texts.
    """

    def __init__(self, session: Session, context: int) -> None:
        self._signature = DecoderSignature.of(session)
        self._session = self.network = session
        if not self._signature.keeps_logits:
            raise FolderError(
                f"{session.graph} has no input {contract.NUM_LOGITS_TO_KEEP}, which a shared cache needs. "
                "Export again."
            )
        self.vocabulary_size = self._signature.vocabulary_size
        self.bytes_per_token = self._signature.bytes_per_token
        self.context = context

    def run(
        self,
        ids: np.ndarray,
        mask: np.ndarray,
        positions: np.ndarray,
        past: Any,
        all_logits: bool,
        room: int = 0,
    ) -> tuple[np.ndarray, Any]:
        lengths = mask.sum(axis=1)
        total = int(lengths.max())
        is_new = past is None
        if is_new:
            past = SharedCache.empty(self._signature, self._session, len(ids), self._capacity(total, room))
        elif past.room < total:
            past = past.copy(range(past.rows), self._capacity(total, max(room, total)))
        if ids.shape[1] == 1:
            real = (np.arange(total) < lengths[:, None]).astype("int64")
            logits = past.run(ids, real, positions, 1)
        else:
            groups = self._groups(lengths) if is_new and not all_logits else _single_rows(len(ids))
            logits = [self._prefill(rows, ids, lengths, positions, past, all_logits) for rows in groups]
            logits = logits[0] if len(logits) == 1 else np.concatenate(logits)
        past.used = total
        return logits, past

    def empty_cache(self, rows: int, room: int) -> SharedCache:
        """A cache with room for so many tokens in each row."""
        return SharedCache.empty(self._signature, self._session, rows, room)

    def select(self, past: Any, rows: Sequence[int], first: int = 0) -> Any:
        if len(rows) > past.rows:
            return past.copy(rows, past.room)
        return past.reorder(rows, first)

    def _prefill(
        self,
        rows: slice,
        ids: np.ndarray,
        lengths: np.ndarray,
        positions: np.ndarray,
        past: SharedCache,
        all_logits: bool,
    ) -> np.ndarray:
        """Logits of several tokens of some rows, which are padded on the left."""
        count = ids.shape[1]
        lengths = lengths[rows]
        longest, shortest = int(lengths.max()), int(lengths.min())
        size = min(count, longest)  # of new tokens; with a past, texts are longer
        # The graph expects padding on the right.
        right_ids, right_positions = (np.zeros((len(lengths), size), "int64") for _ in range(2))
        for row, length in enumerate(lengths.tolist()):
            width = min(count, length)
            right_ids[row, :width] = ids[rows][row, count - width :]
            right_positions[row, :width] = positions[rows][row, count - width :]
        real = (np.arange(longest) < lengths[:, None]).astype("int64")
        num_logits = size if all_logits else longest - shortest + 1
        logits = past.view(rows).run(right_ids, real, right_positions, num_logits)
        if not all_logits:
            return logits[np.arange(len(lengths)), lengths - shortest][:, None]
        return np.pad(logits, ((0, 0), (count - size, 0), (0, 0))) if size < count else logits

    def _groups(self, lengths: np.ndarray) -> list[slice]:
        """Neighbouring rows of similar length, which add little padding and few unneeded logits."""
        groups = []
        start = 0
        for end in range(1, len(lengths) + 1):
            if end < len(lengths):
                group = lengths[start : end + 1]
                padded = len(group) * int(group.max())
                logits = len(group) * int(group.max() - group.min() + 1) * self.vocabulary_size
                if padded <= min(MOST_TOKENS, PADDED * int(group.sum())) and logits <= MOST_LOGITS:
                    continue
            groups.append(slice(start, end))
            start = end
        return groups

    def _capacity(self, total: int, room: int) -> int:
        return max(total, min(self.context, total + room))


def _single_rows(count: int) -> list[slice]:
    return [slice(row, row + 1) for row in range(count)]


class Comparison(NamedTuple):
    """The difference between the logits of a graph and of its version with a shared cache.

    Attributes:
        difference: in units of the logits' scale.
        tolerance: the largest correct difference.
        unexceeded: a window that no text was longer than; 0 if there is none.
    """

    difference: float
    tolerance: float
    unexceeded: int

    @property
    def limits(self) -> str:
        """The lengths of texts, if none was longer than a window; follows "within ... of it"."""
        if not self.unexceeded:
            return ""
        return f", on texts no longer than its window of {self.unexceeded:,} tokens"


def compare_shared_cache(
    graph: Path,
    shared: Path,
    context: int,
    exact: bool,
    weights: SharedWeights | None = None,
    farthest: int = 0,
) -> Comparison:
    """Compares the logits of a graph and its shared-cache version.

    Texts are longer than each window of the shared graph that is not above DISTANT.

    Args:
        graph: the standard graph.
        shared: the graph with a shared cache.
        context: how many tokens the model supports.
        exact: whether the model computes in float32 and rounds no inputs.
        weights: weights of both graphs that are in memory.
        farthest: a distance of tokens that masks of the standard graph distinguish, which texts exceed too.
    """
    windows = windows_of(shared)
    with (
        Session(graph, "cpu", weights=weights, lean=True) as plain_session,
        Session(shared, "cpu", weights=weights, lean=True) as shared_session,
    ):
        plain, decoder = CachedDecoder(plain_session, context), SharedCacheDecoder(shared_session, context)
        longest = max((x for x in (*windows, farthest) if x <= DISTANT), default=0) + STEP
        difference = _difference(plain, decoder, exact, longest)
    unexceeded = max((x for x in windows if x > DISTANT), default=0)
    return Comparison(difference, contract.FLOAT32 if exact else contract.ROUNDED, unexceeded)


def windows_of(shared: Path) -> tuple[int, ...]:
    """The window of each attention of a graph with a shared cache; 0 for one that has none."""
    nodes = [node for node in read_graph(shared).nodes if node.operator == OPERATOR]
    return tuple(max(node.integers.get("local_window_size", 0), 0) for node in nodes)


def window_error(shared: Path, fp32: Path) -> str:
    """Which windows of a graph in lower precision are not those of the fp32 graph; empty if all are.

    A wrong window may change logits less than the tolerance for rounded weights.
    """
    windows, expected = windows_of(shared), windows_of(fp32)
    if windows == expected:
        return ""
    return f"Attention of {shared.name} has the windows {windows}, but that of {fp32.name} has {expected}."


def _difference(plain: Decoder, shared: Decoder, batched: bool, longest: int, steps: int = 2) -> float:
    """The largest difference of logits, in units of their scale, over a prefill and several decode steps.

    A text runs alone, then texts of different lengths in one batch, two of which the shared cache prefills
    together. All run alone unless `batched`: a graph that rounds to int8 by the range of a whole batch
    computes other logits for a text in a batch.
    """
    random = np.random.default_rng(0)
    longest = max(1, min(longest, plain.context - steps))
    batch = batch_lengths(longest)
    worst = 0.0
    for lengths in [[longest], batch] if batched else [[length] for length in (longest, *batch[1:])]:
        texts = [random.integers(0, plain.vocabulary_size, length).tolist() for length in lengths]
        continuations = random.integers(0, plain.vocabulary_size, (steps, len(texts))).tolist()
        expected, actual = (_logits_of(decoder, texts, continuations) for decoder in (plain, shared))
        if not np.isfinite(actual).all():
            return float("inf")
        worst = max(worst, float(np.abs(actual - expected).max() / max(np.abs(expected).max(), 1e-6)))
    return worst


def batch_lengths(longest: int) -> list[int]:
    """Lengths of texts in a batch, the first two of which SharedCacheDecoder prefills together."""
    longest = min(longest, MOST_TOKENS // 2)
    return sorted({longest, max(longest - 4, (7 * longest + 1) // 8), 1}, reverse=True)


def _logits_of(decoder: Decoder, texts: list[list[int]], continuations: list[list[int]]) -> np.ndarray:
    """Logits after the texts and after each of the tokens that continue them."""
    logits, mask, past = prefill(decoder, texts, len(continuations))
    steps = [logits.copy()]
    for count, tokens in enumerate(continuations, 1):
        lengths = [len(text) + count for text in texts]
        logits, mask, past = decode_step(decoder, tokens, lengths, mask, past, 0)
        steps.append(logits.copy())
    return np.stack(steps).astype("float64")
