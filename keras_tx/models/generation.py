"""Text generation with a Keras model; the exported folder generates the same tokens, faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.generation import Generator, Seq2SeqGenerator
from keras_tx.heads import CausalLMHead, Seq2SeqLMHead
from keras_tx.layers.key_value_cache import KeyValueCache, caching
from keras_tx.models.encoder_decoder_model import EncoderDecoderModel
from keras_tx.models.generation_defaults import generation_defaults
from keras_tx.models.text_model import DecoderModel, GenerativeModel
from keras_tx.processing import tokenizer_files

GENERATIVE = (CausalLMHead, Seq2SeqLMHead)

STEP = 64  # tokens by which the cache grows; JAX compiles for each size


def generate(
    model: GenerativeModel,
    prompts: Any,
    *,
    tokenizer: Any = None,
    stop_tokens: Sequence[int] | None = None,
    **options: Any,
) -> Any:
    """Generates texts with a Keras model.

    An exported folder is many times faster, and generates the same tokens for the same seed if the model
    computes in float32.

    Args:
        model: a decoder with a CausalLMHead, such as `keras_tx.gpt("pico")`, or an encoder-decoder with a
            Seq2SeqLMHead, such as `keras_tx.t5("tiny")`.
        prompts: token ids or, if there is a tokenizer, text; or a list of prompts. The prompt of an
            encoder-decoder is its source.
        tokenizer: a tokenizers.Tokenizer; by default that of `model.processing`.
        stop_tokens: ids that end a text; by default `stop_ids` of the config, or the tokenizer's
            end-of-text token.
        options: of keras_tx.generation.Generator.generate: max_new_tokens, samples, stop,
            temperature, top_k, top_p, min_p, repetition_penalty, seed, num_beams, log_probabilities ...
            Their defaults are `config.generation`.

    Returns:
        A keras_tx.generation.Generation (`.text`, `.ids`, `.finish`); for a list of prompts, a list of them.

    Raises:
        ConfigError: if the model has no head that generates text, or an option is invalid.
        InputError: if a prompt is invalid or longer than the context, or the source of an encoder-decoder is
            empty.

    Example:

    >>> import keras_tx
    >>> model = keras_tx.gpt("pico")
    >>> len(generate(model, [5, 17, 99], max_new_tokens=4).ids)
    4
    """
    return generator_of(model, tokenizer, stop_tokens).generate(prompts, **options)


def stream(
    model: GenerativeModel,
    prompt: Any,
    *,
    tokenizer: Any = None,
    stop_tokens: Sequence[int] | None = None,
    **options: Any,
) -> Iterator[Any]:
    """Generates a text with a Keras model and yields it in pieces.

    Args:
        model: a decoder with a CausalLMHead, or an encoder-decoder with a Seq2SeqLMHead.
        prompt: token ids or, if there is a tokenizer, text.
        tokenizer: a tokenizers.Tokenizer; by default that of `model.processing`.
        stop_tokens: ids that end the text, as in `generate`.
        options: as in `generate`.

    Returns:
        An iterator of pieces of text, or of token ids if there is no tokenizer.

    Raises:
        ConfigError: if the model has no head that generates text, or an option is invalid.
        InputError: if the prompt is invalid or longer than the context.
    """
    return generator_of(model, tokenizer, stop_tokens).stream(prompt, **options)


def generator_of(
    model: Any, tokenizer: Any = None, stop_tokens: Sequence[int] | None = None
) -> Generator | Seq2SeqGenerator:
    """The generator of a Keras model; raises a ConfigError if the model has no head that generates text."""
    if not isinstance(model, GenerativeModel) or not isinstance(model.head, GENERATIVE):
        kind = type(model).__name__
        if isinstance(model, GenerativeModel):
            kind += f" with head={model.head}"
        raise ConfigError(
            f"model is a {kind}, expected a decoder with a CausalLMHead, such as a keras_tx.gpt, or an "
            "encoder-decoder with a Seq2SeqLMHead, such as a keras_tx.t5."
        )
    transform: Any = model.processing
    target = None
    if tokenizer is None and transform is not None:
        tokenizer = tokenizer_files.parse(transform.tokenizer)
        if transform.target_tokenizer is not None:
            target = tokenizer_files.parse(transform.target_tokenizer)
    stops = frozenset(model.stops() if stop_tokens is None else stop_tokens)
    name, defaults = f"model {model.name!r}", generation_defaults(model)
    if isinstance(model, DecoderModel):
        return Generator(_CachedModel(model), stops, name, tokenizer, defaults)
    decoder = _CachedEncoderDecoder(model)
    return Seq2SeqGenerator(decoder, model.start_id, stops, name, tokenizer, target, defaults)


class _CachedModel:
    """Implements keras_tx.generation's Decoder with a Keras model."""

    def __init__(self, model: DecoderModel) -> None:
        self.network = model
        assert model.encoded is not None
        tokens = model.encoded.tokens
        self._body, self._head = keras.Model(model.input, tokens), keras.Model(tokens, model.output)
        self.vocabulary_size: int = model.config.vocabulary_size
        self.context: int = model.config.max_length

    def _logits(self, inputs: dict[str, Any], all_logits: bool) -> Any:
        """The logits of all tokens, or of the last, whose projection is computed alone."""
        tokens = self._body(inputs, training=False)
        return self._head(tokens if all_logits else tokens[:, -1:], training=False)

    def run(
        self,
        ids: np.ndarray,
        mask: np.ndarray,
        positions: np.ndarray,
        past: Any,
        all_logits: bool,
        room: int = 0,
    ) -> tuple[np.ndarray, Any]:
        inputs = {
            contract.INPUT_IDS: ids.astype("int32"),
            contract.ATTENTION_MASK: mask[:, -ids.shape[1] :].astype("int32"),
            contract.POSITION_IDS: positions.astype("int32"),
        }
        return _run_cached(self._logits, inputs, mask, ids.shape[1], past, all_logits)

    def select(self, past: Any, rows: Sequence[int], first: int = 0) -> Any:
        return _selected(past, rows)


