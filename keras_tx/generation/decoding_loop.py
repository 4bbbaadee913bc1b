"""The generation loop: prefill of the prompts, then a decode step for each token, with a cache."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from keras_tx.errors import ConfigError, InputError, nearest, whole_number
from keras_tx.generation.constraints import UNCONSTRAINED, Constraints, no_token_error
from keras_tx.generation.grammar import TextGrammar
from keras_tx.generation.logits import log_probability
from keras_tx.generation.sampling import DistinctTokens, Sampling, choose_token

STOP, LENGTH, CONTEXT, DEADLINE, CANCELLED = "stop", "length", "context", "deadline", "cancelled"
AT_CONTEXT = ("stop", "slide")
Cancelled = Callable[[], bool] | Sequence[Callable[[], bool]]
CHUNK = 256  # tokens that are scored together: all their logits are in memory


class Decoder(Protocol):
    """A model with a cache of keys and values: in Keras, or a graph in onnxruntime.

    Attributes:
        vocabulary_size: number of token ids.
        context: maximum number of tokens.
        network: the object that computes; caches of another one do not fit.
    """

    vocabulary_size: int
    context: int
    network: Any

    def run(
        self,
        ids: np.ndarray,
        mask: np.ndarray,
        positions: np.ndarray,
        past: Any,
        all_logits: bool,
        room: int = 0,
    ) -> tuple[np.ndarray, Any]:
        """Computes logits (batch, tokens, vocabulary) and the cache for the next run.

        The next run may overwrite the logits and the cache.

        Args:
            ids: token ids (batch, tokens).
            mask: 1 for tokens and 0 for padding, those of the cache included.
            positions: (batch, tokens).
            past: the cache; None for an empty one.
            all_logits: whether to return the logits of all tokens, or of the last only.
            room: number of tokens that are expected to follow.
        """
        ...

    def select(self, past: Any, rows: Sequence[int], first: int = 0) -> Any:
        """The cache of these rows, which may repeat; invalidates `past`.

        Rows that change places are equal up to the token `first`.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Limits:
    """When a text ends.

    Args:
        max_new_tokens: maximum number of new tokens.
        stop_ids: tokens that end a text; the stop token is the text's last token.
        deadline: seconds after which no new token is started.
        cancelled: a function that is called before each token; all texts end when it returns True. A list
            has one for each prompt, whose texts it ends.
        at_context: "stop" ends a text that has filled the model's context; "slide" drops the older half and
            prefills the rest again.

    Raises:
        ConfigError: if a value is out of range.
    """

    max_new_tokens: int = 128
    stop_ids: frozenset[int] = frozenset()
    deadline: float | None = None
    cancelled: Cancelled | None = None
    at_context: str = "stop"

    def __post_init__(self) -> None:
        whole_number("max_new_tokens", self.max_new_tokens)
        if self.at_context not in AT_CONTEXT:
            raise ConfigError(
                f"at_context={self.at_context!r} is unknown. {nearest(str(self.at_context), AT_CONTEXT)}"
            )
        seconds = self.deadline
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and (not number or not seconds > 0):
            raise ConfigError(f"deadline is {seconds!r}, expected seconds, above 0.")
        functions = self.cancelled if isinstance(self.cancelled, list | tuple) else [self.cancelled]
        if self.cancelled is not None and not all(map(callable, functions)):
            raise ConfigError(
                f"cancelled is {self.cancelled!r}, expected a function without arguments, or a list of them."
            )

    def after(self, seconds: float) -> Limits:
        """The limits of the texts that start so much later."""
        if self.deadline is None:
            return self
        return dataclasses.replace(self, deadline=max(self.deadline - seconds, 1e-9))

    def of(self, prompts: Sequence[int]) -> Limits:
        """The limits of some of the prompts."""
        if self.cancelled is None or callable(self.cancelled):
            return self
        return dataclasses.replace(self, cancelled=[self.cancelled[prompt] for prompt in prompts])

    def of_prompt(self, prompt: int, over: str | None) -> str | None:
        """The reason why the texts of a prompt end: `over`, that of all texts, or their own."""
        if over is not None or self.cancelled is None or callable(self.cancelled):
            return over
        return CANCELLED if self.cancelled[prompt]() else None

    def reached(self, began: float, made: int = 0) -> str | None:
        """The reason why all texts end after `made` tokens; None if generation continues."""
        if callable(self.cancelled) and self.cancelled():
            return CANCELLED
        if self.deadline is not None and time.monotonic() - began > self.deadline:
            return DEADLINE
        return LENGTH if made == self.max_new_tokens else None


