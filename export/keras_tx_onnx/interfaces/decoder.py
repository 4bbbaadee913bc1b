"""The interface of a decoder: one graph for prefill and decode steps, with a cache of keys and values."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError, ExportError
from keras_tx.models.genai_config import DEFAULTS, genai_config
from keras_tx.models.generation_defaults import generation_defaults
from keras_tx.models.tokenizer_checks import check_tokenizer, fit_to_model
from keras_tx.processing import TextTransform
from keras_tx.runtime.example_inputs import Use, draw
from keras_tx.runtime.session import Session
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext
from keras_tx_onnx.graph.cache_ports import Cache
from keras_tx_onnx.graph.model_file import check_graph
from keras_tx_onnx.graph.shared_cache import SHARED_FROM, no_shared, write_shared
from keras_tx_onnx.graph.size_expressions import Symbol, of_symbol
from keras_tx_onnx.graph.token_mixing import Tokens, mixes_tokens
from keras_tx_onnx.interfaces.base import (
    IN_CHUNKS,
    Example,
    Feed,
    Interface,
    Masks,
    OtherRun,
    Run,
    Sizes,
)
from keras_tx_onnx.reading import functional_graph, symbolic_sizes
from keras_tx_onnx.reading.signature import Functional

PADDING = 7  # columns before the texts of an example; a mask with this period is unlikely
STEPS = 3  # single decode steps in an example: behind a chunk, behind a step, and the last one
TOKENS = (contract.BATCH_AXIS, contract.SEQUENCE_AXIS)
SHARED = "shared"
PADDED, LAST_TOKEN = "padded on the left", "last token alone"
# The other runs of each batch of the cases, which cost most of the time of the verification. Each way runs on
# the longest texts, and with every mask; only the number of logits to return depends on neither.
RUNS = ((IN_CHUNKS, PADDED), (f"{PADDED}, {IN_CHUNKS}",), (IN_CHUNKS, PADDED, LAST_TOKEN))


@dataclasses.dataclass(frozen=True)
class DecoderOptions:
    """Options of a decoder; see export_onnx."""

    tokenizer: Any = None
    cache: bool | str | None = None

    def __post_init__(self) -> None:
        if self.cache is not None and not isinstance(self.cache, bool) and self.cache != SHARED:
            raise ConfigError(f"cache={self.cache!r} is invalid. Pass True, False, 'shared' or None.")


class CausalInterface(Interface):
    """The inputs and outputs of a causal decoder, with or without a cache of keys and values.

    Attributes:
        names: the inputs of the Keras model in its order, by the contract's names.
        uses: the uses of its integer inputs.
        cached: whether the graph has a cache.
        body: the Keras tensor that the head reads.
    """

    Options = DecoderOptions
    axes = (contract.SEQUENCE_AXIS,)
    sequences = masked = True
    names: list[str]
    uses: dict[str, Use]
    cached: bool
    body: Any

    @property
    @abc.abstractmethod
    def cache_shape(self) -> tuple[int, int, int]:
        """Layers, heads of keys and values, and the size of a head."""

    def check_opset(self) -> None:
        """Raises a ConfigError for a shared cache below the opset that it requires."""
        if self.options.cache == SHARED and self.opset < SHARED_FROM:
            raise ConfigError(
                f"cache='shared' requires opset={SHARED_FROM} or higher, but opset={self.opset} was passed. "
                "Omit one of the two."
            )

    def open(self, context: GraphContext) -> list[ir.Value]:
        tokens = list(TOKENS)
        total = [contract.BATCH_AXIS, contract.TOTAL_AXIS] if self.cached else tokens
        ids = context.input(contract.INPUT_IDS, ir.DataType.INT64, tokens)
        mask = context.input(contract.ATTENTION_MASK, ir.DataType.INT64, total)
        positions = context.input(contract.POSITION_IDS, ir.DataType.INT64, tokens)
        if self.cached:
            total_mask, mask = mask, ir.val("attention_mask_of_tokens", dtype=ir.DataType.INT64, shape=tokens)
            context.cache = Cache(total_mask, mask, positions, self.body)
        values = {
            contract.INPUT_IDS: ids,
            contract.ATTENTION_MASK: mask,
            contract.POSITION_IDS: positions,
        }
        sizes = tuple(of_symbol(Symbol(ids, axis, least=1)) for axis in (0, 1))
        for value in values.values():
            value.meta[KERAS_TENSOR] = keras.KerasTensor((None, None), "int32")
            value.meta[symbolic_sizes.SIZES] = sizes
        return [values[name] for name in self.names]

    def close(self, context: GraphContext) -> None:
        if not self.cached:
            return
        assert isinstance(context.cache, Cache)
        context.cache.close(context)
        self.farthest = context.cache.farthest
        _check_tokens(context, context.cache)
        for value in context.graph.outputs:
            if value.name == contract.LOGITS:
                assert value.shape is not None
                value.shape = ir.Shape([contract.BATCH_AXIS, contract.LOGITS_AXIS, value.shape[2]])

    def example(self, sizes: Sizes, masks: Masks, random: np.random.Generator) -> Example:
        names = dict.fromkeys([*self.names, contract.POSITION_IDS])
        specs = [contract.TensorSpec(name, "int64", TOKENS) for name in names]
        if self.cached:
            depth, heads, size = self.cache_shape
            past = (contract.BATCH_AXIS, heads, contract.PAST_AXIS, size)
            ports = [port.format(index) for index in range(depth) for port in contract.PAST]
            specs += [contract.TensorSpec(port, "float32", past) for port in ports]
        sizes = {contract.BATCH_AXIS: len(masks), contract.PAST_AXIS: 0, **sizes}
        feed = draw(specs, self.uses, sizes, masks, random)
        return feed, [feed[name] for name in self.names]

    def expected(self, outputs: list[np.ndarray], inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Padding is not compared: attention over no token amplifies rounding errors there."""
        mask = inputs[self.names.index(contract.ATTENTION_MASK)]
        return [_zero_at_padding(x, mask) for x in outputs]

    @property
    def run(self) -> Run:
        return partial(_run_masked, self.outputs[0])

    def other_runs(self, feed: Feed, batch: int) -> dict[str, OtherRun]:
        """Prefill in chunks and decode steps, more padding, both at once, and the last logits alone.

        The chunks are a half and a quarter of the columns, then the others, the last as decode steps.
        """
        if not self.cached:
            return {}
        length = feed[contract.INPUT_IDS].shape[1]
        runs = {
            IN_CHUNKS: _other_run(chunk_sizes(length)),
            PADDED: _other_run([length + PADDING], PADDING),
            f"{PADDED}, {IN_CHUNKS}": _other_run(chunk_sizes(length + PADDING), PADDING),
            LAST_TOKEN: _other_run([length], last=1),
        }
        return {name: runs[name] for name in RUNS[batch] if name != IN_CHUNKS or length > 1}

    def last_runs(self, feed: Feed, count: int) -> dict[str, OtherRun]:
        length = feed[contract.INPUT_IDS].shape[1]
        return {
            "in one call": _other_run([length], last=count),
            IN_CHUNKS: _other_run(chunk_sizes(length), last=count),
        }

    def write_second_graph(self, path: Path, external: bool) -> Path | None:
        """Writes the graph with a shared cache, if it was requested or the weights are in a data file."""
        requested = self.options.cache == SHARED
        if not requested and not (external and self.cached and self.opset >= SHARED_FROM):
            return None
        shared = write_shared(path, self.context_length)
        if shared is None:
            self.notes.append(no_shared(self.model.name, requested))
        else:
            check_graph(shared)
        return shared

    def export_options(self) -> dict[str, Any]:
        return {"cache": self.options.cache or self.cached}


