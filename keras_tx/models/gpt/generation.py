"""Generation in Keras, for a look in the notebook: the same tokens as the exported folder gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.generation import Generator
from keras_tx.layers.key_value_cache import KeyValueCache, caching
from keras_tx.models.text_model import DecoderModel
from keras_tx.processing import tokenizer_files

STEP = 64  # by how many tokens the cache grows: at each new size JAX compiles anew


def generate(
    model: DecoderModel,
    prompts: Any,
    *,
    tokenizer: Any = None,
    stop_tokens: Sequence[int] | None = None,
    **options: Any,
) -> Any:
    """Continues prompts with a model in training or just trained.

    For more than a look, export it: the folder is many times as fast, and gives the same tokens for the same
    seed, where the model computes in float32, as the folder does.

    >>> import keras_tx
    >>> model = keras_tx.gpt("pico")
    >>> len(generate(model, [5, 17, 99], max_new_tokens=4).ids)
    4

    Args:
        model: what keras_tx.gpt() made, with its head.
        prompts: token ids, or text where there is a tokenizer; or a list of these.
        tokenizer: a tokenizers.Tokenizer; by default that of `model.processing`.
        stop_tokens: ids that end a text; by default `stop_ids` of the config, or the tokenizer's end.
        options: as `generate` of a loaded folder takes them: max_new_tokens, samples, stop, temperature,
            top_k, top_p, min_p, repetition_penalty, seed, num_beams, log_probabilities, deadline ...

    Returns:
        A keras_tx.generation.Generation (`.text`, `.ids`, `.finish`); lists where `prompts` is a list.
    """
    return _generator(model, tokenizer, stop_tokens).generate(prompts, **options)


def stream(
    model: DecoderModel,
    prompt: Any,
    *,
    tokenizer: Any = None,
    stop_tokens: Sequence[int] | None = None,
    **options: Any,
) -> Iterator[Any]:
    """The continuation of one prompt piece by piece: text where there is a tokenizer, else ids."""
    return _generator(model, tokenizer, stop_tokens).stream(prompt, **options)


def _generator(model: Any, tokenizer: Any, stop_tokens: Sequence[int] | None) -> Generator:
    if not isinstance(model, DecoderModel) or model.head is None:
        kind = type(model).__name__ + (" with head=None" if isinstance(model, DecoderModel) else "")
        raise ConfigError(
            f"model is a {kind}, expected a decoder with a CausalLMHead, such as a keras_tx.gpt."
        )
    transform: Any = model.processing
    if tokenizer is None and transform is not None:
        tokenizer = tokenizer_files.parse(transform.tokenizer)
    stops = model.stops() if stop_tokens is None else stop_tokens
    return Generator(_CachedModel(model), frozenset(stops), f"model {model.name!r}", tokenizer)


class _CachedModel:
    """A decoder as keras_tx.generation's Decoder.

    The cache is as long as a multiple of STEP, filled from the right, and the mask hides the rest.
    """

    def __init__(self, model: DecoderModel) -> None:
        self._model = model
        self.vocabulary_size: int = model.config.vocabulary_size
        self.context: int = model.config.max_length

    def run(
        self,
        ids: np.ndarray,
        mask: np.ndarray,
        positions: np.ndarray,
        past: Any,
        every: bool,
        room: int = 0,
    ) -> tuple[np.ndarray, Any]:
        count, total = ids.shape[1], mask.shape[1]
        given = {
            contract.INPUT_IDS: ids.astype("int32"),
            contract.ATTENTION_MASK: mask[:, -count:].astype("int32"),
            contract.POSITION_IDS: positions.astype("int32"),
        }
        room = 0
        if past is not None:
            room = -(-total // STEP) * STEP
            past = {name: tuple(_widened(x, room) for x in pair) for name, pair in past.items()}
        hidden = np.zeros((len(ids), room + count - total if past else 0), mask.dtype)
        cache = KeyValueCache(np.concatenate([hidden, mask], axis=1).astype("bool"), past)
        with caching(cache):
            logits = self._model(given, training=False)
        presents = {
            name: tuple(x[:, :, -room:] if room else x for x in pair) for name, pair in cache.presents.items()
        }
        found = ops.convert_to_numpy(logits if every else logits[:, -1:])
        return found.astype("float32"), presents

    def select(self, past: Any, rows: Sequence[int], first: int = 0) -> Any:
        return {name: tuple(ops.take(x, list(rows), axis=0) for x in pair) for name, pair in past.items()}


def _widened(x: Any, room: int) -> Any:
    """(b, heads, tokens, size) with empty places in front, `room` in all."""
    missing = room - x.shape[2]
    if missing <= 0:
        return x
    return ops.concatenate([ops.zeros((*x.shape[:2], missing, x.shape[3]), dtype=x.dtype), x], axis=2)