class Token(NamedTuple):
    """The next token of a text; `finish` is the reason if the text ends with it."""

    row: int
    id: int
    log_probability: float | None
    finish: str | None


@dataclasses.dataclass
class _Batch:
    """The texts that have not ended: their rows, the start of each one's window, and the cache."""

    rows: list[int]
    starts: list[int]
    mask: np.ndarray
    past: Any


@dataclasses.dataclass
class PromptCache:
    """The cache of one text between calls: a prompt that begins with this text is not prefilled again.

    Attributes:
        ids: the whole text, generated tokens included.
        num_cached: number of its tokens in the cache.
        network: of the decoder that computed it.
    """

    ids: list[int] = dataclasses.field(default_factory=list)
    num_cached: int = 0
    past: Any = None
    network: Any = None

    def check(self, decoder: Decoder) -> None:
        """Raises a ConfigError if another model computed the cache, or the same with another adapter."""
        if self.past is not None and self.network is not decoder.network:
            raise ConfigError(
                "prompt_cache has the keys and values of another model or adapter. Pass a new PromptCache."
            )

    def covers(self, prompt: list[int]) -> bool:
        """Whether the cached tokens are the beginning of a prompt."""
        return 0 < self.num_cached < len(prompt) and prompt[: self.num_cached] == self.ids[: self.num_cached]

    def keep(self, ids: list[int], batch: _Batch, decoder: Decoder) -> None:
        """Stores a text and its cache; not the cache of a window that has slid."""
        self.ids, self.network = ids, decoder.network
        whole = batch.starts[0] == 0
        self.num_cached, self.past = (batch.mask.shape[1], batch.past) if whole else (0, None)


