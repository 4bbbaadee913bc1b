"""The interface of a decoder: one graph for the prompt and for each step, with a cache of keys and values."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.models.genai_config import genai_config
from keras_tx.models.gpt.huggingface import to_config
from keras_tx.models.gpt.model import GPT
from keras_tx.models.text_model import check_tokenizer, fitting
from keras_tx.processing import TextTransform
from keras_tx.runtime.example_inputs import Use, draw
from keras_tx.runtime.session import Session
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext
from keras_tx_onnx.graph.cache_ports import Cache
from keras_tx_onnx.interfaces.base import Example, Interface
from keras_tx_onnx.reading import functional_graph, symbolic_sizes
from keras_tx_onnx.reading.signature import Functional
from keras_tx_onnx.verifying.cases import Case, Masks, Sizes

BODY = "norm"  # the last layer of a GPT in front of its head
SINGLE = 8  # of the tokens of a case, how many come in steps of their own


def decoder_of(
    functional: Functional, cache: bool | str | None, tokenizer: Any, others: dict[str, Any]
) -> Interface | None:
    """The interface of what keras_tx.gpt() made; None for any other model.

    `others` are the arguments of the export that are not for text.
    """
    model = functional.model
    if cache not in (None, True, False, "shared"):
        raise ConfigError(f"cache is {cache!r}, expected True, False, 'shared' or None.")
    if not isinstance(model, GPT):
        kind = f"{model.name!r} is a {type(model).__name__}, not what keras_tx.gpt() made"
        if cache:
            raise ConfigError(
                f"cache={cache!r} was given, but {kind}: of another graph nobody knows which inputs are "
                "tokens, mask and positions. Leave it out."
            )
        return None
    for name, value in others.items():
        if value is not None:
            raise ConfigError(f"{name}={value!r} was given, but {model.name!r} takes text. Leave it out.")
    if cache and model.head is None:
        raise ConfigError(
            f"cache={cache!r} was given, but {model.name!r} has head=None: without logits it generates no "
            "tokens, and needs no cache. Give it a CausalLMHead, or leave cache out."
        )
    shared = cache == "shared"
    return _decoder(model, tokenizer, model.head is not None if cache is None else bool(cache), shared)


def _decoder(model: GPT, tokenizer: Any, cache: bool, shared: bool) -> Interface:
    """The contract's graph of a GPT, with past ports or, where cache is False, without."""
    config = model.config
    transform = _transform(model, tokenizer)
    special = model.special_ids(transform)
    described = to_config(model, processing=transform)
    notes = [described.note] if described.note else []
    files: dict[str, Any] = {contract.CONFIG: described.content}
    if cache:
        files[contract.GENERATION_CONFIG] = {k: v for k, v in special.items() if v is not None}
        files[contract.GENAI_CONFIG] = genai_config(model, special)
    elif model.head is not None:
        notes.append("Exported with cache=False: the graph computes every token anew, and does not generate.")
    if transform is not None:
        files.update(transform.files())

    heads, size = config.kv_heads or config.num_heads, config.head_size

    output = contract.LAST_HIDDEN_STATE if model.head is None else contract.LOGITS
    names = [_name(tensor) for tensor in functional_graph.function_of(model).inputs]

    def open_graph(cx: GraphContext) -> list[ir.Value]:
        values = _open(cx, cached=cache)
        return [values[name] for name in names]

    # Nobody looks at padding, where without anything to attend to trained weights enlarge rounding errors.
    def expected(outputs: list[np.ndarray], inputs: list[np.ndarray]) -> list[np.ndarray]:
        mask = inputs[names.index(contract.ATTENTION_MASK)]
        return [_at_tokens(x, mask) for x in outputs]

    def run(session: Session, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        got = session.run(given)
        return {**got, output: _at_tokens(got[output], given[contract.ATTENTION_MASK])}

    tokens = (contract.BATCH_AXIS, contract.SEQUENCE_AXIS)
    specs = [contract.TensorSpec(name, "int64", tokens) for name in names]
    if cache:
        past = (contract.BATCH_AXIS, heads, contract.PAST_AXIS, size)
        ports = [port.format(index) for index in range(config.depth) for port in contract.PAST]
        specs += [contract.TensorSpec(port, "float32", past) for port in ports]
    uses = {contract.INPUT_IDS: Use(config.vocabulary_size), contract.POSITION_IDS: Use(config.max_length)}

    def example(sizes: Sizes, masks: Masks, random: np.random.Generator) -> Example:
        sizes = {contract.BATCH_AXIS: len(masks), contract.PAST_AXIS: 0, **sizes}
        feed = draw(specs, uses, sizes, masks, random)
        return feed, [feed[name] for name in names]

    return Interface(
        task=contract.TEXT_GENERATION if cache else None,
        open=open_graph,
        outputs=[output],
        example=example,
        files=files,
        notes=tuple(notes),
        axes=(contract.SEQUENCE_AXIS,),
        sequences=True,
        permits=lambda sizes: sizes[contract.SEQUENCE_AXIS] <= config.max_length,
        masked=True,
        context=config.max_length if cache else 0,
        shared=shared,
        expected=expected,
        run=run,
        **({"further": _in_pieces, "close": _close} if cache else {}),
    )


def _name(tensor: keras.KerasTensor) -> str:
    return tensor.name.split(":")[0]


def _at_tokens(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(batch, tokens, width), 0 at padding where it is finite."""
    return values * mask[..., None].astype(values.dtype)


def _open(cx: GraphContext, cached: bool) -> dict[str, ir.Value]:
    """The inputs of the graph that Keras's graph knows, all as long as the ids."""
    tokens = [contract.BATCH_AXIS, contract.SEQUENCE_AXIS]
    total = [contract.BATCH_AXIS, contract.TOTAL_AXIS] if cached else tokens
    ids = cx.input(contract.INPUT_IDS, ir.DataType.INT64, tokens)
    mask = cx.input(contract.ATTENTION_MASK, ir.DataType.INT64, total)
    positions = cx.input(contract.POSITION_IDS, ir.DataType.INT64, tokens)
    inside = mask
    if cached:
        inside = ir.val("attention_mask_of_tokens", dtype=ir.DataType.INT64, shape=tokens)
        cx.cache = Cache(mask, inside, positions, BODY)
    shape = tuple(symbolic_sizes.of_symbol(symbolic_sizes.Symbol(ids, axis, least=1)) for axis in (0, 1))
    for value in (ids, inside, positions):
        value.meta[KERAS_TENSOR] = keras.KerasTensor((None, None), "int32")
        value.meta[symbolic_sizes.SIZES] = shape
    return {contract.INPUT_IDS: ids, contract.ATTENTION_MASK: inside, contract.POSITION_IDS: positions}


def _close(cx: GraphContext) -> None:
    assert cx.cache is not None
    cx.cache.close(cx)
    for value in cx.graph.outputs:
        if value.name == contract.LOGITS:
            assert value.shape is not None
            value.shape = ir.Shape([contract.BATCH_AXIS, contract.LOGITS_AXIS, value.shape[2]])


def _in_pieces(case: Case) -> list[Case]:
    """The same tokens as a prompt, a chunk behind it, and single steps."""
    length = case.given[contract.INPUT_IDS].shape[1]
    pieces = [length // 2, length // 4]
    single = min(SINGLE, length - sum(pieces))
    pieces = [n for n in (*pieces, length - sum(pieces) - single, *[1] * single) if n]

    def run(session: Session, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        got = run_in_pieces(session, given, pieces)
        return {name: _at_tokens(x, given[contract.ATTENTION_MASK]) for name, x in got.items()}

    return [case._replace(name=f"{case.name}, in pieces", run=run)] if len(pieces) > 1 else []


def run_in_pieces(session: Session, given: dict[str, np.ndarray], pieces: list[int]) -> dict[str, np.ndarray]:
    """The logits of all tokens, computed piece by piece with the keys and values of those before."""
    past = {name: x for name, x in given.items() if name.startswith("past_key_values.")}
    start, logits = 0, []
    for count in pieces:
        end = start + count
        feed = {
            contract.INPUT_IDS: given[contract.INPUT_IDS][:, start:end],
            contract.ATTENTION_MASK: given[contract.ATTENTION_MASK][:, :end],
            contract.POSITION_IDS: given[contract.POSITION_IDS][:, start:end],
        }
        got = session.run({**feed, **past})
        past = {name: got[name.replace("past_key_values", "present")] for name in past}
        logits.append(got[contract.LOGITS])
        start = end
    return {contract.LOGITS: np.concatenate(logits, axis=1)}


def _transform(model: GPT, tokenizer: Any) -> TextTransform | None:
    """What turns texts into ids in the folder, padded where a prompt has room: in front."""
    given = model.processing if tokenizer is None else TextTransform.of(tokenizer)
    fitted = fitting(given, model.config, segments=False, name="tokenizer")
    if tokenizer is not None:
        check_tokenizer(fitted, model.config, model.processing, name="tokenizer", stacklevel=6)
    return fitted and dataclasses.replace(fitted, padding_side="left")
