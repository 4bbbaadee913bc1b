"""Beam search: the continuations with the highest total probability."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from keras_tx.errors import ConfigError, true_or_false, whole_number
from keras_tx.generation.constraints import UNCONSTRAINED, Constraints, no_token_error
from keras_tx.generation.decoding_loop import (
    CONTEXT,
    LENGTH,
    STOP,
    Decoder,
    Limits,
    check_prompts,
    decode_step,
    prefill,
)
from keras_tx.generation.logits import nan_error, penalize, top_k_ids

EARLY_STOPPING = (False, True, "never")


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """Options of beam search, with the names of transformers, whose beam search finds the same tokens.

    The score of a text is the sum of its tokens' log probabilities, divided by its length to the power of
    the length penalty.

    Args:
        num_beams: number of continuations that are extended together.
        length_penalty: values above 0 favour long texts, values below 0 short ones; 0 ranks by the sum.
        early_stopping: when the search for a prompt ends. True: as soon as num_beams texts have ended.
            False: when the best unfinished text, if it ended now, would score below the worst finished one.
            "never": when it would do so at any length.
        renormalize_logits: whether the scores of a beam's next tokens are log probabilities again after the
            penalty and the constraints.

    Raises:
        ConfigError: if a value is out of range.
    """

    num_beams: int
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    renormalize_logits: bool = False

    def __post_init__(self) -> None:
        whole_number("num_beams", self.num_beams)
        true_or_false("renormalize_logits", self.renormalize_logits)
        penalty = self.length_penalty
        if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not math.isfinite(penalty):
            raise ConfigError(f"length_penalty is {penalty!r}, expected a finite number.")
        if not any(self.early_stopping is x or self.early_stopping == "never" for x in EARLY_STOPPING):
            raise ConfigError(f"early_stopping is {self.early_stopping!r}, expected True, False or 'never'.")


class StopCriterion(Protocol):
    """Decides whether a text ends with a token; immutable, since a beam may continue in several ways."""

    def after(self, token: int) -> tuple[StopCriterion, bool]:
        """The criterion for the longer text, and whether it ends with this token."""
        ...


class Beam(NamedTuple):
    """An unfinished continuation: its tokens, the sum of their scores, and their log probabilities."""

    ids: tuple[int, ...]
    total: float
    log_probabilities: tuple[float, ...]
    stop: StopCriterion


class Hypothesis(NamedTuple):
    """A finished continuation."""

    ids: tuple[int, ...]
    score: float
    log_probabilities: tuple[float, ...]
    finish: str


class _PromptSearch:
    """The beams and hypotheses of one prompt."""

    def __init__(
        self,
        prompt: list[int],
        options: BeamSearch,
        constraints: Constraints,
        limit: int,
        finish: str,
        stop: StopCriterion,
    ) -> None:
        """Texts end after `limit` tokens, for the reason `finish`."""
        self.prompt = prompt
        self.options = options
        self.constraints = constraints
        self.limit = limit
        self.finish = finish
        self.beams = [Beam((), 0.0, (), stop)]
        self.hypotheses: list[Hypothesis] = []

    def advance(self, logits: np.ndarray, limits: Limits, penalty: float, over: str | None) -> list[int]:
        """Extends all beams by a token; returns the index of the beam that each new one extends."""
        candidates = self._candidates(logits, limits, penalty)
        if not candidates and not self.hypotheses:
            raise no_token_error()
        length = len(self.beams[0].ids) + 1
        over = over or (self.finish if length == self.limit else None)
        beams, parents, finished = [], [], []
        for rank, (index, token, total, probability) in enumerate(candidates):
            parent = self.beams[index]
            stop, reached = parent.stop.after(token)
            ids, probabilities = (*parent.ids, token), (*parent.log_probabilities, probability)
            stopped = reached or token in limits.stop_ids
            if stopped or over:
                if rank < self.options.num_beams:
                    score = total / length**self.options.length_penalty
                    finished.append(Hypothesis(ids, score, probabilities, STOP if stopped else over or STOP))
            elif len(beams) < self.options.num_beams:
                beams.append(Beam(ids, total, probabilities, stop))
                parents.append(index)
        # sorted() keeps the order of equal scores
        ranked = sorted(self.hypotheses + finished, key=lambda x: -x.score)
        self.hypotheses, self.beams = ranked[: self.options.num_beams], beams
        return parents if beams and self._can_improve(length) else []

    def _can_improve(self, length: int) -> bool:
        options = self.options
        if len(self.hypotheses) < options.num_beams:
            return True
        if options.early_stopping is True:
            return False
        at_limit = options.early_stopping == "never" and options.length_penalty > 0
        possible = self.beams[0].total / (self.limit if at_limit else length) ** options.length_penalty
        return possible > self.hypotheses[-1].score

    def _candidates(
        self, logits: np.ndarray, limits: Limits, penalty: float
    ) -> list[tuple[int, int, float, float]]:
        """The best next tokens of all beams: index of the beam, token, total, log probability."""
        count = max(2, 1 + len(limits.stop_ids)) * self.options.num_beams
        made = len(self.beams[0].ids)
        candidates = []
        for index, (beam, row) in enumerate(zip(self.beams, logits, strict=True)):
            log_probabilities = _log_softmax(row)
            if not np.isfinite(log_probabilities.max()):
                raise nan_error()
            scores = log_probabilities
            if penalty != 1.0:
                previous = np.fromiter({*self.prompt, *beam.ids}, "int64")
                scores = penalize(log_probabilities, previous, penalty)
            if self.constraints.active:
                text, last = [*self.prompt, *beam.ids], made + 1 == self.limit
                scores = self.constraints.apply(scores, text, made, last, limits.stop_ids)
            if self.options.renormalize_logits and np.isfinite(scores.max()):
                scores = _log_softmax(scores)
            ids = top_k_ids(scores, min(count, len(scores)))
            totals = scores[ids] + np.float32(beam.total)
            columns = ids.tolist(), totals.tolist(), log_probabilities[ids].tolist()
            candidates += [(index, *x) for x in zip(*columns, strict=True) if x[1] > -math.inf]
        return sorted(candidates, key=lambda x: -x[2])[:count]


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    """In the dtype of the scores, as in transformers."""
    shifted = scores - scores.max()
    return shifted - np.log(np.exp(shifted).sum())


def search(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    options: BeamSearch,
    limits: Limits,
    stops: Sequence[StopCriterion],
    *,
    constraints: Constraints = UNCONSTRAINED,
    repetition_penalty: float = 1.0,
) -> list[list[Hypothesis]]:
    """Returns up to `num_beams` continuations of each prompt, best first.

    Prompts are prefilled once and searched in one batch; the result of each is that of a search alone. At the
    deadline and when cancelled, all texts end, or those of the cancelled prompt.
    """
    began = time.monotonic()
    searches = []
    for prompt, stop in zip(check_prompts(decoder, prompts), stops, strict=True):
        room = decoder.context + 1 - len(prompt)
        limit, finish = min((limits.max_new_tokens, LENGTH), (room, CONTEXT))
        searches.append(_PromptSearch(prompt, options, constraints, limit, finish, stop))
    logits, mask, past = prefill(decoder, [x.prompt for x in searches], limits.max_new_tokens)
    active = list(enumerate(searches))
    made = 0
    while True:
        made += 1
        over = limits.reached(began)
        rows: list[int] = []  # of the logits, for each new beam
        unfinished = []
        start = 0
        for prompt, one in active:
            count = len(one.beams)
            ended = limits.of_prompt(prompt, over)
            parents = one.advance(logits[start : start + count], limits, repetition_penalty, ended)
            rows += [start + index for index in parents]
            unfinished += [(prompt, one)] if parents else []
            start += count
        if not unfinished:
            return [one.hypotheses for one in searches]
        # If no prompt leaves the batch, beams change places only with those of the same prompt.
        first = min(len(one.prompt) for _, one in unfinished) if len(unfinished) == len(active) else 0
        active = unfinished
        past, mask = decoder.select(past, rows, first), mask[rows]
        tokens = [beam.ids[-1] for _, one in active for beam in one.beams]
        lengths = [len(one.prompt) + made for _, one in active for _ in one.beams]
        logits, mask, past = decode_step(decoder, tokens, lengths, mask, past, limits.max_new_tokens - made)
