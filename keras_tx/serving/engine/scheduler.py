"""Scheduler: which sequences run in a step, in the order of their arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from keras_tx.serving.engine.lane import Lane
from keras_tx.serving.engine.sequence import Sequence

if TYPE_CHECKING:
    from keras_tx.runtime.tasks.text_generation import TextGenerator

# Tokens of prompts in a step: other streams wait for them, and small chunks prefill more slowly.
CHUNK, LONE_CHUNK = 64, 256


class Scheduler:
    """Runs sequences in steps: at most `CHUNK` tokens of prompts, then a token of each text.

    Args:
        max_streams: number of sequences that run together.
        memory: bytes of their keys and values; None for no limit.
        open_lane: creates the lane of a model with an adapter.
    """

    def __init__(
        self, max_streams: int, memory: int | None, open_lane: Callable[[TextGenerator], Lane]
    ) -> None:
        self._max_streams = max_streams
        self._memory = memory
        self._open_lane = open_lane
        self._lanes: dict[str | None, Lane] = {}
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in the order of their arrival

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def cache_bytes(self) -> int:
        """The memory of keys and values."""
        return sum(lane.rows.num_bytes for lane in self.lanes)

    @property
    def lanes(self) -> list[Lane]:
        return [*self._lanes.values()]

    def step(self) -> None:
        self._remove_ended()
        self._admit()
        for lane in self.lanes:
            lane.compact()
        self._prefill()
        for lane in self.lanes:
            lane.decode(alone=len(self.running) == 1)

    def end_all(self, error: BaseException) -> None:
        """Ends all sequences with an error."""
        for sequence in (*self.running, *self.waiting):
            if not sequence.ended:
                sequence.fail(error)
        self.running.clear()
        self.waiting.clear()

    def _prefill(self) -> None:
        budget = CHUNK if any(sequence.decodes for sequence in self.running) else LONE_CHUNK
        prompts = [sequence for sequence in self.running if not sequence.decodes]
        while prompts and budget > 0:
            lane = self._lanes[prompts[0].adapter]
            group = lane.group(prompts, budget)
            budget -= lane.prefill(group, budget)
            prompts = prompts[len(group) :]

    def _remove_ended(self) -> None:
        for sequence in (*self.running, *self.waiting):
            if not sequence.ended:
                sequence.end_if_over()
        self.running = [sequence for sequence in self.running if not sequence.ended]
        if any(sequence.ended for sequence in self.waiting):
            self.waiting = deque(sequence for sequence in self.waiting if not sequence.ended)
        for lane in self.lanes:
            lane.remove_ended()

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._max_streams:
            sequence = self.waiting[0]
            if sequence.adapter not in self._lanes:
                self._lanes[sequence.adapter] = self._open_lane(sequence.generator)
            lane = self._lanes[sequence.adapter]
            if not self._has_memory(lane, sequence):
                return
            self.waiting.popleft()
            try:
                lane.add(sequence)
            except Exception as error:  # out of memory
                sequence.fail(error)
            else:
                self.running.append(sequence)

    def _has_memory(self, lane: Lane, sequence: Sequence) -> bool:
        """Whether the sequence fits, after memory of ended sequences was returned if necessary."""
        if self._memory is None:
            return True
        free = self._memory - sequence.reserved * lane.bytes_per_token
        if self.cache_bytes > free:
            for other in self.lanes:
                other.trim()
        return self.cache_bytes <= free