class DecoderInterface(CausalInterface):
    """Token ids, and keys and values of earlier tokens, to logits and the new keys and values."""

    kind = "a decoder"

    def __init__(self, functional: Functional, options: DecoderOptions, opset: int):
        super().__init__(functional, options, opset)
        model, config = self.model, self.model.config
        if options.cache and model.head is None:
            raise ConfigError(
                f"cache={options.cache!r} requires a CausalLMHead, but model {model.name!r} has head=None. "
                "Omit cache."
            )
        self.check_opset()
        self.cached = model.head is not None if options.cache is None else bool(options.cache)
        self.task = contract.TEXT_GENERATION if self.cached else None
        self.outputs = [contract.LAST_HIDDEN_STATE if model.head is None else contract.LOGITS]
        self.max_length = config.max_length
        self.context_length = config.max_length if self.cached else 0
        self.names = [tensor.name.split(":")[0] for tensor in functional_graph.function_of(model).inputs]
        self.body = model.encoded.tokens
        self.uses = {
            contract.INPUT_IDS: Use(config.vocabulary_size),
            contract.POSITION_IDS: Use(config.max_length),
        }
        self._add_files(_transform(model, options.tokenizer))

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        return self.model.cache_shape

    def _add_files(self, transform: TextTransform | None) -> None:
        model = self.model
        special_ids = model.special_ids(transform)
        self.add_config(model, None, transform)
        if self.cached:
            known = {name: ids for name, ids in special_ids.items() if ids is not None}
            defaults = generation_defaults(model)
            self.files[contract.GENERATION_CONFIG] = {**known, **defaults}
            self.files[contract.GENAI_CONFIG] = genai_config(model, special_ids)
            others = [name for name in defaults if name not in DEFAULTS]
            if others:
                self.notes.append(
                    f"onnxruntime-genai does not apply the model's defaults {', '.join(others)}: "
                    f"{contract.GENAI_CONFIG} has none of them."
                )
            self.notes += stop_strings_notes(defaults, transform)
        elif model.head is not None:
            self.notes.append(
                "Exported with cache=False: the graph has no cache and does not support text generation."
            )
        if transform is not None:
            self.files |= transform.files()


