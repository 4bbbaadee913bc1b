"""Beam search: several continuations of a text grow side by side, and the likeliest as a whole is taken."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from keras_tx.errors import ConfigError, whole_number
from keras_tx.generation.decoding_loop import (
    CONTEXT,
    LENGTH,
    STOP,
    Decoder,
    Limits,
    check_length,
    checked,
    is_over,
    read,
    step,
)
from keras_tx.generation.sampling import penalized
from keras_tx.generation.truncated_sampling import best, not_numbers

EARLY_STOPPING = (False, True, "never")


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """How beams are searched, by the names of transformers, whose beam search gives the same tokens.

    A text's score is the sum of its tokens' log probabilities, divided by its length to the power of the
    length penalty.

    Args:
        num_beams: how many continuations grow side by side.
        length_penalty: above 0 longer texts get better scores, below 0 shorter ones; 0 takes the sum itself.
        early_stopping: True ends a text's search when num_beams continuations have ended; False also goes on
            while the best that grows could be better than the worst that has ended, if it ended now; "never"
            while it could be at any length.
    """

    num_beams: int
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    def __post_init__(self) -> None:
        whole_number("num_beams", self.num_beams)
        penalty = self.length_penalty
        if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not math.isfinite(penalty):
            raise ConfigError(f"length_penalty is {penalty!r}, expected a number; 0 for none.")
        if not any(self.early_stopping is x or self.early_stopping == "never" for x in EARLY_STOPPING):
            raise ConfigError(f"early_stopping is {self.early_stopping!r}, expected True, False or 'never'.")


class Ending(Protocol):
    """What looks for the end of one text, token by token, and can be asked for several next tokens."""

    def after(self, token: int) -> tuple[Ending, bool]: ...


class Beam(NamedTuple):
    """A continuation: its tokens, the sum that it is judged by, and each token's own log probability."""

    ids: tuple[int, ...]
    total: float
    log_probabilities: tuple[float, ...]
    ending: Ending


class Found(NamedTuple):
    """A continuation that has ended."""

    ids: tuple[int, ...]
    score: float
    log_probabilities: tuple[float, ...]
    finish: str


class _Text:
    """The search for one prompt."""

    def __init__(self, prompt: list[int], beams: BeamSearch, most: int, ending: Ending, last: str) -> None:
        self.prompt = prompt
        self.beams = beams
        self.most = most  # tokens
        self.last = last  # why it ends with them
        self.growing = [Beam((), 0.0, (), ending)]
        self.found: list[Found] = []

    def advance(self, logits: np.ndarray, limits: Limits, penalty: float, over: str | None) -> list[int]:
        """Takes the logits of each beam that grows; gives the places of those that go on, one by one."""
        candidates = self._candidates(logits, max(2, 1 + len(limits.stop_ids)), penalty)
        made = len(self.growing[0].ids) + 1
        over = over or (self.last if made == self.most else None)
        growing, parents, ended = [], [], []
        for rank, (place, token, total, probability) in enumerate(candidates):
            before = self.growing[place]
            ending, reached = before.ending.after(token)
            ids, probabilities = (*before.ids, token), (*before.log_probabilities, probability)
            stopped = reached or token in limits.stop_ids
            if stopped or over:
                if rank < self.beams.num_beams:
                    score = total / made**self.beams.length_penalty
                    ended.append(Found(ids, score, probabilities, STOP if stopped else over or STOP))
            elif len(growing) < self.beams.num_beams:
                growing.append(Beam(ids, total, probabilities, ending))
                parents.append(place)
        # sorted() keeps the order of equal scores: the earlier one stays in front
        self.found = sorted(self.found + ended, key=lambda x: -x.score)[: self.beams.num_beams]
        self.growing = growing
        return parents if growing and self._may_improve(made) else []

    def _may_improve(self, made: int) -> bool:
        beams = self.beams
        if len(self.found) < beams.num_beams:
            return True
        if beams.early_stopping is True:
            return False
        far = beams.early_stopping == "never" and beams.length_penalty > 0
        possible = self.growing[0].total / (self.most if far else made) ** beams.length_penalty
        return possible > self.found[-1].score

    def _candidates(
        self, logits: np.ndarray, share: int, penalty: float
    ) -> list[tuple[int, int, float, float]]:
        """The best next tokens of all beams: place of the beam, token, total, own log probability."""
        count = share * self.beams.num_beams
        found = []
        for place, (beam, row) in enumerate(zip(self.growing, logits, strict=True)):
            shifted = row - row.max()
            plain = shifted - np.log(np.exp(shifted).sum())  # float32 throughout, as in transformers
            if not np.isfinite(plain.max()):
                raise not_numbers()
            scores = plain
            if penalty != 1.0:
                seen = np.fromiter({*self.prompt, *beam.ids}, "int64")
                scores = penalized(plain, seen, penalty)
            ids = best(scores, min(count, len(scores)))
            totals = scores[ids] + np.float32(beam.total)
            found += [
                (place, token, total, probability)
                for token, total, probability in zip(
                    ids.tolist(), totals.tolist(), plain[ids].tolist(), strict=True
                )
            ]
        return sorted(found, key=lambda x: -x[2])[:count]


def search(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    beams: BeamSearch,
    limits: Limits,
    endings: Sequence[Ending],
    *,
    repetition_penalty: float = 1.0,
) -> list[list[Found]]:
    """For each prompt up to `num_beams` continuations, the best first.

    Prompts are read once, and searched side by side; each finds what it finds alone. The deadline and a
    cancellation end all that grow, as they are.
    """
    began = time.monotonic()
    prompts = [checked(decoder, f"prompt {i}", prompt) for i, prompt in enumerate(prompts)]
    texts = []
    for index, (prompt, ending) in enumerate(zip(prompts, endings, strict=True)):
        check_length(decoder, f"prompt {index}", prompt)
        room = decoder.context + 1 - len(prompt)
        most, last = min((limits.max_new_tokens, LENGTH), (room, CONTEXT))
        texts.append(_Text(prompt, beams, most, ending, last))
    logits, mask, past = read(decoder, prompts, limits.max_new_tokens)
    active = list(texts)
    made = 0
    while True:
        made += 1
        over = is_over(limits, began)
        rows: list[int] = []  # of the logits, for each beam that goes on
        going = []
        start = 0
        for text in active:
            count = len(text.growing)
            parents = text.advance(logits[start : start + count], limits, repetition_penalty, over)
            rows += [start + place for place in parents]
            going += [text] if parents else []
            start += count
        if not going:
            return [text.found for text in texts]
        # While no text leaves, beams change places only with those of the same prompt.
        first = min(len(text.prompt) for text in going) if len(going) == len(active) else 0
        active = going
        past, mask = decoder.select(past, rows, first), mask[rows]
        tokens = [beam.ids[-1] for text in active for beam in text.growing]
        lengths = [len(text.prompt) + made for text in active for _ in text.growing]
        logits, mask, past = step(decoder, tokens, lengths, mask, past, limits.max_new_tokens - made)