class _CachedEncoderDecoder:
    """Implements keras_tx.generation's EncoderDecoder with a Keras model.

    The cache is the encoder's output, the mask of the source, and the decoder's keys and values.
    """

    def __init__(self, model: EncoderDecoderModel) -> None:
        self.network = model
        self._encoder, self._decoder = model.encoder(), model.decoder()
        self.vocabulary_size: int = model.config.vocabulary_size
        self.context: int = model.config.max_length
        self.source_context: int = model.config.max_length

    def encode(self, ids: np.ndarray, mask: np.ndarray) -> Any:
        mask = mask.astype("int32")
        inputs = {contract.INPUT_IDS: ids.astype("int32"), contract.ATTENTION_MASK: mask}
        return self._encoder(inputs, training=False)[contract.LAST_HIDDEN_STATE], mask, None

    def run(
        self,
        ids: np.ndarray,
        mask: np.ndarray,
        positions: np.ndarray,
        past: Any,
        all_logits: bool,
        room: int = 0,
    ) -> tuple[np.ndarray, Any]:
        source, source_mask, pasts = past
        inputs = {
            contract.ENCODER_HIDDEN_STATES: source,
            contract.ATTENTION_MASK: source_mask,
            contract.DECODER_INPUT_IDS: ids.astype("int32"),
            contract.DECODER_ATTENTION_MASK: mask[:, -ids.shape[1] :].astype("int32"),
        }
        logits, pasts = _run_cached(self._logits, inputs, mask, ids.shape[1], pasts, all_logits)
        return logits, (source, source_mask, pasts)

    def _logits(self, inputs: dict[str, Any], all_logits: bool) -> Any:
        logits = self._decoder(inputs, training=False)  # targets begin with one token
        return logits if all_logits else logits[:, -1:]

    def select(self, past: Any, rows: Sequence[int], first: int = 0) -> Any:
        source, source_mask, pasts = past
        return ops.take(source, list(rows), axis=0), source_mask[list(rows)], _selected(pasts, rows)


def _run_cached(
    logits_of: Callable[[dict[str, Any], bool], Any],
    inputs: dict[str, Any],
    mask: np.ndarray,
    count: int,
    past: Any,
    all_logits: bool,
) -> tuple[np.ndarray, Any]:
    """Logits of the last `count` tokens, and the keys and values of all tokens by layer.

    The length of the cache is a multiple of STEP. Tokens are at its right end; the rest is masked.
    """
    total = mask.shape[1]
    room = 0
    if past is not None:
        room = -(-total // STEP) * STEP
        past = {name: tuple(_widened(x, room) for x in pair) for name, pair in past.items()}
    hidden = np.zeros((len(mask), room + count - total if past else 0), mask.dtype)
    cache = KeyValueCache(np.concatenate([hidden, mask], axis=1).astype("bool"), past)
    with caching(cache):
        logits = logits_of({name: ops.convert_to_tensor(x) for name, x in inputs.items()}, all_logits)
    presents = {
        name: tuple(x[:, :, -room:] if room else x for x in pair) for name, pair in cache.presents.items()
    }
    return ops.convert_to_numpy(logits).astype("float32"), presents


def _selected(past: Any, rows: Sequence[int]) -> Any:
    return {name: tuple(ops.take(x, list(rows), axis=0) for x in pair) for name, pair in past.items()}


def _widened(x: Any, room: int) -> Any:
    """Pads (batch, heads, tokens, size) on the left to `room` tokens."""
    missing = room - x.shape[2]
    if missing <= 0:
        return x
    return ops.concatenate([ops.zeros((*x.shape[:2], missing, x.shape[3]), dtype=x.dtype), x], axis=2)
