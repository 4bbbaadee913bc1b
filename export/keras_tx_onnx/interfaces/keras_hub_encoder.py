"""The inputs and files of the encoder tasks of keras-hub, with the tokenizer of their preprocessor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.processing import TextTransform
from keras_tx.runtime.example_inputs import Use, draw
from keras_tx_onnx import tolerances
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.interfaces.base import Example, Interface, Masks, Sizes, no_model_type
from keras_tx_onnx.interfaces.keras_hub_texts import (
    REMEDY,
    keras_hub_text_transform,
    packed_ids,
    prepared,
    sample_words,
    tokenizer_notes,
)
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.input_uses import input_uses
from keras_tx_onnx.reading.keras_patches import in_float32
from keras_tx_onnx.reading.signature import Functional

# The inputs of keras-hub's encoders, by the contract's names.
_INPUTS = {
    "token_ids": contract.INPUT_IDS,
    "padding_mask": contract.ATTENTION_MASK,
    "segment_ids": contract.TOKEN_TYPE_IDS,
}
_SHAPE = (contract.BATCH_AXIS, contract.SEQUENCE_AXIS)


class KerasHubEncoderInterface(Interface):
    """`input_ids`, `attention_mask` and perhaps `token_type_ids` to the outputs of a task.

    The tokenizer of the folder must return the ids of the model's own preprocessor, which is tested on texts
    of its vocabulary.
    """

    axes = (contract.SEQUENCE_AXIS,)
    sequences = masked = True

    def __init__(self, functional: Functional, options: Any, opset: int, source: Any):
        """`source` is the task of keras-hub, whose inputs and layers the exported model has."""
        super().__init__(functional, options, opset)
        self.source = source
        function = functional_graph.function_of(self.model)
        self.names = _input_names(source, function)
        self.uses = dict(zip(self.names, input_uses(function), strict=True))
        vocabulary = self.uses[contract.INPUT_IDS].vocabulary_size
        self.max_length = getattr(getattr(source, "backbone", None), "max_sequence_length", None)
        transform = keras_hub_text_transform(source, vocabulary, self.max_length)
        segments = contract.TOKEN_TYPE_IDS in self.names
        self.transform = dataclasses.replace(transform, segments=segments)
        self.uses[contract.INPUT_IDS] = Use(vocabulary, padding=transform.pad_id)

    def add_files(self, fields: Mapping[str, Any]) -> None:
        """Compares the tokenizer and the padding with keras-hub's, and adds the files of the folder.

        `fields` are entries of config.json.
        """
        source, transform = self.source, self.transform
        vocabulary = self.uses[contract.INPUT_IDS].vocabulary_size
        config = {**fields, "vocab_size": vocabulary, "pad_token_id": transform.pad_id}
        if self.max_length is not None:
            config["max_position_embeddings"] = self.max_length
        if contract.TOKEN_TYPE_IDS in self.names:
            config["type_vocab_size"] = self.uses[contract.TOKEN_TYPE_IDS].vocabulary_size
        self.files = {**self.files, contract.CONFIG: config, **transform.files()}
        self.notes += tokenizer_notes(source, transform, partial(packed_ids, source.preprocessor))
        _check_padding(self.model, source, self.names, transform)
        self.notes.append(
            no_model_type(f"{source.name!r} is a keras-hub model")
            + " For keras-hub's BERT, RoBERTa and DistilBERT, export the model of keras_tx.from_checkpoint, "
            "which has one."
        )

    def open(self, context: GraphContext) -> list[ir.Value]:
        order = [name for name in _INPUTS.values() if name in self.names]
        values = {name: context.input(name, ir.DataType.INT64, list(_SHAPE)) for name in order}
        return [values[name] for name in self.names]

    def example(self, sizes: Sizes, masks: Masks, random: np.random.Generator) -> Example:
        specs = [contract.TensorSpec(name, "int64", _SHAPE) for name in self.names]
        feed = draw(specs, self.uses, {contract.BATCH_AXIS: len(masks), **sizes}, masks, random)
        return feed, [feed[name] for name in self.names]

    def export_options(self) -> dict[str, Any]:
        return {"task": self.task}


def _input_names(model: Any, function: Any) -> list[str]:
    """The contract's names of the inputs, in the order of the model."""
    inputs = function.inputs
    names = [_INPUTS.get(tensor.name) for tensor in inputs]
    required = {contract.INPUT_IDS, contract.ATTENTION_MASK}
    dynamic = all(tuple(tensor.shape) == (None, None) for tensor in inputs)
    if None in names or not required <= set(names) or not dynamic:
        described = ", ".join(f"{tensor.name} {tuple(tensor.shape)}" for tensor in inputs)
        raise ConfigError(
            f"Model {model.name!r} ({type(model).__name__}) has the inputs {described}, expected token_ids, "
            f"padding_mask and optionally segment_ids (batch, sequence). {REMEDY}"
        )
    return [str(name) for name in names]


def _check_padding(model: Any, source: Any, names: Sequence[str], transform: TextTransform) -> None:
    """Raises a ConfigError if outputs for texts padded as keras-hub pads them differ from shorter rows."""
    transform = dataclasses.replace(transform, too_long="cut")
    texts = ["", " ".join(sample_words(transform)[:2])]
    whole = prepared(source.preprocessor, texts)
    padded = _outputs(model, {tensor.name: whole[tensor.name] for tensor in _inputs(model)})
    for index, text in enumerate(texts):
        batch = transform(text)
        feed = {tensor.name: batch[name] for tensor, name in zip(_inputs(model), names, strict=True)}
        length = batch[contract.INPUT_IDS].shape[1]
        for long, short in zip(padded, _outputs(model, feed), strict=True):
            row = long[index, :length] if long.ndim == 3 else long[index]
            difference = tolerances.difference(row[None], short)
            if difference > tolerances.FLOAT32:
                raise ConfigError(
                    f"Model {source.name!r} returns different outputs for texts that are padded to "
                    f"sequence_length={transform.max_length} than for shorter rows, by {difference:.1e} of "
                    f"their scale: padding that padding_mask excludes changes them. {REMEDY}"
                )


def _inputs(model: Any) -> list[Any]:
    return functional_graph.function_of(model).inputs


def _outputs(model: Any, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    with keras.device("cpu"), in_float32():
        outputs = model(dict(inputs), training=False)
        return [keras.ops.convert_to_numpy(x) for x in keras.tree.flatten(outputs)]
