"""Text generation with an encoder-decoder: its decoder, after encoded sources."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from keras_tx.errors import ConfigError, InputError
from keras_tx.generation.decoding_loop import Decoder, Limits, score
from keras_tx.generation.generator import NO_DEFAULTS, BaseGenerator, Prompt, Scored, is_one, one_text
from keras_tx.generation.next_tokens import NextTokens, check_top_k, next_tokens

TAG = re.compile(r"\s*(>>[^<>]+<<)")  # the target language of a source, in models of several languages


class EncoderDecoder(Decoder, Protocol):
    """An encoder, and a decoder whose cache holds the encoded sources of its rows.

    Attributes:
        source_context: maximum number of tokens of a source.
    """

    source_context: int

    def encode(self, ids: np.ndarray, mask: np.ndarray) -> Any:
        """Encodes sources (batch, tokens), whose mask is 0 for padding.

        Returns:
            The cache of the first run of the decoder, which is never run without one. `select` selects the
            encoded sources too.
        """
        ...


class SourceDecoder:
    """The decoder of some encoded sources, as the loop's Decoder: the prefill attends to them."""

    def __init__(self, model: EncoderDecoder, sources: Sequence[Sequence[int]]) -> None:
        self.vocabulary_size = model.vocabulary_size
        self.context = model.context
        self._model = self.network = model
        longest = max(map(len, sources))
        ids, mask = (np.zeros((len(sources), longest), "int64") for _ in range(2))
        for row, source in enumerate(sources):
            ids[row, : len(source)] = source
            mask[row, : len(source)] = 1
        self._encoded = model.encode(ids, mask)

    def run(
        self,
        ids: np.ndarray,
        mask: np.ndarray,
        positions: np.ndarray,
        past: Any,
        all_logits: bool,
        room: int = 0,
    ) -> tuple[np.ndarray, Any]:
        if past is None:  # the prefill, which runs once; later only the cache holds the sources
            past, self._encoded = self._encoded, None
        return self._model.run(ids, mask, positions, past, all_logits, room)

    def select(self, past: Any, rows: Sequence[int], first: int = 0) -> Any:
        return self._model.select(past, rows, first)