def stop_strings_notes(defaults: Mapping[str, Any], transform: TextTransform | None) -> list[str]:
    """A note about stop strings of a model without a tokenizer, which cannot find them in a text."""
    strings = defaults.get("stop_strings")
    if not strings or transform is not None:
        return []
    return [
        f"The model's own stop_strings are {strings!r}, but the folder has no tokenizer, so generate() "
        "requires stop_strings=None. Pass tokenizer= to end texts at them."
    ]


def _check_tokens(context: GraphContext, cache: Cache) -> None:
    """Raises an ExportError if tokens are related to each other outside of attention with a cache.

    Scores have two axes of the length of the tokens; recognized attention has one of past and tokens. A node
    that numbers the tokens of one call would begin anew in each call.
    """
    (tokens,) = (x for x in context.graph.inputs if x.name == contract.INPUT_IDS)
    length = tokens.meta[symbolic_sizes.SIZES][1]

    def place(value: ir.Value | None) -> Tokens | None:
        sizes = [] if value is None else list(value.meta.get(symbolic_sizes.SIZES, ()))
        return Tokens(sizes.index(length), len(sizes)) if length in sizes else None

    for node in context.graph.all_nodes():
        sizes = [list(value.meta.get(symbolic_sizes.SIZES, ())) for value in node.outputs]
        numbers = node.op_type == "Range" and length in sizes[0]
        related = any(each.count(length) > 1 for each in sizes)
        if (
            related
            or numbers
            or (node is not cache.cut and mixes_tokens(node, list(map(place, node.inputs))))
        ):
            raise ExportError(
                f"{node.name!r} relates tokens to each other, but is not recognized as attention, so it "
                "would not see the past of a cache. Export with cache=False."
            )


def chunk_sizes(length: int) -> list[int]:
    """The numbers of tokens of a prefill and of what follows it, the last ones single decode steps."""
    chunks = [length // 2, length // 4]
    steps = min(STEPS, length - sum(chunks))
    return [n for n in (*chunks, length - sum(chunks) - steps, *[1] * steps) if n]


def _zero_at_padding(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(batch, tokens, width) with 0 at padding."""
    return values * mask[..., None].astype(values.dtype)


def _run_masked(output: str, session: Session, feed: Feed) -> Feed:
    outputs = session.run(feed)
    return {**outputs, output: _zero_at_padding(outputs[output], feed[contract.ATTENTION_MASK])}


def _other_run(chunks: list[int], padding: int = 0, last: int | None = None) -> OtherRun:
    return OtherRun(partial(_run_padded_in_chunks, chunks, padding, last), last)


def _run_padded_in_chunks(
    chunks: list[int], padding: int, last: int | None, session: Session, feed: Feed
) -> Feed:
    """The logits, computed in chunks, of texts in later columns: padding before them must not change them."""
    tokens = {
        name: np.pad(feed[name], ((0, 0), (padding, 0)))
        for name in (contract.INPUT_IDS, contract.ATTENTION_MASK, contract.POSITION_IDS)
    }
    logits = run_in_chunks(session, {**feed, **tokens}, chunks, last)[contract.LOGITS]
    logits = logits[:, padding:] if last is None else logits
    return {contract.LOGITS: _zero_at_padding(logits, feed[contract.ATTENTION_MASK][:, -logits.shape[1] :])}


def run_in_chunks(session: Session, feed: Feed, chunks: list[int], last: int | None = None) -> Feed:
    """The logits of all tokens, computed chunk by chunk with the keys and values of earlier tokens.

    Args:
        session: of the graph.
        feed: its inputs for the whole text.
        chunks: the numbers of tokens of each call.
        last: how many of the last logits are wanted, if not all. A single call returns what the graph does.
    """
    wanted = {} if last is None else {contract.NUM_LOGITS_TO_KEEP: np.array(last, "int64")}
    past = {name: x for name, x in feed.items() if name.startswith("past_key_values.")}
    start, logits = 0, []
    for count in chunks:
        end = start + count
        tokens = {
            contract.INPUT_IDS: feed[contract.INPUT_IDS][:, start:end],
            contract.ATTENTION_MASK: feed[contract.ATTENTION_MASK][:, :end],
            contract.POSITION_IDS: feed[contract.POSITION_IDS][:, start:end],
        }
        outputs = session.run({**tokens, **past, **wanted})
        past = {name: outputs[name.replace("past_key_values", "present")] for name in past}
        logits.append(outputs[contract.LOGITS])
        start = end
    whole = np.concatenate(logits, axis=1)
    return {contract.LOGITS: whole if last is None or len(chunks) == 1 else whole[:, -last:]}


def _transform(model: Any, tokenizer: Any) -> TextTransform | None:
    """The text transform of the folder; it pads prompts on the left."""
    transform = model.processing if tokenizer is None else TextTransform.of(tokenizer)
    transform = fit_to_model(transform, model.config, segments=False, name="tokenizer")
    if tokenizer is not None:
        check_tokenizer(transform, model.config, model.processing, name="tokenizer")
    return transform and dataclasses.replace(transform, padding_side="left")
