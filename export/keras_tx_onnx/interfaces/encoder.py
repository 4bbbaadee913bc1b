"""What the exported graph of a BERT takes and gives, and the files that tell clients about it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.heads import SentenceEmbeddingHead
from keras_tx.heads.base import label_names
from keras_tx.models.bert.huggingface import to_config
from keras_tx.models.bert.model import Bert
from keras_tx.models.bert.sentence_transformers import sentence_files
from keras_tx.models.text_model import check_padded_right, check_tokenizer, fitting
from keras_tx.processing import TextTransform
from keras_tx.runtime.example_inputs import Use, draw
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.graph.token_selection import select_tokens
from keras_tx_onnx.graph.unpadding import unpad
from keras_tx_onnx.interfaces.base import Example, Interface
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.signature import Functional
from keras_tx_onnx.reading.symbolic_sizes import sizes_of_ids
from keras_tx_onnx.verifying import cases

INPUTS = (contract.INPUT_IDS, contract.ATTENTION_MASK, contract.TOKEN_TYPE_IDS)


def encoder_of(
    functional: Functional,
    labels: Sequence[str] | None,
    tokenizer: Any,
    unpadded: bool,
    others: Mapping[str, Any],
) -> Interface | None:
    """The contract's interface of a model that keras_tx.bert made; None for any other.

    `others` are arguments of the export that a text model has no use for.
    """
    model = functional.model
    if not isinstance(model, Bert):
        return None
    for name, value in others.items():
        if value is not None:
            raise ConfigError(
                f"{name}={value!r} was given, but {model.name!r} is a model of text. Leave it out."
            )
    notes = []
    replaced = None
    if model.config.position_ids:
        model = replaced = model.without_position_ids()
        notes.append(
            "position_ids is not an input of the graph, because clients do not pass it to a BERT. The graph "
            "uses the default positions of the Keras model."
        )
    names = label_names(model.head, labels, model.name)
    config = to_config(model, names)
    if config.note:
        notes.append(config.note)
    inputs = [name for name in INPUTS if name in model.input]
    files: dict[str, Any] = {contract.CONFIG: config.content}
    tokenizer = model.processing if tokenizer is None else tokenizer
    longest = None
    if tokenizer is None:
        notes.append("The folder has no tokenizer: the runtime takes ids, not text. Give tokenizer=.")
    else:
        transform = _fitted(model, tokenizer)
        if tokenizer is not model.processing:
            check_tokenizer(transform, model.config, model.processing, name="tokenizer", stacklevel=4)
        files |= transform.files()
        longest = transform.max_length
    if isinstance(model.head, SentenceEmbeddingHead):
        replaced = _with_tokens(model)
    if model.task == contract.FEATURE_EXTRACTION:
        pooling = model.head or SentenceEmbeddingHead()  # as the runtime has it where there is no head
        files |= sentence_files(pooling, model.config.width, longest or model.config.max_length)
    exported = model if replaced is None else replaced
    outputs = _outputs(exported)

    def open_graph(cx: GraphContext) -> list[ir.Value]:
        shape = [contract.BATCH_AXIS, contract.SEQUENCE_AXIS]
        values = {name: cx.input(name, ir.DataType.INT64, shape) for name in inputs}
        return [values[tensor.name] for tensor in functional_graph.function_of(exported).inputs]

    specs = [
        contract.TensorSpec(name, "int64", (contract.BATCH_AXIS, contract.SEQUENCE_AXIS)) for name in inputs
    ]
    uses = {
        contract.INPUT_IDS: Use(model.config.vocabulary_size, padding=model.config.pad_id),
        contract.TOKEN_TYPE_IDS: Use(model.config.segments),
    }

    def example(sizes: cases.Sizes, masks: cases.Masks, random: np.random.Generator) -> Example:
        feed = draw(specs, uses, {contract.BATCH_AXIS: len(masks), **sizes}, masks, random)
        return feed, [feed[tensor.name] for tensor in functional_graph.function_of(exported).inputs]

    def expected(outputs_of_keras: list[np.ndarray], given: list[np.ndarray]) -> list[np.ndarray]:
        """Without padding, outputs of masked tokens are 0, and those of a span are Keras's."""
        position = [tensor.name for tensor in functional_graph.function_of(exported).inputs].index(
            contract.ATTENTION_MASK
        )
        mask = given[position]
        return [
            np.where(mask[..., None] != 0, y, 0).astype(y.dtype) if y.ndim == 3 and unpadded else y
            for y in outputs_of_keras
        ]

    return Interface(
        task=model.task,
        open=open_graph,
        outputs=outputs,
        example=example,
        files=files,
        labels=None if names is None else tuple(names),
        notes=tuple(notes),
        axes=(contract.SEQUENCE_AXIS,),
        sequences=True,
        permits=lambda sizes: sizes[contract.SEQUENCE_AXIS] <= model.config.max_length,
        masked=True,
        model=replaced,
        expected=expected,
        passes=(sizes_of_ids, select_tokens, *((unpad,) if unpadded else ())),
    )


def _outputs(model: Any) -> list[str]:
    """The names of the outputs, in order: the keys of a dict, and `logits` for a single one."""
    return sorted(model.output) if isinstance(model.output, dict) else [contract.LOGITS]


def _with_tokens(model: Bert) -> keras.Model:
    """The model with its tokens as one more output, which other clients pool by themselves."""
    tokens = model.get_layer(f"block_{model.config.depth - 1}").output
    outputs = {contract.LAST_HIDDEN_STATE: tokens, contract.SENTENCE_EMBEDDING: model.output}
    return keras.Model(model.input, outputs, name=model.name)


def _fitted(model: Bert, tokenizer: Any) -> TextTransform:
    transform = TextTransform.of(tokenizer)
    needed = ["pad_token", "unk_token", "cls_token", "sep_token"]
    if model.task == contract.FILL_MASK:
        needed.append("mask_token")
    missing = [name for name in needed if getattr(transform, name) is None]
    if missing:
        raise ConfigError(
            f"tokenizer has no {', '.join(missing)}, which {model.name!r} needs. If its vocabulary has them "
            f"under other names, say them: TextTransform.load(path, {missing[0]}='...')."
        )
    if json.loads(transform.tokenizer)["post_processor"] is None:
        raise ConfigError(
            "tokenizer has no post_processor, so it would not put the special tokens around a text. Give it "
            "tokenizers.processors.BertProcessing or TemplateProcessing."
        )
    fitted = fitting(transform, model.config, segments=model.config.segments > 1, name="tokenizer")
    check_padded_right(fitted, "tokenizer")
    assert fitted is not None
    return fitted
