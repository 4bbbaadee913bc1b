"""What a user calls: prompts to texts, streams and scores, over any model with a cache."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, InputError, nearest, true_or_false, whole_number
from keras_tx.generation.beam_search import BeamSearch, Found, search
from keras_tx.generation.decoding_loop import (
    Decoder,
    Limits,
    Memory,
    Token,
    check_length,
    checked,
    decode,
    score,
)
from keras_tx.generation.sampling import Sampling
from keras_tx.processing.detokenizer import Pieces

Prompt = str | Sequence[int] | np.ndarray
SAMPLING = tuple(field.name for field in dataclasses.fields(Sampling))


@dataclasses.dataclass(frozen=True)
class Generation:
    """How a prompt goes on. `str()` of it is the text.

    `finish` says why it ends: "stop" (a stop token, which is then the last id, or a stop string), "length",
    "context", "deadline" or "cancelled". `text` is None where the folder has no tokenizer; it ends before the
    stop. `score` is that of a beam search: the sum of the log probabilities over the length to the power of
    the length penalty.
    """

    text: str | None
    ids: tuple[int, ...]
    finish: str
    log_probabilities: tuple[float, ...] | None = None
    score: float | None = None

    def __str__(self) -> str:
        return str(list(self.ids)) if self.text is None else self.text


@dataclasses.dataclass(frozen=True)
class Scored:
    """The log probability of each token of a text but the first, given those before it."""

    ids: tuple[int, ...]
    log_probabilities: tuple[float, ...]

    @property
    def total(self) -> float:
        return math.fsum(self.log_probabilities)

    @property
    def perplexity(self) -> float:
        return math.exp(-self.total / len(self.log_probabilities))


class Generator:
    """Continues texts, streams them, and says how likely they are.

    A prompt is a string where there is a tokenizer, else token ids; ids are always taken. An empty one starts
    from the end-of-text token.

    Args:
        decoder: the model.
        stop_ids: the end-of-text tokens.
        name: of the model, for messages.
        tokenizer: the tokenizers.Tokenizer, or None.
    """

    def __init__(self, decoder: Decoder, stop_ids: frozenset[int], name: str, tokenizer: Any) -> None:
        self.decoder = decoder
        self.stop_ids = stop_ids
        self.name = name
        self.tokenizer = tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        samples: int | None = None,
        max_new_tokens: int = 128,
        stop: str | Sequence[str] = (),
        stop_tokens: Sequence[int] | None = None,
        log_probabilities: bool = False,
        deadline: float | None = None,
        cancelled: Callable[[], bool] | None = None,
        at_context: str = "stop",
        num_beams: int = 1,
        length_penalty: float | None = None,
        early_stopping: bool | str | None = None,
        **sampling: Any,
    ) -> Any:
        """A Generation; a list of them for several prompts, or for several samples of one.

        Prompts of different lengths are computed together, and each gives what it gives alone.

        Args:
            samples: continuations of each prompt, which is read once for all; the result then has a list for
                each prompt. They differ only where tokens are drawn, or are the best of a beam search.
            max_new_tokens: at most so many tokens are added.
            stop: strings that end a text; they need a tokenizer.
            stop_tokens: ids that end a text, in place of the folder's own end-of-text; [] for none.
            log_probabilities: whether to give each token's, as the model has it: before penalty, temperature
                and the like.
            deadline: seconds, after which no further token is begun.
            cancelled: asked before each token; true ends all texts.
            at_context: "stop", or "slide" to go on beyond the model's context with the last half of it.
            num_beams: above 1 a beam search, which takes the likeliest text as a whole, with length_penalty
                and early_stopping as in transformers; see keras_tx.generation.BeamSearch.
            sampling: do_sample, temperature, top_k, top_p, min_p, repetition_penalty, seed; see
                keras_tx.generation.Sampling. Greedy where none is given.
        """
        single = _is_one(prompts)
        ids = self._ids([prompts] if single else prompts)
        count = 1 if samples is None else whole_number("samples", samples)
        limits = self._limits(max_new_tokens, stop_tokens, deadline, cancelled, at_context)
        strings = _strings(stop, self.tokenizer)
        true_or_false("log_probabilities", log_probabilities)
        options = _sampling(sampling, self.generate)
        beams = _beams(num_beams, length_penalty, early_stopping, count, options, limits)
        if not ids:
            return []
        texts = [_Text(self.tokenizer, strings, prompt) for prompt in ids for _ in range(count)]
        if beams is not None:
            endings = [_Ending(text.pieces if strings else None) for text in texts[::count]]
            penalty = options.repetition_penalty
            found = search(self.decoder, ids, beams, limits, endings, repetition_penalty=penalty)
            grouped = [
                [
                    _Text(self.tokenizer, strings, prompt).of(one, limits, log_probabilities)
                    for one in best[:count]
                ]
                for prompt, best in zip(ids, found, strict=True)
            ]
        else:
            steps = decode(
                self.decoder,
                ids,
                options,
                limits,
                samples=count,
                log_probabilities=log_probabilities,
                ends=lambda row, token: texts[row].ends(token, limits),
            )
            for step in steps:
                for token in step:
                    texts[token.row].add(token)
            done = [text.done(log_probabilities) for text in texts]
            grouped = [done[i : i + count] for i in range(0, len(done), count)]
        results: list[Any] = grouped if samples is not None else [one for (one,) in grouped]
        return results[0] if single else results

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 128,
        stop: str | Sequence[str] = (),
        stop_tokens: Sequence[int] | None = None,
        deadline: float | None = None,
        cancelled: Callable[[], bool] | None = None,
        at_context: str = "stop",
        as_ids: bool = False,
        memory: Memory | None = None,
        **sampling: Any,
    ) -> Iterator[Any]:
        """The text of one prompt piece by piece, or its ids with `as_ids` and where there is no tokenizer.

        A piece has whole characters only, and never a part of a stop string. The iterator may be left at any
        time; the model stays as it was. With the same `memory` in several calls, what a prompt has in common
        with the text of the call before is not read again.
        """
        if not _is_one(prompt):
            raise InputError(f"stream accepts one prompt, but got {len(prompt)}; generate accepts several.")
        true_or_false("as_ids", as_ids)
        if memory is not None and not isinstance(memory, Memory):
            raise ConfigError(f"memory is {memory!r}, expected a keras_tx.generation.Memory.")
        (ids,) = self._ids([prompt])
        limits = self._limits(max_new_tokens, stop_tokens, deadline, cancelled, at_context)
        text = _Text(self.tokenizer, _strings(stop, self.tokenizer), ids)
        options = _sampling(sampling, self.stream)

        def ends(row: int, token: int) -> bool:
            return text.ends(token, limits)

        def pieces() -> Iterator[Any]:
            for (token,) in decode(self.decoder, [ids], options, limits, ends=ends, memory=memory):
                if as_ids or text.pieces is None:
                    yield token.id
                elif text.last:
                    yield text.last
            if not as_ids and text.pieces is not None and (rest := text.pieces.end()):
                yield rest

        return pieces()

    def score(self, texts: Prompt | Sequence[Prompt]) -> Any:
        """How likely a text is, token by token: a Scored, or a list of them."""
        single = _is_one(texts)
        found = []
        for index, ids in enumerate(self._ids([texts] if single else texts, "text", fewest=2)):
            check_length(self.decoder, f"text {index}", ids)
            found.append(Scored(tuple(map(int, ids)), tuple(score(self.decoder, ids).tolist())))
        return found[0] if single else found

    def _ids(self, prompts: Any, kind: str = "prompt", fewest: int = 0) -> list[list[int]]:
        """The token ids of prompts; raises an InputError for one with fewer than `fewest` tokens."""
        found = []
        for index, prompt in enumerate(prompts):
            name = f"{kind} {index}"
            if isinstance(prompt, str):
                if self.tokenizer is None:
                    raise InputError(
                        f"{name} is text, but {self.name} has no {contract.TOKENIZER}. Pass token "
                        "ids, or export with tokenizer=."
                    )
                prompt = self.tokenizer.encode(prompt).ids
            elif isinstance(prompt, bytes) or not isinstance(prompt, Sequence | np.ndarray):
                raise InputError(
                    f"{name} is {prompt!r:.60} ({type(prompt).__name__}), expected text or a list of token "
                    "ids, all whole numbers."
                )
            if len(prompt) < fewest:
                raise InputError(
                    f"{name} has {len(prompt)} tokens, expected {fewest} or more: each token is scored "
                    "after those before it."
                )
            if len(prompt) == 0:
                if not self.stop_ids:
                    raise InputError(
                        f"{name} is empty, and {self.name} names no end-of-text token to "
                        "start from. Give at least one token."
                    )
                prompt = [min(self.stop_ids)]
            found.append(checked(self.decoder, name, prompt))
        return found

    def _limits(
        self,
        max_new_tokens: int,
        stop_tokens: Sequence[int] | None,
        deadline: float | None,
        cancelled: Callable[[], bool] | None,
        at_context: str,
    ) -> Limits:
        ids: Any = self.stop_ids if stop_tokens is None else stop_tokens
        expected = f"expected ids from 0 to {self.decoder.vocabulary_size - 1}; strings go into stop"
        if not isinstance(ids, Iterable):
            raise InputError(f"stop_tokens is {ids!r}, expected a list: [{ids!r}].")
        ids = list(ids)
        for i in ids:
            whole = isinstance(i, int | np.integer) and not isinstance(i, bool)
            if not whole or not 0 <= i < self.decoder.vocabulary_size:
                raise InputError(f"stop_tokens has {i!r}, {expected}.")
        return Limits(max_new_tokens, frozenset(ids), deadline, cancelled, at_context)


class _Text:
    """A text that is being made."""

    def __init__(self, tokenizer: Any, stop: Sequence[str], prompt: Sequence[int]) -> None:
        self.pieces = None if tokenizer is None else Pieces(tokenizer.decode, stop, prompt)
        self.last = ""
        self._parts: list[str] = []
        self._tokens: list[Token] = []

    def ends(self, token: int, limits: Limits) -> bool:
        """Takes the token's text, and says whether a stop string is reached."""
        self.last = ""
        if self.pieces is None or token in limits.stop_ids:
            return False
        self.last = self.pieces.add(token)
        return self.pieces.stopped

    def add(self, token: Token) -> None:
        self._tokens.append(token)
        self._parts.append(self.last)

    def of(self, found: Found, limits: Limits, log_probabilities: bool) -> Generation:
        """The text of a beam."""
        for place, token in enumerate(found.ids):
            self.ends(token, limits)
            finish = found.finish if place == len(found.ids) - 1 else None
            self.add(Token(0, token, found.log_probabilities[place], finish))
        return dataclasses.replace(self.done(log_probabilities), score=found.score)

    def done(self, log_probabilities: bool) -> Generation:
        text = None if self.pieces is None else "".join(self._parts) + self.pieces.end()
        finish = self._tokens[-1].finish
        assert finish is not None
        found = tuple(t.log_probability for t in self._tokens if t.log_probability is not None)
        return Generation(
            text, tuple(t.id for t in self._tokens), finish, found if log_probabilities else None
        )


