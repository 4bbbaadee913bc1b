"""The loop of generation: the prompts at once, then a token for each text and step, with a cache."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from keras_tx.errors import ConfigError, InputError, nearest, whole_number
from keras_tx.sampling.choice import Sampling, choose, log_softmax

STOP, LENGTH, CONTEXT, DEADLINE, CANCELLED = "stop", "length", "context", "deadline", "cancelled"
AT_CONTEXT = ("stop", "slide")
CHUNK = 256  # tokens scored at once: all their logits are in memory


class Decoder(Protocol):
    """A model with a cache, whatever runs it."""

    vocabulary: int
    context: int

    def run(
        self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray, past: Any, every: bool
    ) -> tuple[np.ndarray, Any]:
        """Logits (batch, tokens, vocabulary), of the last token or of `every` one, and the past to go on.

        `ids` and `positions` are (batch, tokens), `mask` covers the past too; past None is an empty one.
        """
        ...

    def select(self, past: Any, rows: Sequence[int]) -> Any:
        """The past of these rows, each as often as it is named."""
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
        if seconds is not None and (not isinstance(seconds, int | float) or not seconds > 0):
            raise ConfigError(f"deadline is {seconds!r}, expected seconds, above 0.")


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
        _check_length(decoder, f"prompt {index}", prompt, limits)
    randoms = [random for _ in prompts for random in sampling.generators(samples)]
    texts = [list(prompt) for prompt in prompts for _ in range(samples)]
    starts = [_start(decoder, prompt) for prompt in prompts]
    if memory is not None and starts == [0] and memory.covers(prompts[0]):
        logits, mask, past = _read_on(decoder, prompts[0], memory)
    else:
        logits, mask, past = _read(decoder, [p[s:] for p, s in zip(prompts, starts, strict=True)])
    if samples > 1:
        repeated = [index for index in range(len(prompts)) for _ in range(samples)]
        logits, mask, past = logits[repeated], mask[repeated], decoder.select(past, repeated)
        starts = [starts[index] for index in repeated]
    state = _State(list(range(len(texts))), starts, mask, past)
    try:
        for made in range(1, limits.max_new_tokens + 1):
            over = _over(limits, began) or (LENGTH if made == limits.max_new_tokens else None)
            step = []
            for place, row in enumerate(state.rows):
                found = logits[place]
                token = choose(found, sampling, texts[row], randoms[row])
                texts[row].append(token)
                stopped = token in limits.stop_ids or (ends is not None and ends(row, token))
                full = len(texts[row]) - state.starts[place] > decoder.context and limits.at_context == "stop"
                finish = STOP if stopped else over or (CONTEXT if full else None)
                probability = float(log_softmax(found)[token]) if log_probabilities else None
                step.append(Token(row, token, probability, finish))
            yield step
            going = [place for place, token in enumerate(step) if token.finish is None]
            if not going:
                return
            logits = _next(decoder, state, texts, going)
    finally:
        if memory is not None:
            memory.keep(texts[0], state)


def _over(limits: Limits, began: float) -> str | None:
    if limits.cancelled is not None and limits.cancelled():
        return CANCELLED
    late = limits.deadline is not None and time.monotonic() - began > limits.deadline
    return DEADLINE if late else None


def _next(decoder: Decoder, state: _State, texts: list[list[int]], going: list[int]) -> np.ndarray:
    """The logits behind the texts' last tokens; texts that have ended leave the batch."""
    if len(going) < len(state.rows):
        state.rows = [state.rows[place] for place in going]
        state.starts = [state.starts[place] for place in going]
        state.mask, state.past = state.mask[going], decoder.select(state.past, going)
    windows = [texts[row][start:] for row, start in zip(state.rows, state.starts, strict=True)]
    if any(len(window) > decoder.context for window in windows):
        state.starts = [
            start + _start(decoder, window) for start, window in zip(state.starts, windows, strict=True)
        ]
        windows = [texts[row][start:] for row, start in zip(state.rows, state.starts, strict=True)]
        logits, state.mask, state.past = _read(decoder, windows)
        return logits
    ids = np.array([[window[-1]] for window in windows], "int64")
    positions = np.array([[len(window) - 1] for window in windows], "int64")
    mask = np.concatenate([state.mask, np.ones_like(ids)], axis=1)
    logits, past = decoder.run(ids, mask, positions, state.past, every=False)
    state.mask, state.past = mask, past  # together: an interruption leaves both or none
    return logits[:, -1]


def _read(decoder: Decoder, texts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray, Any]:
    """Texts of different lengths at once, padded on the left: logits behind their ends, mask and past."""
    longest = max(map(len, texts))
    ids = np.zeros((len(texts), longest), "int64")
    mask = np.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, longest - len(text) :] = text
        mask[row, longest - len(text) :] = 1
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    logits, past = decoder.run(ids, mask, positions, None, every=False)
    return logits[:, -1], mask, past


def _read_on(decoder: Decoder, text: list[int], memory: Memory) -> tuple[np.ndarray, np.ndarray, Any]:
    """What a text has behind the part that is read already."""
    ids = np.array([text[memory.read :]], "int64")
    mask = np.ones((1, len(text)), "int64")
    positions = np.arange(memory.read, len(text))[None]
    logits, past = decoder.run(ids, mask, positions, memory.past, every=False)
    return logits[:, -1], mask, past


def _start(decoder: Decoder, text: Sequence[int]) -> int:
    """Where the window of a text starts: at its beginning, or at its last half of a context."""
    return 0 if len(text) <= decoder.context else len(text) - max(1, decoder.context // 2)


def checked(decoder: Decoder, name: str, text: Any) -> list[int]:
    """Token ids as a list; raises for what the model has no row for."""
    ids = np.asarray(text)
    if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
        raise InputError(f"{name} is {text!r}, expected at least one token id, all whole numbers.")
    wrong = ids[(ids < 0) | (ids >= decoder.vocabulary)]
    if wrong.size:
        raise InputError(
            f"{name} has the id {wrong[0]}, but the model's vocabulary goes from 0 to "
            f"{decoder.vocabulary - 1}."
        )
    return ids.tolist()


def _check_length(decoder: Decoder, name: str, text: list[int], limits: Limits | None = None) -> None:
    if len(text) > decoder.context and (limits is None or limits.at_context == "stop"):
        remedy = "" if limits is None else ", or give at_context='slide', which keeps its last half"
        raise InputError(
            f"{name} has {len(text)} tokens, but the model's context is {decoder.context}. Shorten "
            f"it{remedy}."
        )


def score(decoder: Decoder, text: Sequence[int]) -> np.ndarray:
    """The log probability of each token of a text but the first, given those before it."""
    text = checked(decoder, "the text", text)
    _check_length(decoder, "the text", text)
    ids = np.array(text, "int64")[None]
    mask = np.ones_like(ids)
    found = []
    past = None
    for start in range(0, ids.shape[1] - 1, CHUNK):
        end = min(start + CHUNK, ids.shape[1] - 1)
        positions = np.arange(start, end)[None]
        logits, past = decoder.run(ids[:, start:end], mask[:, :end], positions, past, every=True)
        found.append(log_softmax(logits[0])[np.arange(end - start), ids[0, start + 1 : end + 1]])
    return np.concatenate(found) if found else np.zeros(0)
