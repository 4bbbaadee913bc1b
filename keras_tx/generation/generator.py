"""Generates, streams and scores texts with a model that has a cache."""

from __future__ import annotations

import dataclasses
import inspect
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, InputError, nearest, true_or_false, whole_number
from keras_tx.generation.beam_search import BeamSearch, Hypothesis, search
from keras_tx.generation.constraints import CONSTRAINTS, Constraints
from keras_tx.generation.decoding_loop import (
    Cancelled,
    Decoder,
    Limits,
    PromptCache,
    Token,
    check_ids,
    check_length,
    decode,
    score,
)
from keras_tx.generation.grammar import Grammar, GrammarCompiler, TextGrammar
from keras_tx.generation.next_tokens import NextTokens, check_top_k, next_tokens
from keras_tx.generation.sampling import Sampling
from keras_tx.processing.detokenizer import Detokenizer
from keras_tx.processing.stop_strings import StopStringCriterion

Prompt = str | Sequence[int] | np.ndarray
SAMPLING = tuple(field.name for field in dataclasses.fields(Sampling))
NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})
BEAMS = ("length_penalty", "early_stopping", "renormalize_logits")
STOP_STRINGS = "stop_strings"
LONG = 2000  # characters of a text that is encoded as a batch
FORCED = ("forced_bos_token_id", "forced_eos_token_id")


