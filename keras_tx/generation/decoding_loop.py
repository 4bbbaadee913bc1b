"""The loop of generation: the prompts at once, then a token for each text and step, with a cache."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from keras_tx.errors import ConfigError, InputError, nearest, whole_number
from keras_tx.generation.sampling import Sampling, Seen, choose, log_probability

STOP, LENGTH, CONTEXT, DEADLINE, CANCELLED = "stop", "length", "context", "deadline", "cancelled"
AT_CONTEXT = ("stop", "slide")
CHUNK = 256  # tokens scored at once: all their logits are in memory


class Decoder(Protocol):
    """A model with a cache, whatever runs it."""

    vocabulary_size: int
    context: int

    def run(
        self,
        ids: np.ndarray,
        mask: np.ndarray,
        positions: np.ndarray,
        past: Any,
        every: bool,
        room: int = 0,
    ) -> tuple[np.ndarray, Any]:
        """Logits (batch, tokens, vocabulary), of the last token or of `every` one, and the past to go on.

        `ids` and `positions` are (batch, tokens), `mask` covers the past too; past None is an empty one.
        `room` further tokens are expected. Both the logits and the past that was given are used up by the
        next run.
        """
        ...

    def select(self, past: Any, rows: Sequence[int], first: int = 0) -> Any:
        """The past of these rows, each as often as it is named; uses up the past that was given.

        Up to the token `first` the rows that change places are known to be equal.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Limits:
    """Where a text ends.

    Args:
        max_new_tokens: at most so many tokens.
        stop_ids: tokens that end the text; the text's last token is then one of them.
        deadline: seconds, after which no further token is begun.
        cancelled: asked before each token; true ends all texts.
        at_context: "stop" ends a text that has filled the model's context; "slide" forgets the older half
            and reads the rest anew, which takes as long as a prompt.
    """

    max_new_tokens: int = 128
    stop_ids: frozenset[int] = frozenset()
    deadline: float | None = None
    cancelled: Callable[[], bool] | None = None
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
        if self.cancelled is not None and not callable(self.cancelled):
            raise ConfigError(f"cancelled is {self.cancelled!r}, expected a function without arguments.")


class Token(NamedTuple):
    """The next token of a text, and why the text ends with it: stop, length, context, deadline, cancelled."""

    row: int
    id: int
    log_probability: float | None
    finish: str | None


@dataclasses.dataclass
class _State:
    """The texts that go on: their rows, where the window of each starts, and what the decoder has of them."""

    rows: list[int]
    starts: list[int]
    mask: np.ndarray
    past: Any


@dataclasses.dataclass
class Memory:
    """What a model has read of one text: a prompt that begins with it is read from there on.

    `ids` is the whole text, with the tokens that were made.
    """

    ids: list[int] = dataclasses.field(default_factory=list)
    read: int = 0
    past: Any = None

    def covers(self, prompt: list[int]) -> bool:
        return 0 < self.read < len(prompt) and prompt[: self.read] == self.ids[: self.read]

    def keep(self, ids: list[int], state: _State) -> None:
        self.ids = ids
        whole = state.starts[0] == 0  # a window that has slid is not the beginning of the text
        self.read, self.past = (state.mask.shape[1], state.past) if whole else (0, None)


def decode(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    limits: Limits,
    *,
    samples: int = 1,
    log_probabilities: bool = False,
    ends: Callable[[int, int], bool] | None = None,
    memory: Memory | None = None,
) -> Iterator[list[Token]]:
    """One list of tokens a step, one for each text that goes on. Nothing outlives the iterator.

    Each prompt is continued `samples` times, as rows `prompt * samples` and after, but computed once. Log
    probabilities are the model's own, before penalty, temperature and the like. `ends(row, token)` may end
    a text, too. `memory`, for one prompt and one sample, is kept between calls.
    """
    began = time.monotonic()
    prompts = [checked(decoder, f"prompt {i}", prompt) for i, prompt in enumerate(prompts)]
    for index, prompt in enumerate(prompts):
        check_length(decoder, f"prompt {index}", prompt, limits)
    randoms = [random for _ in prompts for random in sampling.generators(samples)]
    texts = [list(prompt) for prompt in prompts for _ in range(samples)]
    penalty = sampling.repetition_penalty != 1.0
    seen = [Seen(text if penalty else ()) for text in texts]
    starts = [_start(decoder, prompt) for prompt in prompts]
    if memory is not None and starts == [0] and memory.covers(prompts[0]):
        logits, mask, past = _read_on(decoder, prompts[0], memory, limits.max_new_tokens)
    else:
        windows = [prompt[start:] for prompt, start in zip(prompts, starts, strict=True)]
        logits, mask, past = read(decoder, windows, limits.max_new_tokens)
    if samples > 1:
        repeated = [index for index in range(len(prompts)) for _ in range(samples)]
        logits, mask, past = logits[repeated], mask[repeated], decoder.select(past, repeated)
        starts = [starts[index] for index in repeated]
    state = _State(list(range(len(texts))), starts, mask, past)
    try:
        for made in range(1, limits.max_new_tokens + 1):
            over = is_over(limits, began) or (LENGTH if made == limits.max_new_tokens else None)
            step = []
            for place, row in enumerate(state.rows):
                found = logits[place]
                token = choose(found, sampling, seen[row], randoms[row])
                texts[row].append(token)
                if penalty:
                    seen[row].add(token)
                # It is told of every token, also of one that stops.
                stopped = (ends is not None and ends(row, token)) or token in limits.stop_ids
                full = len(texts[row]) - state.starts[place] > decoder.context and limits.at_context == "stop"
                finish = STOP if stopped else over or (CONTEXT if full else None)
                probability = log_probability(found, token) if log_probabilities else None
                step.append(Token(row, token, probability, finish))
            yield step
            going = [place for place, token in enumerate(step) if token.finish is None]
            if not going:
                return
            logits = _next(decoder, state, texts, going, limits.max_new_tokens - made)
    finally:
        if memory is not None:
            memory.keep(texts[0], state)


