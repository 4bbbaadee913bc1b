"""The interface of a causal language model of keras-hub: the same folder as that of a decoder of keras_tx."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import ConfigError, ExportError
from keras_tx.models.genai_config import genai_content
from keras_tx.models.keras_hub_language_models import LanguageModelFiles, language_model_files
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.graph.cache_ports import Cache
from keras_tx_onnx.interfaces.base import Example, Masks, Sizes
from keras_tx_onnx.interfaces.decoder import CausalInterface, DecoderOptions
from keras_tx_onnx.interfaces.keras_hub_texts import prompt_ids, tokenizer_notes
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.input_uses import input_uses
from keras_tx_onnx.reading.signature import Functional

# The inputs of keras-hub's decoders, by the contract's names.
_INPUTS = {"token_ids": contract.INPUT_IDS, "padding_mask": contract.ATTENTION_MASK}
_LENGTHS = ("max_sequence_length", "max_position_embeddings")
_REMEDY = "The folder has no tokenizer, and prompts are token ids. Pass tokenizer= to generate from texts."
_DEFAULT_LENGTH = 1024  # sequence_length of keras-hub's preprocessors


def is_causal_lm(model: Any) -> bool:
    """Whether a model is a CausalLM of keras-hub; keras_hub is not imported."""
    return any(
        kind.__name__ == "CausalLM" and kind.__module__.startswith("keras_hub.")
        for kind in type(model).__mro__
    )


def unsupported(model: Any) -> str | None:
    """Why a CausalLM cannot have a cache; None if it is a model of texts only."""
    function = functional_graph.function_of(model)
    names = [tensor.name.split(":")[0] for tensor in function.inputs]
    if sorted(names) != sorted(_INPUTS):
        return f"it has the inputs {', '.join(names)}, expected token_ids and padding_mask only"
    if len(function.outputs) != 1 or len(function.outputs[0].shape) != 3:
        return "its output is not logits (batch, tokens, vocabulary)"
    hidden = functional_graph.head_input(function.outputs[0])
    if hidden is None or len(hidden.shape) != 3:
        return "its logits are not those of a head that reads one tensor (batch, tokens, width)"
    if any(getattr(part, "quantization_mode", None) for part in functional_graph.parts(model)):
        return "Keras quantized it, and attention with quantized layers is not supported with a cache"
    return None


class LanguageModelInterface(CausalInterface):
    """Token ids, and keys and values of earlier tokens, to logits and the new keys and values.

    Keras's graph numbers positions from the first column; this graph reads them from `position_ids`, so that
    texts in a batch may be padded on the left. Examples have the positions of Keras.
    """

    kind = "a language model of keras-hub"
    task = contract.TEXT_GENERATION

    def __init__(self, functional: Functional, options: DecoderOptions, opset: int):
        super().__init__(functional, options, opset)
        model, function = self.model, functional_graph.function_of(self.model)
        self._check()
        self.cached = True
        self.outputs = [contract.LOGITS]
        self.names = [_INPUTS[tensor.name.split(":")[0]] for tensor in function.inputs]
        self.uses = dict(zip(self.names, input_uses(function), strict=True))
        self.body = functional_graph.head_input(function.outputs[0])
        self.max_length = functional_graph.position_count(model)
        self.context_length = _context(model, self.max_length)
        files = language_model_files(model, options.tokenizer, self.context_length)
        if files.transform is not None and options.tokenizer is None:
            files = _compared(model, files)
        self.special_ids = files.special_ids
        self.files = {contract.CONFIG: files.config}
        known = {name: ids for name, ids in files.special_ids.items() if ids is not None}
        self.files[contract.GENERATION_CONFIG] = known
        if files.transform is not None:
            self.files |= files.transform.files()
        self.notes += files.notes
        if self.max_length is None:
            self.notes.append(
                f"keras-hub's {type(model.backbone).__name__} has no maximum length, so the context of the "
                f"folder has {self.context_length} tokens. Set model.preprocessor.sequence_length to change "
                "it."
            )

    def _check(self) -> None:
        reason = unsupported(self.model)
        if self.options.cache is False:
            reason = "cache=False was passed, but text generation requires a cache"
        if reason is not None:
            raise ConfigError(
                f"Model {self.model.name!r} ({type(self.model).__name__}) cannot be exported for text "
                f"generation: {reason}. Pass cache=False, without task, to export it as a generic model."
            )
        self.check_opset()

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        return self._cache_shape

    def close(self, context: GraphContext) -> None:
        super().close(context)
        assert isinstance(context.cache, Cache)
        shapes = {tuple(past.shape or ()) for past in context.cache.pasts}
        if not shapes:
            raise ExportError(
                f"Model {self.model.name!r} has no recognized attention, so there is nothing to cache. "
                "Export with cache=False."
            )
        if len(shapes) != 1:
            raise ExportError(
                f"Model {self.model.name!r} has {len(shapes)} different shapes of keys and values, expected "
                "one. Export with cache=False."
            )
        ((_, heads, _, size),) = shapes
        assert isinstance(heads, int) and isinstance(size, int)
        self._cache_shape = (len(context.cache.pasts) // 2, heads, size)
        self.files[contract.GENAI_CONFIG] = genai_content(
            context_length=self.context_length,
            vocabulary_size=int(functional_graph.function_of(self.model).outputs[0].shape[-1]),
            width=int(self.body.shape[-1]),
            num_heads=context.cache.query_heads,
            cache_shape=self._cache_shape,
            special=self.special_ids,
            defaults={},
        )

    def example(self, sizes: Sizes, masks: Masks, random: np.random.Generator) -> Example:
        feed, inputs = super().example(sizes, masks, random)
        rows, length = feed[contract.INPUT_IDS].shape
        feed[contract.POSITION_IDS] = np.tile(np.arange(length), (rows, 1))
        return feed, inputs


def _compared(model: Any, files: LanguageModelFiles) -> LanguageModelFiles:
    """The files with notes about texts whose ids differ; without a tokenizer if ordinary texts differ."""
    preprocessor = model.preprocessor
    transform = dataclasses.replace(files.transform, max_length=preprocessor.sequence_length)  # type: ignore
    try:
        notes = list(tokenizer_notes(model, transform, partial(prompt_ids, preprocessor), _REMEDY))
    except ConfigError as error:
        return dataclasses.replace(files, transform=None, notes=[*files.notes, str(error)])
    return dataclasses.replace(files, notes=[*files.notes, *notes])


def _context(model: Any, positions: int | None) -> int:
    """The maximum number of tokens: that of the backbone, or the length to which the preprocessor pads."""
    lengths = [getattr(model.backbone, name, None) for name in _LENGTHS]
    known = [length for length in (positions, *lengths) if length is not None]
    padded = getattr(getattr(model, "preprocessor", None), "sequence_length", None)
    return int(min(known) if known else padded or _DEFAULT_LENGTH)