class _Ending:
    """Looks for stop strings in the texts of beams."""

    def __init__(self, pieces: Pieces | None) -> None:
        self._pieces = pieces

    def after(self, token: int) -> tuple[_Ending, bool]:
        if self._pieces is None:
            return self, False
        pieces = self._pieces.copy()
        pieces.add(token)
        return _Ending(pieces), pieces.stopped


def _is_one(prompts: Any) -> bool:
    if isinstance(prompts, str):
        return True
    if isinstance(prompts, np.ndarray) and prompts.ndim > 0:
        return prompts.ndim == 1 and prompts.dtype.kind not in "OU"
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise InputError(
            f"The prompt is {prompts!r:.60} ({type(prompts).__name__}), expected text, token ids, or a list "
            "of these."
        )
    return bool(prompts) and all(isinstance(x, int | np.integer) for x in prompts)


def _sampling(options: Mapping[str, Any], method: Callable[..., Any]) -> Sampling:
    """The sampling options; raises a ConfigError for an option that neither they nor the method have."""
    for name in options:
        if name not in SAMPLING:
            parameters = inspect.signature(method).parameters.values()
            known = [x.name for x in parameters if x.kind is inspect.Parameter.KEYWORD_ONLY]
            raise ConfigError(
                f"{method.__name__} has no option {name!r}. {nearest(name, (*known, *SAMPLING))}"
            )
    return Sampling(**options)


