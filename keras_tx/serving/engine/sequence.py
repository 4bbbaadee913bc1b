"""Sequence: a request in the engine, from its prompt to its last token."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from keras_tx.generation.decoding_loop import CANCELLED, DEADLINE, GrowingText
from keras_tx.generation.generator import Request
from keras_tx.generation.logits import log_probability, top_k_ids
from keras_tx.serving.engine.prompt_lookup import PromptLookup
from keras_tx.serving.engine.stream import Outbox, StreamToken

if TYPE_CHECKING:
    from keras_tx.runtime.tasks.text_generation import TextGenerator


class Sequence:
    """The text of a request, and how much of it is in the cache.

    Args:
        prompt: token ids.
        request: the options of the call.
        generator: the model, with the request's adapter.
        adapter: its name.
        top: number of likeliest tokens whose log probabilities are returned.

    Attributes:
        ids: the tokens, prompt included.
        cached: number of tokens whose keys and values are in the cache.
        restored: number of those that the prefix cache had.
        row: the sequence's row of the cache.
        reserved: the largest number of tokens that the cache will have.
        lookup: guesses the next tokens.
    """

    def __init__(
        self, prompt: list[int], request: Request, generator: TextGenerator, adapter: str | None, top: int
    ) -> None:
        self.generator = generator
        self.adapter = adapter
        self.prompt_length = len(prompt)
        self.reserved = min(generator.context, len(prompt) + request.limits.max_new_tokens)
        self.cached = self.restored = 0
        self.row = -1
        self.cancelled = False
        self.ended = False
        self.outbox = Outbox()
        self._began = time.monotonic()
        self._request = request
        self._top = top
        self._decoded = generator.text_of(request, prompt)
        (random,) = request.sampling.generators(1)
        self._growing = GrowingText(
            prompt,
            request.sampling,
            request.constraints,
            request.limits,
            random,
            request.log_probabilities,
            lambda token: self._decoded.ends(token, request.limits),
            self._decoded.grammar,
        )
        self.ids = self._growing.ids
        self.lookup = PromptLookup(self.ids)

    @property
    def text(self) -> str | None:
        return self._decoded.text

    @property
    def decodes(self) -> bool:
        """Whether one token is not in the cache, so that a decode step computes the next logits."""
        return self.cached + 1 == len(self.ids)

    def add_next(self, logits: np.ndarray) -> None:
        """Chooses the next token by the logits after the text, and delivers it."""
        over = self._request.limits.reached(self._began, self._growing.made + 1)
        token = self._growing.add_next(logits, over, len(self.ids) >= self.generator.context)
        self._decoded.add(token)
        top = _top_logprobs(logits, self._top) if self._request.log_probabilities else None
        self.outbox.put(StreamToken(token.id, self._decoded.last, token.log_probability, top))
        if token.finish is not None:
            self.end(token.finish)

    def end_if_over(self) -> None:
        """Ends a text that the client has cancelled, or that has no token before its deadline."""
        if self.cancelled:
            self.end(CANCELLED)
        elif not self._growing.made and self._request.limits.reached(self._began) is not None:
            self.end(DEADLINE)

    def end(self, finish: str) -> None:
        self.ended = True
        self.outbox.end(self._decoded.result(self._request.log_probabilities, finish))

    def fail(self, error: BaseException) -> None:
        self.ended = True
        self.outbox.end(error)


def _top_logprobs(logits: np.ndarray, count: int) -> tuple[tuple[int, float], ...]:
    """The likeliest tokens and their log probabilities; of equal ones the first ids."""
    if count == 0:
        return ()
    ids = sorted(top_k_ids(logits, count).tolist(), key=lambda token: -logits[token])
    total = float(logits[ids[0]]) - log_probability(logits, ids[0])
    return tuple((token, float(logits[token]) - total) for token in ids)