class Seq2SeqGenerator(BaseGenerator):
    """Generates, streams and scores texts with an encoder-decoder.

    A source is a string if there is a tokenizer, or token ids with all special tokens that the model needs,
    such as its end-of-text token. It may be neither empty nor longer than the encoder's context.

    Args:
        model: the encoder-decoder.
        start_id: the first token of the decoder.
        stop_ids: the end-of-text tokens.
        name: name of the model in error messages.
        tokenizer: a tokenizers.Tokenizer, or None.
        target_tokenizer: that of target texts, if it differs.
        defaults: options of `generate` and `stream`, by name, where a call has no others.
    """

    KIND = "source"
    caches_prompts = False

    def __init__(
        self,
        model: EncoderDecoder,
        start_id: int,
        stop_ids: frozenset[int],
        name: str,
        tokenizer: Any,
        target_tokenizer: Any = None,
        defaults: Mapping[str, Any] = NO_DEFAULTS,
    ) -> None:
        super().__init__(model, stop_ids, name, tokenizer, defaults)
        self.model = model
        self.start_id = start_id
        self.target_tokenizer = target_tokenizer or tokenizer

    def next(self, source: Prompt, target: Prompt = "", *, top_k: int = 10) -> NextTokens:
        """Returns the most probable next tokens of a target.

        Args:
            source: one source.
            target: the beginning of its target: a text, or ids without the start token. Tokens that the
                tokenizer adds at the end of a text, such as the end-of-text token, are omitted.
            top_k: number of tokens.

        Returns:
            A list of NextToken (`id`, `text`, `probability`, `log_probability`), most probable first, which
            prints as a table. Probabilities are those of the model: penalty and constraints are not applied.

        Raises:
            InputError: if the source or target is not valid or too long, or the source is empty.
            ConfigError: if top_k is below 1 or above the size of the vocabulary.

        Example:

        >>> translator.next("Io la sto mangiando", "I am")[0].text  # doctest: +SKIP
        ' eating'
        """
        (source_ids,) = self._ids([one_text("next", self.KIND, source)])
        self._check_length(f"{self.KIND} 0", source_ids)
        ids = [self.start_id, *self._beginning(one_text("next", "target", target))]
        if len(ids) > self.model.context:
            raise InputError(
                f"target has {len(ids)} tokens with the start token, but the decoder's context is "
                f"{self.model.context}. Shorten it."
            )
        top_k = check_top_k(top_k, self.model.vocabulary_size)
        decoder = SourceDecoder(self.model, [source_ids])
        return next_tokens(decoder, ids, self.target_tokenizer, top_k)

    def score(self, sources: Prompt | Sequence[Prompt], targets: Prompt | Sequence[Prompt]) -> Any:
        """Computes the log probability of each token of a target, after its source.

        Args:
            sources: a source, or a list of them.
            targets: the target of each source; ids without the start token.

        Returns:
            A Scored, whose ids begin with the start token; for several targets, a list of them.

        Raises:
            InputError: if a source or target is not valid, empty or too long, or their numbers differ.
        """
        single = is_one(sources)
        if single != is_one(targets) and len(targets):
            raise InputError("sources and targets are a single text and a list. Pass two texts or two lists.")
        source_ids = self._ids([sources] if single else sources)
        target_ids = self._ids([targets] if single else targets, "target", self.target_tokenizer)
        if len(source_ids) != len(target_ids):
            raise InputError(f"There are {len(source_ids)} sources, but {len(target_ids)} targets.")
        for index, (source, target) in enumerate(zip(source_ids, target_ids, strict=True)):
            self._check_length(f"source {index}", source)
            if len(target) > self.model.context:
                raise InputError(
                    f"target {index} has {len(target)} tokens, but the decoder's context is "
                    f"{self.model.context}. Shorten it."
                )
        results = []
        for source, target in zip(source_ids, target_ids, strict=True):
            ids = [self.start_id, *target]
            log_probabilities = score(SourceDecoder(self.model, [source]), ids)
            results.append(Scored(tuple(ids), tuple(log_probabilities.tolist())))
        return results[0] if single else results

    def _start_length(self, ids: list[list[int]]) -> int:
        return 1

    def condition(self, ids: list[list[int]]) -> tuple[Decoder, list[list[int]]]:
        return SourceDecoder(self.model, ids), [[self.start_id] for _ in ids]

    def _ids(
        self, prompts: Any, kind: str | None = None, tokenizer: Any = None, fewest: int = 0
    ) -> list[list[int]]:
        for index, prompt in enumerate(prompts):
            if isinstance(prompt, str) and not prompt.strip():
                self._if_empty(f"{kind or self.KIND} {index}")
            if isinstance(prompt, str) and kind is None:
                self._check_language(index, prompt)
        return super()._ids(prompts, kind, tokenizer, fewest)

    def _check_language(self, index: int, source: str) -> None:
        """Raises an InputError for a tag without text, or of a language that the vocabulary does not have."""
        tag = TAG.match(source)
        if tag is None or self.tokenizer is None:
            return
        if self.tokenizer.token_to_id(tag[1]) is not None:
            if not source[tag.end() :].strip():
                raise empty_source(f"{self.KIND} {index}")
            return
        known = sorted(token for token in self.tokenizer.get_vocab() if TAG.fullmatch(token))
        if known:
            raise InputError(
                f"source {index} begins with {tag[1]!r}, which is not a language of {self.name}. "
                f"Its languages are {', '.join(known)}."
            )

    def _beginning(self, target: Any) -> list[int]:
        """The ids of an unfinished target."""
        if not len(target):
            return []
        if isinstance(target, str) and self.target_tokenizer is not None:
            encoding = self.target_tokenizer.encode(target)
            count = len(encoding.ids)
            while count and encoding.special_tokens_mask[count - 1]:  # added by the tokenizer
                count -= 1
            target = encoding.ids[:count]
        return super()._ids([target], "target", self.target_tokenizer)[0]

    def _if_empty(self, name: str) -> list[int]:
        raise empty_source(name)

    def _check_length(self, name: str, ids: list[int], limits: Limits | None = None) -> None:
        if limits is not None and limits.at_context != "stop":
            raise ConfigError(
                f"at_context={limits.at_context!r} is not supported by an encoder-decoder. Omit it."
            )
        if len(ids) > self.model.source_context:
            raise InputError(
                f"{name} has {len(ids)} tokens, but the encoder's context is {self.model.source_context}. "
                "Shorten it."
            )


def empty_source(name: str) -> InputError:
    """The error for a source or target without tokens."""
    return InputError(f"{name} is empty. Pass at least one token.")