@dataclasses.dataclass(frozen=True)
class Generation:
    """A generated text. `str()` returns the text.

    Attributes:
        text: the text without its prompt and stop string; None if there is no tokenizer.
        ids: the new tokens, a stop token included.
        finish: "stop" (a stop token, a stop string or a complete grammar), "length", "context", "deadline" or
            "cancelled".
        log_probabilities: of each token, if requested.
        score: of beam search; see `BeamSearch`.
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
    """The log probability of each token of a text but the first.

    Attributes:
        ids: all tokens.
        log_probabilities: of all tokens but the first.
    """

    ids: tuple[int, ...]
    log_probabilities: tuple[float, ...]

    @property
    def total(self) -> float:
        """The log probability of the text."""
        return math.fsum(self.log_probabilities)

    @property
    def perplexity(self) -> float:
        """The exponential of the mean negative log probability."""
        return math.exp(-self.total / len(self.log_probabilities))


@dataclasses.dataclass(frozen=True)
class Request:
    """The options of a call, checked."""

    samples: int
    limits: Limits
    strings: list[str]
    stop_strings: list[str]
    sampling: Sampling
    constraints: Constraints
    beams: BeamSearch | None
    log_probabilities: bool
    grammar: Grammar | None


class BaseGenerator:
    """Generates and streams texts; the base class of Generator and Seq2SeqGenerator.

    Args:
        decoder: the model.
        stop_ids: the end-of-text tokens.
        name: name of the model in error messages.
        tokenizer: a tokenizers.Tokenizer, or None.
        defaults: options of `generate` and `stream`, by name, where a call has no others.

    Raises:
        ConfigError: if a default is out of range.
    """

    KIND = "prompt"  # the name of an input in error messages
    caches_prompts = True  # whether `stream` accepts a PromptCache

    def __init__(
        self,
        decoder: Decoder,
        stop_ids: frozenset[int],
        name: str,
        tokenizer: Any,
        defaults: Mapping[str, Any] = NO_DEFAULTS,
    ) -> None:
        self.decoder = decoder
        self.stop_ids = stop_ids
        self.name = name
        self.tokenizer = tokenizer
        self.target_tokenizer = tokenizer  # decodes the new tokens
        self.defaults = defaults
        self._next_token({}, self.generate)
        self._beam_search(None, (None, None, None), 1, Sampling(), Limits())

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """Compiles grammars for the new tokens."""
        return GrammarCompiler(self.target_tokenizer, self.decoder.vocabulary_size)

    def condition(self, ids: list[list[int]]) -> tuple[Decoder, list[list[int]]]:
        """The decoder of some inputs, and the tokens with which their texts begin."""
        raise NotImplementedError

    def _if_empty(self, name: str) -> list[int]:
        """The ids of an empty input, or an InputError."""
        raise NotImplementedError

    def _check_length(self, name: str, ids: list[int], limits: Limits) -> None:
        """Raises an InputError for an input that is too long."""
        raise NotImplementedError

    def _start_length(self, ids: list[list[int]]) -> int:
        """The number of tokens in the decoder's context before the first new one."""
        return max(map(len, ids), default=1)

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
        cancelled: Cancelled | None = None,
        at_context: str = "stop",
        num_beams: int | None = None,
        length_penalty: float | None = None,
        early_stopping: bool | str | None = None,
        renormalize_logits: bool | None = None,
        regex: str | None = None,
        json_schema: dict[str, Any] | str | None = None,
        batch_size: int = 32,
        **options: Any,
    ) -> Any:
        """Generates texts. Prompts of similar length run in one batch, with the results of each alone.

        Args:
            prompts: a prompt, or a list of prompts. The prompt of an encoder-decoder is its source.
            samples: number of texts for each prompt, which is prefilled once. They differ only if tokens are
                drawn at random, or in a beam search.
            max_new_tokens: maximum number of new tokens.
            stop: strings before which a text ends; requires a tokenizer.
            stop_tokens: ids that end a text, instead of the end-of-text tokens; [] for none.
            log_probabilities: whether to return those of the model, before penalty and temperature.
            deadline: seconds after which no new token is started.
            cancelled: a function that is called before each token; all texts end when it returns True. A list
                has one for each prompt, whose texts it ends.
            at_context: "stop", or "slide" to continue beyond the model's context with its last half.
            num_beams: above 1 a beam search for the most probable text; see `BeamSearch`. By default that of
                the model, or 1.
            length_penalty: option of beam search.
            early_stopping: option of beam search.
            renormalize_logits: option of beam search.
            regex: a regular expression that the whole text matches; see `Grammar`. A text that ends for
                another reason than "stop", such as max_new_tokens, matches its beginning.
            json_schema: a JSON schema to which the text conforms, as a dict or a string.
            batch_size: number of prompts that run together.
            options: do_sample, temperature, top_k, top_p, min_p, repetition_penalty and seed; see
                `Sampling`. Greedy by default. And bad_words_ids, suppress_tokens, begin_suppress_tokens,
                allowed_ids, forced_bos_token_id, forced_eos_token_id, no_repeat_ngram_size and
                min_new_tokens; see `Constraints`. And stop_strings, as in transformers: a text ends after the
                token that completes one; None for none, not those of the model.

        Returns:
            A Generation. For several prompts a list of them; with `samples`, a list for each prompt.

        Raises:
            InputError: if a prompt is not valid or longer than the context.
            ConfigError: if an option is unknown, out of range, or in conflict with another.
        """
        single = is_one(prompts)
        ids = self._ids([prompts] if single else prompts)
        limits = self._limits(max_new_tokens, stop_tokens, deadline, cancelled, at_context, len(ids))
        for index, prompt in enumerate(ids):
            self._check_length(f"{self.KIND} {index}", prompt, limits)
        strings = checked_strings("stop", stop, self.target_tokenizer)
        grammar = self._grammar(regex, json_schema, strings, num_beams, options)
        sampling, constraints = self._next_token(options, self.generate, grammar)
        self._check_effect(options, constraints, limits, ids)
        count = 1 if samples is None else whole_number("samples", samples)
        request = Request(
            count,
            limits,
            strings,
            self._stop_strings(options, grammar),
            sampling,
            constraints,
            self._beam_search(
                1 if grammar else num_beams,
                (length_penalty, early_stopping, renormalize_logits),
                count,
                sampling,
                limits,
            ),
            true_or_false("log_probabilities", log_probabilities),
            grammar,
        )
        groups = self._batches(ids, request, whole_number("batch_size", batch_size))
        results: list[Any] = groups if samples is not None else [one for (one,) in groups]
        return results[0] if single else results

    def _batches(self, ids: list[list[int]], request: Request, size: int) -> list[list[Generation]]:
        """The texts of each prompt; the longest prompts run first, so that memory does not grow later."""
        began = time.monotonic()
        results: list[list[Generation]] = [[] for _ in ids]
        order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
        for start in range(0, len(order), size):
            batch = order[start : start + size]
            limits = request.limits.of(batch)
            limits = limits.after(time.monotonic() - began) if start else limits
            groups = self._batch([ids[index] for index in batch], dataclasses.replace(request, limits=limits))
            for index, group in zip(batch, groups, strict=True):
                results[index] = group
        return results

    def _batch(self, ids: list[list[int]], request: Request) -> list[list[Generation]]:
        decoder, prompts = self.condition(ids)
        texts = [[self.text_of(request, prompt) for _ in range(request.samples)] for prompt in prompts]
        run = _decode if request.beams is None else _search
        return run(decoder, prompts, request, texts)

    def stream(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = 128,
        stop: str | Sequence[str] = (),
        stop_tokens: Sequence[int] | None = None,
        deadline: float | None = None,
        cancelled: Cancelled | None = None,
        at_context: str = "stop",
        regex: str | None = None,
        json_schema: dict[str, Any] | str | None = None,
        as_ids: bool = False,
        prompt_cache: PromptCache | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """Generates a text and returns an iterator over its pieces.

        A piece consists of whole characters, and never contains part of a stop string. The iterator may be
        closed at any time. A stream has no beam search, even if the model's defaults have one.

        Args:
            prompt: one prompt.
            as_ids: whether to yield token ids instead of text, as without tokenizer.
            prompt_cache: pass the same PromptCache to several calls, and the beginning that a prompt shares
                with the previous text is not prefilled again.
            max_new_tokens: and the other options: see `generate`.

        Raises:
            InputError: if there are several prompts, or the prompt is not valid or too long.
            ConfigError: if an option is unknown or out of range.
        """
        true_or_false("as_ids", as_ids)
        if prompt_cache is not None and not self.caches_prompts:
            raise ConfigError("prompt_cache= is not supported by an encoder-decoder. Omit it.")
        if prompt_cache is not None and not isinstance(prompt_cache, PromptCache):
            raise ConfigError(
                f"prompt_cache is {prompt_cache!r}, expected a keras_tx.generation.PromptCache."
            )
        if prompt_cache is not None:
            prompt_cache.check(self.decoder)
        ids, request = self.check_stream(
            self.stream,
            prompt,
            max_new_tokens=max_new_tokens,
            stop=stop,
            stop_tokens=stop_tokens,
            deadline=deadline,
            cancelled=cancelled,
            at_context=at_context,
            regex=regex,
            json_schema=json_schema,
            options=options,
        )
        return self._pieces(ids, request, as_ids or self.target_tokenizer is None, prompt_cache)

    def check_stream(
        self,
        method: Callable[..., Any],
        prompt: Prompt,
        *,
        max_new_tokens: int,
        stop: str | Sequence[str],
        stop_tokens: Sequence[int] | None,
        deadline: float | None,
        options: Mapping[str, Any],
        cancelled: Cancelled | None = None,
        at_context: str = "stop",
        regex: str | None = None,
        json_schema: dict[str, Any] | str | None = None,
        log_probabilities: bool = False,
    ) -> tuple[list[int], Request]:
        """The ids and the checked options of a call of `method` that generates one text.

        Raises:
            InputError: if there are several prompts, or the prompt is not valid or too long.
            ConfigError: if an option is unknown or out of range.
        """
        if not is_one(prompt):
            raise InputError(f"{method.__name__} accepts one prompt, not {len(prompt)}. Call it for each.")
        (ids,) = self._ids([prompt])
        limits = self._limits(max_new_tokens, stop_tokens, deadline, cancelled, at_context, 1)
        self._check_length(f"{self.KIND} 0", ids, limits)
        strings = checked_strings("stop", stop, self.target_tokenizer)
        grammar = self._grammar(regex, json_schema, strings, None, options)
        sampling, constraints = self._next_token(options, method, grammar)
        self._check_effect(options, constraints, limits, [ids])
        kept = self._stop_strings(options, grammar)
        return ids, Request(1, limits, strings, kept, sampling, constraints, None, log_probabilities, grammar)

    def text_of(self, request: Request, prompt: list[int]) -> DecodedText:
        """The text of a call, before its first token."""
        grammar = request.grammar and self.grammars.start(request.grammar, prompt, request.limits.stop_ids)
        return DecodedText(self.target_tokenizer, request.strings, request.stop_strings, prompt, grammar)

    def _pieces(
        self, ids: list[int], request: Request, as_ids: bool, prompt_cache: PromptCache | None
    ) -> Iterator[Any]:
        decoder, (prompt,) = self.condition([ids])
        text = self.text_of(request, prompt)
        steps = decode(
            decoder,
            [prompt],
            request.sampling,
            request.limits,
            constraints=request.constraints,
            ends=lambda row, token: text.ends(token, request.limits),
            grammars=text.grammar and [text.grammar],
            prompt_cache=prompt_cache,
        )
        for (token,) in steps:
            text.add(token)
            if as_ids:
                yield token.id
            elif text.last:
                yield text.last

    def _ids(
        self, prompts: Any, kind: str | None = None, tokenizer: Any = None, fewest: int = 0
    ) -> list[list[int]]:
        """The token ids of texts; raises an InputError for one with fewer than `fewest` tokens.

        `kind` is the name of a text in error messages.
        """
        tokenizer = tokenizer or self.tokenizer
        results = []
        for index, prompt in enumerate(prompts):
            name = f"{kind or self.KIND} {index}"
            if isinstance(prompt, str):
                if tokenizer is None:
                    raise InputError(
                        f"{name} is text, but {self.name} has no {contract.TOKENIZER}. Pass token "
                        "ids, or export with tokenizer=."
                    )
                prompt = text_ids(tokenizer, prompt)
            elif isinstance(prompt, bytes) or not isinstance(prompt, Sequence | np.ndarray):
                raise InputError(
                    f"{name} is {prompt!r:.60} ({type(prompt).__name__}), expected text or a list of token "
                    "ids."
                )
            if len(prompt) < fewest:
                raise InputError(
                    f"{name} has {len(prompt)} tokens, expected at least {fewest}: the first token has no "
                    "probability."
                )
            results.append(check_ids(self.decoder, name, prompt if len(prompt) else self._if_empty(name)))
        return results

    def _check_effect(
        self, options: Mapping[str, Any], constraints: Constraints, limits: Limits, ids: list[list[int]]
    ) -> None:
        """Raises a ConfigError for constraints of a call that a text cannot fulfil, or that have no effect.

        As defaults of a model they are permitted, as in transformers.
        """
        fewest = (constraints.min_new_tokens or 0) if "min_new_tokens" in options else 0
        if fewest > limits.max_new_tokens:
            raise ConfigError(
                f"min_new_tokens is {fewest}, but max_new_tokens is {limits.max_new_tokens}. Pass a larger "
                "max_new_tokens."
            )
        room = self.decoder.context + 1 - self._start_length(ids)
        if limits.at_context == "stop" and fewest > room:
            raise ConfigError(
                f"min_new_tokens is {fewest}, but the decoder's context of {self.decoder.context} tokens has "
                f"room for {room}."
            )
        first = constraints.forced_bos_token_id
        longest = self._start_length(ids)
        if "forced_bos_token_id" in options and first is not None and longest > 1:
            raise ConfigError(
                f"forced_bos_token_id is {first}, which has no effect after a prompt of {longest} tokens. "
                "Add the token to the end of the prompt."
            )
        words = constraints.bad_words_ids or ()
        for word in words if "bad_words_ids" in options else ():
            if len(word) == 1 and word[0] in limits.stop_ids:
                raise ConfigError(
                    f"bad_words_ids has {list(word)}, a stop token, which it does not exclude. Pass it as "
                    "suppress_tokens."
                )

    def _grammar(
        self,
        regex: Any,
        json_schema: Any,
        strings: list[str],
        num_beams: int | None,
        options: Mapping[str, Any],
    ) -> Grammar | None:
        """The grammar of a call; raises a ConfigError for options that could break it."""
        if regex is None and json_schema is None:
            return None
        grammar = Grammar(regex, json_schema)
        others = {name: options[name] for name in FORCED if options.get(name) is not None}
        if strings:
            others["stop"] = strings
        if options.get(STOP_STRINGS):
            others[STOP_STRINGS] = options[STOP_STRINGS]
        if num_beams not in (None, 1):
            others["num_beams"] = num_beams
        for name, value in others.items():
            raise ConfigError(f"{name}={value!r} is not supported with {grammar}. Omit one of them.")
        self.grammars.check(grammar)
        return grammar

    def _next_token(
        self, options: Mapping[str, Any], method: Callable[..., Any], grammar: Grammar | None = None
    ) -> tuple[Sampling, Constraints]:
        """The options that choose a token; raises a ConfigError for one that nothing has.

        The model's own forced tokens are for texts without a grammar.
        """
        for name in options:
            if name not in (*SAMPLING, *CONSTRAINTS, STOP_STRINGS):
                parameters = inspect.signature(method).parameters.values()
                known = [x.name for x in parameters if x.kind is inspect.Parameter.KEYWORD_ONLY]
                raise ConfigError(
                    f"{method.__name__} has no option {name!r}. "
                    f"{nearest(name, (*known, *SAMPLING, *CONSTRAINTS, STOP_STRINGS))}"
                )
        options = {**self.defaults, **options, **(dict.fromkeys(FORCED) if grammar else {})}
        sampling = Sampling(**{name: value for name, value in options.items() if name in SAMPLING})
        constraints = Constraints(**{name: value for name, value in options.items() if name in CONSTRAINTS})
        constraints.check(self.decoder.vocabulary_size)
        return sampling, constraints

    def _stop_strings(self, options: Mapping[str, Any], grammar: Grammar | None) -> list[str]:
        """Strings after which a text ends; the model's own ones are for texts without a grammar."""
        own = None if grammar else self.defaults.get(STOP_STRINGS)
        if own and STOP_STRINGS not in options and self.target_tokenizer is None:
            raise InputError(
                f"The model's own stop_strings are {own!r}, but {self.name} has no tokenizer. Pass "
                "stop_strings=None, or export the model with tokenizer=."
            )
        return checked_strings(STOP_STRINGS, options.get(STOP_STRINGS, own) or (), self.target_tokenizer)

    def _beam_search(
        self,
        num_beams: int | None,
        values: tuple[float | None, bool | str | None, bool | None],
        samples: int,
        sampling: Sampling,
        limits: Limits,
    ) -> BeamSearch | None:
        """The options of beam search; None for one beam. `values` are those of BEAMS.

        The model's own number of beams is for calls that can search.
        """
        searches = not sampling.samples and limits.at_context == "stop"
        own: int = self.defaults.get("num_beams", 1) if searches else 1
        num_beams = own if num_beams is None else num_beams
        options: dict[str, Any] = dict(zip(BEAMS, values, strict=True))
        options = {name: value for name, value in options.items() if value is not None}
        if num_beams != 1:
            options = {**{name: self.defaults[name] for name in BEAMS if name in self.defaults}, **options}
        return _checked_beams(BeamSearch(num_beams, **options), options, samples, sampling, limits)

    def _limits(
        self,
        max_new_tokens: int,
        stop_tokens: Sequence[int] | None,
        deadline: float | None,
        cancelled: Cancelled | None,
        at_context: str,
        prompts: int,
    ) -> Limits:
        ids: Any = self.stop_ids if stop_tokens is None else stop_tokens
        if not isinstance(ids, Iterable):
            raise InputError(f"stop_tokens is {ids!r}, expected a list: [{ids!r}].")
        ids = list(ids)
        for i in ids:
            whole = isinstance(i, int | np.integer) and not isinstance(i, bool)
            if not whole or not 0 <= i < self.decoder.vocabulary_size:
                raise InputError(
                    f"stop_tokens has {i!r}, expected ids from 0 to {self.decoder.vocabulary_size - 1}. Pass "
                    "strings as stop."
                )
        if isinstance(cancelled, list | tuple) and len(cancelled) != prompts:
            raise ConfigError(
                f"cancelled has {len(cancelled)} functions, expected one for each of {prompts} {self.KIND}s."
            )
        return Limits(max_new_tokens, frozenset(ids), deadline, cancelled, at_context)


class Generator(BaseGenerator):
    """Generates, streams and scores texts with a decoder.

    A prompt is a string if there is a tokenizer, or token ids. An empty prompt starts from the end-of-text
    token.
    """

    def condition(self, ids: list[list[int]]) -> tuple[Decoder, list[list[int]]]:
        return self.decoder, ids

    def _if_empty(self, name: str) -> list[int]:
        if not self.stop_ids:
            raise InputError(
                f"{name} is empty, and {self.name} has no end-of-text token to start from. Pass at least one "
                "token."
            )
        return [min(self.stop_ids)]

    def _check_length(self, name: str, ids: list[int], limits: Limits) -> None:
        check_length(self.decoder, name, ids, limits)

    def next(self, prompt: Prompt, *, top_k: int = 10) -> NextTokens:
        """Returns the most probable next tokens of a text.

        Args:
            prompt: one prompt.
            top_k: number of tokens.

        Returns:
            A list of NextToken (`id`, `text`, `probability`, `log_probability`), most probable first, which
            prints as a table. Probabilities are those of the model: temperature, penalty and constraints are
            not applied.

        Raises:
            InputError: if there are several prompts, or the prompt is not valid or longer than the context.
            ConfigError: if top_k is below 1 or above the size of the vocabulary.

        Example:

        >>> poet.next("Once upon a", top_k=3)[0].text  # doctest: +SKIP
        ' time'
        """
        (ids,) = self._ids([one_text("next", "prompt", prompt)])
        check_length(self.decoder, "prompt 0", ids)
        top_k = check_top_k(top_k, self.decoder.vocabulary_size)
        return next_tokens(self.decoder, ids, self.tokenizer, top_k)

    def score(self, texts: Prompt | Sequence[Prompt]) -> Any:
        """Computes the log probability of each token of a text.

        Args:
            texts: a text or its ids, of at least two tokens; or a list of these.

        Returns:
            A Scored; for several texts, a list of them.

        Raises:
            InputError: if a text is not valid, too short, or longer than the context.
        """
        single = is_one(texts)
        results = []
        for index, ids in enumerate(self._ids([texts] if single else texts, "text", fewest=2)):
            check_length(self.decoder, f"text {index}", ids)
            results.append(Scored(tuple(map(int, ids)), tuple(score(self.decoder, ids).tolist())))
        return results[0] if single else results


class DecodedText:
    """A text during its generation."""

    def __init__(
        self,
        tokenizer: Any,
        stop: Sequence[str],
        stop_strings: Sequence[str],
        prompt: Sequence[int],
        grammar: TextGrammar | None,
    ) -> None:
        self.grammar = grammar
        self.detokenizer = None if tokenizer is None else Detokenizer(tokenizer.decode, stop, prompt)
        self.criterion = None
        if stop_strings and tokenizer is not None:
            decode = partial(tokenizer.decode, skip_special_tokens=False)
            self.criterion = StopStringCriterion(decode, stop_strings, prompt)
        self.last = ""
        self._parts: list[str] = []
        self._tokens: list[Token] = []

    def ends(self, token: int, limits: Limits) -> bool:
        """Decodes a token; returns whether the text ends with a stop string."""
        self.last = ""
        if self.detokenizer is None or token in limits.stop_ids:
            return False
        self.last = self.detokenizer.add(token)
        completed = self.criterion is not None and self.criterion.add(token)
        return completed or self.detokenizer.stopped

    def add(self, token: Token) -> None:
        """Appends a token; `last` is its text, of the last token with the characters that were held back."""
        if token.finish is not None and self.detokenizer is not None:
            self.last += self.detokenizer.end()
        self._tokens.append(token)
        self._parts.append(self.last)

    @property
    def text(self) -> str | None:
        """The text so far; None without a tokenizer."""
        return None if self.detokenizer is None else "".join(self._parts)

    def from_beam(self, beam: Hypothesis, limits: Limits, log_probabilities: bool) -> Generation:
        for place, token in enumerate(beam.ids):
            self.ends(token, limits)
            finish = beam.finish if place == len(beam.ids) - 1 else None
            self.add(Token(0, token, beam.log_probabilities[place], finish))
        return dataclasses.replace(self.result(log_probabilities), score=beam.score)

    def result(self, log_probabilities: bool, finish: str | None = None) -> Generation:
        """The generated text; `finish` is the reason if it ended after its last token."""
        text = None if self.detokenizer is None else "".join(self._parts) + self.detokenizer.end()
        finish = finish or self._tokens[-1].finish
        assert finish is not None
        probabilities = tuple(t.log_probability for t in self._tokens if t.log_probability is not None)
        ids = tuple(t.id for t in self._tokens)
        return Generation(text, ids, finish, probabilities if log_probabilities else None)


def _decode(
    decoder: Decoder, prompts: list[list[int]], request: Request, texts: list[list[DecodedText]]
) -> list[list[Generation]]:
    rows = [text for group in texts for text in group]
    steps = decode(
        decoder,
        prompts,
        request.sampling,
        request.limits,
        constraints=request.constraints,
        samples=request.samples,
        log_probabilities=request.log_probabilities,
        ends=lambda row, token: rows[row].ends(token, request.limits),
        grammars=request.grammar and [text.grammar for text in rows if text.grammar is not None],
    )
    for step in steps:
        for token in step:
            rows[token.row].add(token)
    return [[text.result(request.log_probabilities) for text in group] for group in texts]


def _search(
    decoder: Decoder, prompts: list[list[int]], request: Request, texts: list[list[DecodedText]]
) -> list[list[Generation]]:
    assert request.beams is not None
    best = search(
        decoder,
        prompts,
        request.beams,
        request.limits,
        [
            _StopStrings(group[0].detokenizer if request.strings else None, group[0].criterion)
            for group in texts
        ],
        constraints=request.constraints,
        repetition_penalty=request.sampling.repetition_penalty,
    )
    return [
        [
            text.from_beam(one, request.limits, request.log_probabilities)
            for text, one in zip(group, beams, strict=False)
        ]
        for group, beams in zip(texts, best, strict=True)
    ]


class _StopStrings:
    """The stop criterion of a beam: stop strings in its text."""

    def __init__(self, detokenizer: Detokenizer | None, criterion: StopStringCriterion | None) -> None:
        self._detokenizer = detokenizer
        self._criterion = criterion

    def after(self, token: int) -> tuple[_StopStrings, bool]:
        detokenizer = self._detokenizer and self._detokenizer.copy()
        criterion = self._criterion and self._criterion.copy()
        stopped = criterion is not None and criterion.add(token)
        if detokenizer is not None:
            detokenizer.add(token)
            stopped = stopped or detokenizer.stopped
        return _StopStrings(detokenizer, criterion), stopped


def is_one(prompts: Any) -> bool:
    """Whether the argument is one text or its ids, not a list of these."""
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


def text_ids(tokenizer: Any, text: str, *, add_special_tokens: bool = True) -> list[int]:
    """The token ids of a text. A long one is encoded as a batch, which lets other threads run meanwhile."""
    if len(text) <= LONG:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
    return tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids


def one_text(method: str, name: str, text: Any) -> Any:
    """Returns the argument if it is one text; raises an InputError for a list of texts."""
    if not is_one(text) and len(text):
        raise InputError(f"{method} accepts one {name}, not {len(text)}. Call it for each.")
    return text


def _checked_beams(
    beams: BeamSearch, options: Mapping[str, Any], samples: int, sampling: Sampling, limits: Limits
) -> BeamSearch | None:
    """The beam search, None for one beam; raises a ConfigError if it conflicts with other options."""
    num_beams = beams.num_beams
    if beams.num_beams == 1:
        for name, value in options.items():
            raise ConfigError(f"{name}={value!r} requires num_beams above 1.")
        return None
    if sampling.samples:
        raise ConfigError(
            f"num_beams={num_beams} is not supported with random sampling. Omit do_sample, temperature, "
            "top_k, top_p, min_p and seed, or num_beams."
        )
    if samples > beams.num_beams:
        raise ConfigError(f"samples={samples} is above num_beams={num_beams}. Pass at least as many beams.")
    if limits.at_context == "slide":
        raise ConfigError(
            f"at_context='slide' is not supported with num_beams={num_beams}. Omit one of them."
        )
    return beams


def checked_strings(name: str, value: Any, tokenizer: Any) -> list[str]:
    """Stop strings as a list; raises an error for anything else, or without a tokenizer."""
    strings = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    if not all(isinstance(s, str) and s for s in strings):
        raise ConfigError(
            f"{name} is {value!r}, expected strings that are not empty. Pass ids as stop_tokens."
        )
    if strings and tokenizer is None:
        raise InputError(f"{name} is {value!r}, but the folder has no tokenizer. Pass ids as stop_tokens.")
    return strings