class GrowingText:
    """The token ids of a text, whose next token is chosen by the options of a call.

    Args:
        prompt: the first tokens.
        random: draws the next token, if it is drawn at random.
        log_probabilities: whether to compute those of the model, before penalty and temperature.
        ends: a function that is called with every token and returns True to end the text.
        grammar: which texts are permitted; None for all.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        constraints: Constraints,
        limits: Limits,
        random: np.random.Generator,
        log_probabilities: bool = False,
        ends: Callable[[int], bool] | None = None,
        grammar: TextGrammar | None = None,
    ) -> None:
        self.ids = list(prompt)
        self.made = 0
        self._sampling = sampling
        self._constraints = constraints
        self._limits = limits
        self._penalty = sampling.repetition_penalty != 1.0
        self._distinct = DistinctTokens(self.ids if self._penalty else ())
        self._random = random
        self._log_probabilities = log_probabilities
        self._ends = ends
        self._grammar = grammar

    def add_next(self, logits: np.ndarray, over: str | None, at_context: bool, row: int = 0) -> Token:
        """Chooses the next token and appends it.

        Args:
            logits: of the model after the text (vocabulary,).
            over: the reason if the text ends with this token, whichever it is.
            at_context: whether the text has filled the context.
            row: row of the text in its batch.
        """
        token = self._choose(logits, at_context or self.made + 1 == self._limits.max_new_tokens)
        self.ids.append(token)
        self.made += 1
        stopped = (self._ends is not None and self._ends(token)) or token in self._limits.stop_ids
        stopped = stopped or (self._grammar is not None and self._grammar.complete)
        probability = log_probability(logits, token) if self._log_probabilities else None
        return Token(row, token, probability, STOP if stopped else over or (CONTEXT if at_context else None))

    def _choose(self, logits: np.ndarray, last: bool) -> int:
        if self._constraints.active:
            logits = self._constraints.apply(logits, self.ids, self.made, last, self._limits.stop_ids)
        if self._grammar is not None:
            logits = self._grammar.restrict(logits)
        if (self._constraints.active or self._grammar is not None) and np.isneginf(logits.max()):
            raise no_token_error()
        token = choose_token(logits, self._sampling, self._distinct, self._random)
        if self._penalty:
            self._distinct.add(token)
        if self._grammar is not None:
            self._grammar.accept(token)
            if self._grammar.complete and self.made + 1 < (self._constraints.min_new_tokens or 0):
                raise no_token_error()
        return token


def decode(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    limits: Limits,
    *,
    constraints: Constraints = UNCONSTRAINED,
    samples: int = 1,
    log_probabilities: bool = False,
    ends: Callable[[int, int], bool] | None = None,
    grammars: Sequence[TextGrammar] | None = None,
    prompt_cache: PromptCache | None = None,
) -> Iterator[list[Token]]:
    """Yields, for each decode step, the next token of each text that has not ended.

    Args:
        constraints: which tokens may follow a text.
        samples: number of texts for each prompt, as rows `prompt * samples` and after; the prompt is
            prefilled once.
        log_probabilities: whether to compute those of the model, before penalty and temperature.
        ends: a function of row and token that returns True to end a text; called with every token.
        grammars: which texts are permitted, by row.
        prompt_cache: the cache of one prompt and one sample, kept between calls.
    """
    began = time.monotonic()
    prompts = check_prompts(decoder, prompts, limits)
    texts = _growing_texts(prompts, sampling, constraints, limits, samples, log_probabilities, ends, grammars)
    ids = [text.ids for text in texts]
    logits, batch = _prefill_batch(decoder, prompts, samples, limits.max_new_tokens, prompt_cache)
    full = decoder.context if limits.at_context == "stop" else math.inf
    try:
        for made in range(1, limits.max_new_tokens + 1):
            over = limits.reached(began, made)
            step = []
            for place, row in enumerate(batch.rows):
                at_context = len(ids[row]) - batch.starts[place] >= full
                ended = limits.of_prompt(row // samples, over)
                step.append(texts[row].add_next(logits[place], ended, at_context, row))
            yield step
            places = [place for place, token in enumerate(step) if token.finish is None]
            if not places:
                return
            logits = _decode_batch(decoder, batch, ids, places, limits.max_new_tokens - made)
    finally:
        if prompt_cache is not None:
            prompt_cache.keep(ids[0], batch, decoder)


def _growing_texts(
    prompts: Sequence[list[int]],
    sampling: Sampling,
    constraints: Constraints,
    limits: Limits,
    samples: int,
    log_probabilities: bool,
    ends: Callable[[int, int], bool] | None,
    grammars: Sequence[TextGrammar] | None,
) -> list[GrowingText]:
    """All samples of the prompts, in the order of their rows."""
    starts = [(prompt, random) for prompt in prompts for random in sampling.generators(samples)]
    return [
        GrowingText(
            prompt,
            sampling,
            constraints,
            limits,
            random,
            log_probabilities,
            None if ends is None else partial(ends, row),
            None if grammars is None else grammars[row],
        )
        for row, (prompt, random) in enumerate(starts)
    ]


def _prefill_batch(
    decoder: Decoder, prompts: list[list[int]], samples: int, room: int, cache: PromptCache | None
) -> tuple[np.ndarray, _Batch]:
    """The logits after the prompts, and the batch of all their samples."""
    starts = [_window_start(decoder, prompt) for prompt in prompts]
    if cache is not None:
        cache.check(decoder)
    if cache is not None and starts == [0] and cache.covers(prompts[0]):
        logits, mask, past = _prefill_rest(decoder, prompts[0], cache, room)
    else:
        windows = [prompt[start:] for prompt, start in zip(prompts, starts, strict=True)]
        logits, mask, past = prefill(decoder, windows, room)
    if samples > 1:
        repeated = [index for index in range(len(prompts)) for _ in range(samples)]
        logits, mask, past = logits[repeated], mask[repeated], decoder.select(past, repeated)
        starts = [starts[index] for index in repeated]
    return logits, _Batch(list(range(len(starts))), starts, mask, past)


def _decode_batch(
    decoder: Decoder, batch: _Batch, texts: list[list[int]], places: list[int], room: int
) -> np.ndarray:
    """The logits after the last tokens of the texts at `places`; the others leave the batch."""
    if len(places) < len(batch.rows):
        batch.rows = [batch.rows[place] for place in places]
        batch.starts = [batch.starts[place] for place in places]
        batch.mask, batch.past = batch.mask[places], decoder.select(batch.past, places)
    lengths = [len(texts[row]) - start for row, start in zip(batch.rows, batch.starts, strict=True)]
    if max(lengths) > decoder.context:
        windows = [texts[row][start:] for row, start in zip(batch.rows, batch.starts, strict=True)]
        starts = [_window_start(decoder, window) for window in windows]
        batch.starts = [a + b for a, b in zip(batch.starts, starts, strict=True)]
        windows = [window[start:] for window, start in zip(windows, starts, strict=True)]
        logits, batch.mask, batch.past = prefill(decoder, windows, room)
        return logits
    tokens = [texts[row][-1] for row in batch.rows]
    logits, mask, past = decode_step(decoder, tokens, lengths, batch.mask, batch.past, room)
    batch.mask, batch.past = mask, past  # together: an interruption changes both or neither
    return logits


def decode_step(
    decoder: Decoder, tokens: list[int], lengths: list[int], mask: np.ndarray, past: Any, room: int
) -> tuple[np.ndarray, np.ndarray, Any]:
    """Runs one token of each text, which has `lengths` tokens with it; returns logits, mask and cache."""
    ids = np.array(tokens, "int64")[:, None]
    positions = np.array(lengths, "int64")[:, None] - 1
    mask = np.concatenate([mask, np.ones_like(ids)], axis=1)
    logits, past = decoder.run(ids, mask, positions, past, all_logits=False, room=room)
    return logits[:, -1], mask, past


def prefill(
    decoder: Decoder, texts: Sequence[Sequence[int]], room: int
) -> tuple[np.ndarray, np.ndarray, Any]:
    """Runs texts, padded on the left; returns the logits of their last tokens, mask and cache."""
    longest = max(map(len, texts))
    ids = np.zeros((len(texts), longest), "int64")
    mask = np.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, longest - len(text) :] = text
        mask[row, longest - len(text) :] = 1
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    logits, past = decoder.run(ids, mask, positions, None, all_logits=False, room=room)
    return logits[:, -1], mask, past


def _prefill_rest(
    decoder: Decoder, text: list[int], cache: PromptCache, room: int
) -> tuple[np.ndarray, np.ndarray, Any]:
    """Prefills the tokens of a text that are not in the cache."""
    ids = np.array([text[cache.num_cached :]], "int64")
    mask = np.ones((1, len(text)), "int64")
    positions = np.arange(cache.num_cached, len(text))[None]
    logits, past = decoder.run(ids, mask, positions, cache.past, all_logits=False, room=room)
    return logits[:, -1], mask, past


def _window_start(decoder: Decoder, text: Sequence[int]) -> int:
    """The start of a text, or of its last half context if it is longer than the context."""
    return 0 if len(text) <= decoder.context else len(text) - max(1, decoder.context // 2)


def check_ids(decoder: Decoder, name: str, text: Any) -> list[int]:
    """Token ids as a list; raises an InputError for an id out of range."""
    ids = np.asarray(text)
    if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
        raise InputError(f"{name} is {text!r}, expected a list of at least one token id.")
    wrong = ids[(ids < 0) | (ids >= decoder.vocabulary_size)]
    if wrong.size:
        raise InputError(
            f"{name} has the id {wrong[0]}, which is out of range: the model has ids from 0 to "
            f"{decoder.vocabulary_size - 1}."
        )
    return ids.tolist()


def check_prompts(
    decoder: Decoder, prompts: Sequence[Sequence[int]], limits: Limits | None = None
) -> list[list[int]]:
    """Prompts as lists; raises an InputError for an id out of range or a prompt that is too long."""
    checked = [check_ids(decoder, f"prompt {i}", prompt) for i, prompt in enumerate(prompts)]
    for index, prompt in enumerate(checked):
        check_length(decoder, f"prompt {index}", prompt, limits)
    return checked


def check_length(decoder: Decoder, name: str, text: list[int], limits: Limits | None = None) -> None:
    """Raises an InputError for a text longer than the context, unless the window slides."""
    if len(text) > decoder.context and (limits is None or limits.at_context == "stop"):
        remedy = "" if limits is None else ", or pass at_context='slide', which keeps its last half"
        raise InputError(
            f"{name} has {len(text)} tokens, but the model's context is {decoder.context}. Shorten "
            f"it{remedy}."
        )


def score(decoder: Decoder, text: Sequence[int]) -> np.ndarray:
    """The log probability of each token of a text but the first."""
    text = check_ids(decoder, "the text", text)
    check_length(decoder, "the text", text[:-1])  # the last token is not run
    ids = np.array(text, "int64")[None]
    mask = np.ones_like(ids)
    scores: list[float] = []
    past = None
    for start in range(0, ids.shape[1] - 1, CHUNK):
        end = min(start + CHUNK, ids.shape[1] - 1)
        positions = np.arange(start, end)[None]
        room = ids.shape[1] - 1 - end
        logits, past = decoder.run(
            ids[:, start:end], mask[:, :end], positions, past, all_logits=True, room=room
        )
        scores += map(log_probability, logits[0], ids[0, start + 1 : end + 1])
    return np.array(scores)
