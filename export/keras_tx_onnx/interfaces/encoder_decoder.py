"""The interface of an encoder-decoder: a graph of the encoder, and one of the decoder with a cache."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.models.generation_defaults import generation_defaults, generation_files
from keras_tx.models.tokenizer_checks import check_padded_right, check_tokenizer, fit_to_model
from keras_tx.processing import TextTransform
from keras_tx.runtime.example_inputs import Use, draw, first_call, next_call
from keras_tx.runtime.session import Session
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext
from keras_tx_onnx.graph.cache_ports import AFTER_PAST, Seq2SeqCache
from keras_tx_onnx.graph.size_expressions import Symbol, of_symbol
from keras_tx_onnx.interfaces.base import IN_CHUNKS, Example, Feed, Interface, Masks, OtherRun, Sizes
from keras_tx_onnx.interfaces.decoder import chunk_sizes, stop_strings_notes
from keras_tx_onnx.reading import functional_graph, symbolic_sizes
from keras_tx_onnx.reading.keras_patches import in_float32
from keras_tx_onnx.reading.signature import Functional

SOURCE = (contract.BATCH_AXIS, contract.SOURCE_AXIS)
TARGET = (contract.BATCH_AXIS, contract.TARGET_AXIS)


@dataclasses.dataclass(frozen=True)
class EncoderDecoderOptions:
    """Options of an encoder-decoder; see export_onnx."""

    tokenizer: Any = None
    cache: bool | str | None = None
    task: str | None = None

    def __post_init__(self) -> None:
        if self.cache not in (None, True):
            raise ConfigError(
                f"cache={self.cache!r} is not supported for an encoder-decoder, whose decoder always has a "
                "cache. Omit cache, or export model.encoder() or model.decoder() alone."
            )


class EncoderDecoderInterface(Interface):
    """Token ids of a source to hidden states; these and token ids of a target to logits, with a cache."""

    kind = "an encoder-decoder"
    Options = EncoderDecoderOptions
    tasks = (contract.TEXT2TEXT_GENERATION, contract.TRANSLATION, contract.SUMMARIZATION)

    def __init__(self, functional: Functional, options: EncoderDecoderOptions, opset: int):
        super().__init__(functional, options, opset)
        model = self.model
        if model.head is None:
            raise ConfigError(
                f"Model {model.name!r} has head=None, so it does not generate text. Export model.encoder() "
                "for features, or create the model with its head."
            )
        self.task = options.task or model.task
        self.outputs = [contract.LOGITS]
        self._add_files(_transform(model, options.tokenizer))
        encoder = SourceEncoder(model, opset)
        self._parts = [encoder, TargetDecoder(model, opset, encoder)]

    @property
    def parts(self) -> list[Interface]:
        return self._parts

    def _add_files(self, transform: TextTransform | None) -> None:
        model = self.model
        self.add_config(model, None, transform)
        self.files |= generation_files(model)
        self.files[contract.GENERATION_CONFIG] |= {
            **{name: ids for name, ids in model.special_ids(transform).items() if ids is not None},
            "max_length": model.config.max_length,  # clients stop at 20 tokens without it
        }
        self.notes += stop_strings_notes(generation_defaults(model), transform)
        if transform is None and self.task != contract.TEXT2TEXT_GENERATION:
            raise ConfigError(
                f"task={self.task!r} requires a tokenizer, but model {model.name!r} has none. Pass "
                "tokenizer=."
            )
        if transform is None:
            self.notes.append(
                "The folder has no tokenizer, so the runtime accepts only token ids. Pass tokenizer= to add "
                "one."
            )
        else:
            self.files |= transform.files()

    def open(self, context: GraphContext) -> list[ir.Value]:
        raise NotImplementedError("The graphs are those of its parts.")

    def example(self, sizes: Sizes, masks: Masks, random: np.random.Generator) -> Example:
        raise NotImplementedError("The graphs are those of its parts.")

    def export_options(self) -> dict[str, Any]:
        return {"cache": True}


class _Part(Interface):
    """The interface of one graph of an encoder-decoder."""

    Options = type(None)
    sequences = masked = True

    def __init__(self, functional: Functional, config: Any, opset: int):
        super().__init__(functional, None, opset)
        self.max_length = config.max_length
        self.farthest = getattr(config, "relative_max_distance", 0)  # of T5
        self.outputs = functional.outputs
        self.config = config
        self.names = [tensor.name.split(":")[0] for tensor in functional_graph.function_of(self.model).inputs]


class SourceEncoder(_Part):
    """`input_ids` and `attention_mask` of the source to `last_hidden_state`."""

    kind = "an encoder"
    path = contract.ENCODER_MODEL
    adapter_path = contract.ENCODER_ADAPTERS
    axes = (contract.SOURCE_AXIS,)

    def __init__(self, model: Any, opset: int):
        super().__init__(Functional(model.encoder(), [contract.LAST_HIDDEN_STATE]), model.config, opset)
        self.uses = {contract.INPUT_IDS: Use(model.config.vocabulary_size)}

    def open(self, context: GraphContext) -> list[ir.Value]:
        names = (contract.INPUT_IDS, contract.ATTENTION_MASK)
        values = {name: context.input(name, ir.DataType.INT64, list(SOURCE)) for name in names}
        return [values[name] for name in self.names]

    def example(self, sizes: Sizes, masks: Masks, random: np.random.Generator) -> Example:
        specs = [contract.TensorSpec(name, "int64", SOURCE) for name in self.names]
        feed = draw(specs, self.uses, {contract.BATCH_AXIS: len(masks), **sizes}, masks, random)
        return feed, [feed[name] for name in self.names]

    def hidden_states(self, inputs: list[np.ndarray]) -> np.ndarray:
        """Keras's encoding of sources, in float32.

        The numbers are rounded to the model's dtype, because Keras rounds the inputs of the decoder to it.
        """
        function = functional_graph.function_of(self.model)
        packed = keras.tree.pack_sequence_as(function.input, inputs)
        with keras.device("cpu"), in_float32():
            (hidden,) = keras.tree.flatten(self.model(packed, training=False))
            rounded = keras.ops.cast(hidden, function.outputs[0].dtype)
            return keras.ops.convert_to_numpy(keras.ops.cast(rounded, "float32"))


class TargetDecoder(_Part):
    """Hidden states of the source, `input_ids` of the target and a cache to logits and the new cache."""

    kind = "a decoder"
    path = contract.DECODER_MODEL
    axes = (contract.SOURCE_AXIS, contract.TARGET_AXIS)

    def __init__(self, model: Any, opset: int, encoder: SourceEncoder):
        super().__init__(Functional(model.decoder(), [contract.LOGITS]), model.config, opset)
        self.encoder = encoder
        self.cache_shape = model.cache_shape
        _, heads, size = self.cache_shape
        # Optimum creates empty pasts with heads of width // heads, which T5 may contradict.
        self.open_ports = heads * size != model.config.width
        self.uses = {contract.INPUT_IDS: Use(model.config.vocabulary_size)}

    def open(self, context: GraphContext) -> list[ir.Value]:
        width = self.config.width
        mask = context.input(contract.ENCODER_ATTENTION_MASK, ir.DataType.INT64, list(SOURCE))
        ids = context.input(contract.INPUT_IDS, ir.DataType.INT64, list(TARGET))
        source = context.input(contract.ENCODER_HIDDEN_STATES, ir.DataType.FLOAT, [*SOURCE, width])
        ones = ir.val(contract.DECODER_ATTENTION_MASK, dtype=ir.DataType.INT64, shape=list(TARGET))
        context.cache = Seq2SeqCache(context, source, ones, self.cache_shape, self.open_ports)
        values = {
            contract.ENCODER_HIDDEN_STATES: source,
            contract.ATTENTION_MASK: mask,
            contract.DECODER_INPUT_IDS: ids,
            contract.DECODER_ATTENTION_MASK: ones,
        }
        _name_sizes({source: SOURCE, mask: SOURCE, ids: TARGET, ones: TARGET}, width)
        return [values[name] for name in self.names]

    def close(self, context: GraphContext) -> None:
        assert context.cache is not None
        context.cache.close(context)
        for node in context.graph:
            for value in node.outputs:
                if AFTER_PAST in value.meta:  # Keras knows of no past, and so of other sizes
                    value.meta.pop(symbolic_sizes.SIZES, None)

    def example(self, sizes: Sizes, masks: Masks, random: np.random.Generator) -> Example:
        feed, inputs = self.encoder.example(
            {contract.SOURCE_AXIS: sizes[contract.SOURCE_AXIS]}, masks, random
        )
        hidden = self.encoder.hidden_states(inputs)
        sizes = {contract.BATCH_AXIS: len(masks), **sizes}
        target = contract.TensorSpec(contract.INPUT_IDS, "int64", TARGET)
        ids = draw([target], self.uses, sizes, masks, random)[contract.INPUT_IDS]
        values = {
            contract.ENCODER_HIDDEN_STATES: hidden,
            contract.ATTENTION_MASK: feed[contract.ATTENTION_MASK],
            contract.DECODER_INPUT_IDS: ids,
            contract.DECODER_ATTENTION_MASK: np.ones_like(ids),
        }
        feed = first_call(self._pasts(), ids, feed[contract.ATTENTION_MASK], hidden)
        return feed, [values[name] for name in self.names]

    def _pasts(self) -> list[contract.TensorSpec]:
        depth, heads, size = self.cache_shape
        shape = (contract.BATCH_AXIS, heads, contract.PAST_AXIS, size)
        names = (name.format(index) for index in range(depth) for name in contract.SEQ2SEQ_PAST)
        return [contract.TensorSpec(name, "float32", shape) for name in names]

    def other_runs(self, feed: Feed, batch: int) -> dict[str, OtherRun]:
        """A half and a quarter of the target, then the others, the last as decode steps."""
        chunks = chunk_sizes(feed[contract.INPUT_IDS].shape[1])
        return {IN_CHUNKS: OtherRun(partial(run_in_chunks, chunks))} if len(chunks) > 1 else {}


def run_in_chunks(chunks: list[int], session: Session, feed: Feed) -> Feed:
    """The logits of a target, computed chunk by chunk: the source in the first call, then with its cache."""
    ids, logits = np.split(feed[contract.INPUT_IDS], np.cumsum(chunks)[:-1], axis=1), []
    feed = {**feed, contract.INPUT_IDS: ids[0]}
    for index in range(len(chunks)):
        outputs = session.run(feed)
        logits.append(outputs[contract.LOGITS])
        if index + 1 < len(chunks):
            feed = next_call(feed, outputs, ids[index + 1])
    return {contract.LOGITS: np.concatenate(logits, axis=1)}


def _name_sizes(values: dict[ir.Value, tuple[str, str]], width: int) -> None:
    """Tells the walk which inputs have equal sizes."""
    symbols: dict[str, Any] = {}
    for value, axes in values.items():
        for axis, name in enumerate(axes):
            if name not in symbols:
                symbols[name] = of_symbol(Symbol(value, axis, least=1))
        rest = (width,) if len(value.shape or ()) == 3 else ()
        dtype = "float32" if rest else "int32"
        value.meta[KERAS_TENSOR] = keras.KerasTensor((None, None, *rest), dtype)
        value.meta[symbolic_sizes.SIZES] = (*(symbols[name] for name in axes), *rest)


def _transform(model: Any, tokenizer: Any) -> TextTransform | None:
    """The text transform of the folder: of the option, or of the model."""
    transform = model.processing if tokenizer is None else TextTransform.of(tokenizer)
    transform = fit_to_model(transform, model.config, segments=False, name="tokenizer")
    check_padded_right(transform, "tokenizer")
    if tokenizer is not None:
        check_tokenizer(transform, model.config, model.processing, name="tokenizer")
    return transform
