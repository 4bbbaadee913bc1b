"""The interface of a text encoder: token ids, the outputs of its head, and the files of clients."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.heads import SentenceEmbeddingHead
from keras_tx.heads.base import label_names
from keras_tx.models.sentence_transformers import sentence_files
from keras_tx.models.text_model import DecoderModel
from keras_tx.models.tokenizer_checks import check_padded_right, check_tokenizer, fit_to_model
from keras_tx.processing import TextTransform
from keras_tx.runtime.example_inputs import Use, draw
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.graph.passes import read_sizes_from_ids
from keras_tx_onnx.graph.unpadding import unpad
from keras_tx_onnx.interfaces.base import (
    Example,
    Interface,
    Masks,
    Sizes,
    check_flag,
)
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.signature import Functional

INPUTS = (contract.INPUT_IDS, contract.ATTENTION_MASK, contract.TOKEN_TYPE_IDS)
TOKENS = (contract.BATCH_AXIS, contract.SEQUENCE_AXIS)  # the shape of each input
CHOICES = (contract.BATCH_AXIS, contract.CHOICES_AXIS, contract.SEQUENCE_AXIS)  # with a MultipleChoiceHead
MOST_CHOICES = 5  # of an example


@dataclasses.dataclass(frozen=True)
class EncoderOptions:
    """Options of a text encoder; see export_onnx."""

    labels: Sequence[str] | None = None
    tokenizer: Any = None
    unpad: bool = True

    def __post_init__(self) -> None:
        check_flag("unpad", self.unpad)


class EncoderInterface(Interface):
    """`input_ids`, `attention_mask` and perhaps `token_type_ids` to the outputs of the head."""

    kind = "a text encoder"
    Options = EncoderOptions
    axes = (contract.SEQUENCE_AXIS,)
    sequences = masked = True

    def __init__(self, functional: Functional, options: EncoderOptions, opset: int):
        super().__init__(functional, options, opset)
        source = functional.model
        if contract.POSITION_IDS in source.input:
            self.model = source.without_position_ids()
            self.notes.append(
                "position_ids is not an input of the graph, because clients do not pass it to an encoder. "
                "The graph uses the default positions of the Keras model."
            )
        labels = label_names(source.head, options.labels, source.name)
        self.task = source.task
        self.labels = None if labels is None else tuple(labels)
        self.max_length = source.config.max_length
        self.names = [name for name in INPUTS if name in self.model.input]
        self.uses = {
            contract.INPUT_IDS: Use(source.config.vocabulary_size, getattr(source.config, "pad_id", None)),
            contract.TOKEN_TYPE_IDS: Use(getattr(source.config, "segments", 1)),
        }
        transform = _transform(source, options.tokenizer)
        self._add_files(source, labels, transform)
        if isinstance(source.head, SentenceEmbeddingHead):
            self.model = _with_tokens(self.model)
        output = self.model.output
        self.outputs = sorted(output) if isinstance(output, dict) else [contract.LOGITS]
        self.has_choices = source.head is not None and source.head.has_choices
        if self.has_choices:  # the passes are for inputs (batch, sequence)
            self.options = dataclasses.replace(options, unpad=False)
        else:
            self.passes = [read_sizes_from_ids, *self.passes, *([unpad] if options.unpad else [])]
        self.order = [tensor.name for tensor in functional_graph.function_of(self.model).inputs]

    def _add_files(self, source: Any, labels: list[str] | None, transform: TextTransform | None) -> None:
        self.add_config(source, labels, transform)
        if transform is None:
            self.notes.append(
                "The folder has no tokenizer, so the runtime accepts only token ids. Pass tokenizer= to add "
                "one."
            )
        else:
            self.files |= transform.files()
        if source.task == contract.FEATURE_EXTRACTION:
            pooling = source.head or SentenceEmbeddingHead()  # the runtime's default without a head
            longest = transform and transform.max_length
            self.files |= sentence_files(pooling, source.config.width, longest or source.config.max_length)

    @property
    def shape(self) -> tuple[str, ...]:
        """The axes of each input."""
        return CHOICES if self.has_choices else TOKENS

    def open(self, context: GraphContext) -> list[ir.Value]:
        values = {name: context.input(name, ir.DataType.INT64, list(self.shape)) for name in self.names}
        return [values[name] for name in self.order]

    def example(self, sizes: Sizes, masks: Masks, random: np.random.Generator) -> Example:
        specs = [contract.TensorSpec(name, "int64", self.shape) for name in self.names]
        sizes = {contract.BATCH_AXIS: len(masks), **sizes}
        if self.has_choices:
            sizes[contract.CHOICES_AXIS] = int(random.integers(2, MOST_CHOICES))
        feed = draw(specs, self.uses, sizes, masks, random)
        if self.has_choices:
            feed[contract.ATTENTION_MASK] = feed[contract.ATTENTION_MASK].copy()
            feed[contract.ATTENTION_MASK][1::2, -1] = 0  # a sample with one choice less
        return feed, [feed[name] for name in self.order]

    def expected(self, outputs: list[np.ndarray], inputs: list[np.ndarray]) -> list[np.ndarray]:
        """With `unpad`, per-token outputs are 0 at padding; span logits equal those of Keras."""
        if not self.options.unpad:
            return outputs
        mask = inputs[self.order.index(contract.ATTENTION_MASK)][..., None] != 0
        return [np.where(mask, y, 0).astype(y.dtype) if y.ndim == 3 else y for y in outputs]

    def export_options(self) -> dict[str, Any]:
        return {"unpad": self.options.unpad}


def _with_tokens(model: Any) -> keras.Model:
    """The model with its last hidden state as another output, because some clients pool tokens themselves."""
    outputs = {contract.LAST_HIDDEN_STATE: model.encoded.tokens, contract.SENTENCE_EMBEDDING: model.output}
    return keras.Model(model.input, outputs, name=model.name)


def _transform(model: Any, tokenizer: Any) -> TextTransform | None:
    """The text transform of the folder: of the option, or of the model."""
    tokenizer = model.processing if tokenizer is None else tokenizer
    if tokenizer is None:
        return None
    transform = TextTransform.of(tokenizer)
    is_decoder = isinstance(model, DecoderModel)  # its texts need no special tokens
    required = [] if is_decoder else ["pad_token", "unk_token", "cls_token", "sep_token"]
    if model.task == contract.FILL_MASK:
        required.append("mask_token")
    missing = [name for name in required if getattr(transform, name) is None]
    if missing:
        raise ConfigError(
            f"tokenizer has no {', '.join(missing)}, which model {model.name!r} requires. If its vocabulary "
            f"has other names for them, pass TextTransform.load(path, {missing[0]}='...')."
        )
    if not is_decoder and json.loads(transform.tokenizer)["post_processor"] is None:
        raise ConfigError(
            "tokenizer has no post_processor, which adds the special tokens to a text. Set "
            "tokenizers.processors.BertProcessing or TemplateProcessing."
        )
    segments = contract.TOKEN_TYPE_IDS in model.input
    transform = fit_to_model(transform, model.config, segments=segments, name="tokenizer")
    if transform is not None and is_decoder:  # it counts positions along the mask
        transform = dataclasses.replace(transform, padding_side="right")
    check_padded_right(transform, "tokenizer")
    if tokenizer is not model.processing:
        check_tokenizer(transform, model.config, model.processing, name="tokenizer")
    return transform