def is_over(limits: Limits, began: float) -> str | None:
    if limits.cancelled is not None and limits.cancelled():
        return CANCELLED
    late = limits.deadline is not None and time.monotonic() - began > limits.deadline
    return DEADLINE if late else None


def _next(decoder: Decoder, state: _State, texts: list[list[int]], going: list[int], room: int) -> np.ndarray:
    """The logits behind the texts' last tokens; texts that have ended leave the batch."""
    if len(going) < len(state.rows):
        state.rows = [state.rows[place] for place in going]
        state.starts = [state.starts[place] for place in going]
        state.mask, state.past = state.mask[going], decoder.select(state.past, going)
    lengths = [len(texts[row]) - start for row, start in zip(state.rows, state.starts, strict=True)]
    if max(lengths) > decoder.context:
        windows = [texts[row][start:] for row, start in zip(state.rows, state.starts, strict=True)]
        starts = [_start(decoder, window) for window in windows]
        state.starts = [a + b for a, b in zip(state.starts, starts, strict=True)]
        windows = [window[start:] for window, start in zip(windows, starts, strict=True)]
        logits, state.mask, state.past = read(decoder, windows, room)
        return logits
    tokens = [texts[row][-1] for row in state.rows]
    logits, mask, past = step(decoder, tokens, lengths, state.mask, state.past, room)
    state.mask, state.past = mask, past  # together: an interruption leaves both or none
    return logits


def step(
    decoder: Decoder, tokens: list[int], lengths: list[int], mask: np.ndarray, past: Any, room: int
) -> tuple[np.ndarray, np.ndarray, Any]:
    """One more token of each text, which has these lengths with it: logits, mask and past behind it."""
    ids = np.array(tokens, "int64")[:, None]
    positions = np.array(lengths, "int64")[:, None] - 1
    mask = np.concatenate([mask, np.ones_like(ids)], axis=1)
    logits, past = decoder.run(ids, mask, positions, past, every=False, room=room)
    return logits[:, -1], mask, past


def read(decoder: Decoder, texts: Sequence[Sequence[int]], room: int) -> tuple[np.ndarray, np.ndarray, Any]:
    """Texts of different lengths at once, padded on the left: logits behind their ends, mask and past."""
    longest = max(map(len, texts))
    ids = np.zeros((len(texts), longest), "int64")
    mask = np.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, longest - len(text) :] = text
        mask[row, longest - len(text) :] = 1
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    logits, past = decoder.run(ids, mask, positions, None, every=False, room=room)
    return logits[:, -1], mask, past


def _read_on(
    decoder: Decoder, text: list[int], memory: Memory, room: int
) -> tuple[np.ndarray, np.ndarray, Any]:
    """What a text has behind the part that is read already."""
    ids = np.array([text[memory.read :]], "int64")
    mask = np.ones((1, len(text)), "int64")
    positions = np.arange(memory.read, len(text))[None]
    logits, past = decoder.run(ids, mask, positions, memory.past, every=False, room=room)
    return logits[:, -1], mask, past


def _start(decoder: Decoder, text: Sequence[int]) -> int:
    """Where the window of a text starts: at its beginning, or at its last half of a context."""
    return 0 if len(text) <= decoder.context else len(text) - max(1, decoder.context // 2)


def checked(decoder: Decoder, name: str, text: Any) -> list[int]:
    """Token ids as a list; raises for what the model has no row for."""
    ids = np.asarray(text)
    if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
        raise InputError(f"{name} is {text!r}, expected at least one token id, all whole numbers.")
    wrong = ids[(ids < 0) | (ids >= decoder.vocabulary_size)]
    if wrong.size:
        raise InputError(
            f"{name} has the id {wrong[0]}, but the model's vocabulary goes from 0 to "
            f"{decoder.vocabulary_size - 1}."
        )
    return ids.tolist()


def check_length(decoder: Decoder, name: str, text: list[int], limits: Limits | None = None) -> None:
    if len(text) > decoder.context and (limits is None or limits.at_context == "stop"):
        remedy = "" if limits is None else ", or give at_context='slide', which keeps its last half"
        raise InputError(
            f"{name} has {len(text)} tokens, but the model's context is {decoder.context}. Shorten "
            f"it{remedy}."
        )


def score(decoder: Decoder, text: Sequence[int]) -> np.ndarray:
    """The log probability of each token of a text but the first, given those before it."""
    text = checked(decoder, "the text", text)
    check_length(decoder, "the text", text)
    ids = np.array(text, "int64")[None]
    mask = np.ones_like(ids)
    found: list[float] = []
    past = None
    for start in range(0, ids.shape[1] - 1, CHUNK):
        end = min(start + CHUNK, ids.shape[1] - 1)
        positions = np.arange(start, end)[None]
        room = ids.shape[1] - 1 - end
        logits, past = decoder.run(ids[:, start:end], mask[:, :end], positions, past, every=True, room=room)
        found += map(log_probability, logits[0], ids[0, start + 1 : end + 1])
    return np.array(found)