def _beams(
    num_beams: int,
    length_penalty: float | None,
    early_stopping: bool | str | None,
    samples: int,
    options: Sampling,
    limits: Limits,
) -> BeamSearch | None:
    given = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    given = {name: value for name, value in given.items() if value is not None}
    beams = BeamSearch(num_beams, **given)
    if beams.num_beams == 1:
        for name, value in given.items():
            raise ConfigError(
                f"{name}={value!r} was given without beams. Give num_beams, 2 or more, as well."
            )
        return None
    if options.samples:
        raise ConfigError(
            f"num_beams is {num_beams}, but tokens are to be drawn: a beam search takes the best. Leave "
            "do_sample, temperature, top_k, top_p, min_p and seed out, or num_beams."
        )
    if samples > beams.num_beams:
        raise ConfigError(
            f"samples is {samples}, but num_beams is {num_beams}: there are as many continuations as beams."
        )
    if limits.at_context == "slide":
        raise ConfigError(
            "at_context='slide' was given with num_beams: beams end with the context. Leave one of them out."
        )
    return beams


def _strings(stop: str | Sequence[str], tokenizer: Any) -> list[str]:
    strings = [stop] if isinstance(stop, str) or not isinstance(stop, Iterable) else list(stop)
    if not all(isinstance(s, str) and s for s in strings):
        raise ConfigError(f"stop is {stop!r}, expected strings that are not empty; ids go into stop_tokens.")
    if strings and tokenizer is None:
        raise InputError("stop has strings, but the folder has no tokenizer to find them. Use stop_tokens.")
    return strings
