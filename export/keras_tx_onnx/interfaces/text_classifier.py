"""The exported graph of a text classifier of keras-hub, with its preprocessor's tokenizer and its labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.models.text_model import SPECIAL_TOKENS
from keras_tx.processing import TextTransform
from keras_tx.runtime.example_inputs import Use, draw
from keras_tx.weights.keras_hub_tokenizers import converted
from keras_tx_onnx import tolerances
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.interfaces.base import Example, Interface
from keras_tx_onnx.interfaces.class_scores import class_scores
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.keras_patches import in_float32
from keras_tx_onnx.reading.signature import Functional
from keras_tx_onnx.verifying import cases

# The inputs of keras-hub's encoders, by the contract's names.
_INPUTS = {
    "token_ids": contract.INPUT_IDS,
    "padding_mask": contract.ATTENTION_MASK,
    "segment_ids": contract.TOKEN_TYPE_IDS,
}
_REMEDY = "Leave task and labels out: the model is then exported as a generic model, which takes ids."
_ASCII = "".join(map(chr, range(32, 127)))
_CHARACTERS = [chr(code) for code in (*range(0x80, 0x3100), *range(0x3100, 0xD800, 61))]
_WORDS = 1000  # of the vocabulary are compared
_NAMED = 20  # characters that a note lists


def is_text_classifier(model: Any) -> bool:
    """Whether a model, none of ours, has a preprocessor with a tokenizer, as keras-hub's have."""
    return getattr(getattr(model, "preprocessor", None), "tokenizer", None) is not None


def text_classifier_of(
    functional: Functional, labels: Sequence[str] | None, others: Mapping[str, Any]
) -> Interface:
    """The interface of a model of token ids with one vector out, a number for each class.

    The tokenizer of the folder returns the ids of the model's own preprocessor, which is checked on texts of
    its vocabulary.

    Args:
        functional: the model.
        labels: names of the classes, in order; two for a model with one sigmoid.
        others: arguments of the export that apply to images alone.
    """
    model = functional.model
    for name, value in others.items():
        if value is not None:
            raise ConfigError(f"{name}={value!r} was passed, but {model.name!r} is a model of text. Omit it.")
    function = functional_graph.function_of(model)
    names = _input_names(model, function)
    scores = class_scores(model, function, labels)
    uses = dict(zip(names, cases.uses_of(function), strict=True))
    vocabulary = uses[contract.INPUT_IDS].vocabulary_size
    positions = getattr(getattr(model, "backbone", None), "max_sequence_length", None)
    transform = _transform(model, vocabulary, positions, contract.TOKEN_TYPE_IDS in names)
    uses[contract.INPUT_IDS] = Use(vocabulary, padding=transform.pad_id)
    notes = [*functional.notes, *_compared(model, names, transform)]
    notes.append(
        f"config.json has no model_type: {model.name!r} is a keras-hub model. Clients that need one "
        "(Optimum, transformers.js) will not open the folder; onnxruntime and keras_tx.runtime do. "
        "keras_tx.from_checkpoint makes models whose folders have one of keras-hub's BERT, RoBERTa and "
        "DistilBERT."
    )
    shape = (contract.BATCH_AXIS, contract.SEQUENCE_AXIS)
    specs = [contract.TensorSpec(name, "int64", shape) for name in names]

    def open_graph(cx: GraphContext) -> list[ir.Value]:
        order = [name for name in _INPUTS.values() if name in names]
        values = {name: cx.input(name, ir.DataType.INT64, list(shape)) for name in order}
        return [values[name] for name in names]

    def example(sizes: cases.Sizes, masks: cases.Masks, random: np.random.Generator) -> Example:
        arrays = draw(specs, uses, {contract.BATCH_AXIS: len(masks), **sizes}, masks, random)
        return arrays, [arrays[name] for name in names]

    config = {**scores.config, "vocab_size": vocabulary, "pad_token_id": transform.pad_id}
    if positions is not None:
        config["max_position_embeddings"] = positions
    if contract.TOKEN_TYPE_IDS in names:
        config["type_vocab_size"] = uses[contract.TOKEN_TYPE_IDS].vocabulary_size
    return Interface(
        task=contract.TEXT_CLASSIFICATION,
        open=open_graph,
        outputs=[contract.LOGITS],
        example=example,
        files={contract.CONFIG: config, **transform.files()},
        labels=scores.labels,
        notes=tuple(notes),
        axes=(contract.SEQUENCE_AXIS,),
        sequences=True,
        permits=lambda sizes: positions is None or sizes[contract.SEQUENCE_AXIS] <= positions,
        masked=True,
        passes=(*Interface.passes, *scores.passes),
        expected=scores.expected,
    )


def _input_names(model: Any, function: Any) -> list[str]:
    """The contract's names of the inputs, in the order of the model."""
    inputs, outputs = function.inputs, function.outputs
    names = [_INPUTS.get(tensor.name) for tensor in inputs]
    required = {contract.INPUT_IDS, contract.ATTENTION_MASK}
    dynamic = all(tuple(tensor.shape) == (None, None) for tensor in inputs)
    vector = len(outputs) == 1 and len(outputs[0].shape) == 2 and outputs[0].shape[1] is not None
    if None in names or not required <= set(names) or not dynamic or not vector:
        described = ", ".join(f"{tensor.name} {tuple(tensor.shape)}" for tensor in inputs)
        raise ConfigError(
            f"Model {model.name!r} ({type(model).__name__}) has the inputs {described} and the outputs "
            f"{', '.join(str(tuple(tensor.shape)) for tensor in outputs)}, expected token_ids, padding_mask "
            f"and optionally segment_ids (batch, sequence), and one vector (batch, classes). {_REMEDY}"
        )
    return [str(name) for name in names]


def _transform(model: Any, vocabulary: int, positions: int | None, segments: bool) -> TextTransform:
    """The tokenizer of the model's preprocessor, as its tables allow it."""
    preprocessor = model.preprocessor
    kind = type(preprocessor.tokenizer).__name__
    try:
        transform = dataclasses.replace(converted(preprocessor), segments=segments)
    except ConfigError as error:
        raise ConfigError(
            f"The tokenizer of model {model.name!r}, a {kind}, cannot be converted: {error}. {_REMEDY}"
        ) from error
    if transform.vocabulary_size > vocabulary:
        raise ConfigError(
            f"The tokenizer of model {model.name!r} has ids up to {transform.vocabulary_size - 1}, but the "
            f"model has {vocabulary} vectors. Use the tokenizer that the model was trained with."
        )
    if positions is not None and (transform.max_length is None or transform.max_length > positions):
        raise ConfigError(
            f"The preprocessor of model {model.name!r} has sequence_length={transform.max_length}, but the "
            f"model has {positions} positions. Set model.preprocessor.sequence_length = {positions}."
        )
    return transform


def _compared(model: Any, names: Sequence[str], transform: TextTransform) -> Iterable[str]:
    """Compares the tokenizer with the preprocessor; returns notes on texts for which it returns other ids.

    Raises where words of the vocabulary or ASCII text differ, or the model's outputs for them.
    """
    kind = type(model.preprocessor.tokenizer).__name__
    quiet = dataclasses.replace(transform, too_long="cut")
    special = [getattr(transform, name) for name in SPECIAL_TOKENS]
    odd = _differing(model.preprocessor, quiet, list(dict.fromkeys(filter(None, special))))
    odd += [text[1] for text in _differing(model.preprocessor, quiet, [f"a{c}a" for c in _CHARACTERS])]
    words = [word.removeprefix("##").removeprefix("\u0120") for word in transform.vocabulary]
    words = sorted(word for word in words if word.isalnum() and not set(word) & set(odd))
    words = words[:: -(-len(words) // _WORDS) or 1]
    sentences = [" ".join(words[start : start + 8]) for start in range(0, len(words), 8)]
    texts = [
        "It's  a\ttest,\nisn't it? (No!)",
        "",
        " ".join(words) + ".",
        *_ASCII,
        *(_ASCII[i::7] for i in range(7)),
        *sentences,
        *(sentence.title() for sentence in sentences if sentence.isascii()),
    ]
    wrong = _differing(model.preprocessor, quiet, texts)
    if wrong:
        raise ConfigError(
            f"The tokenizer of model {model.name!r}, a {kind}, cannot be converted: for the text "
            f"{wrong[0][:80]!r} its preprocessor returns other ids. {_REMEDY}"
        )
    short = ["", " ".join(words[:2])]  # rows without padding, beside keras-hub's of sequence_length
    own = _outputs(model, _prepared(model.preprocessor, short))
    rows = [_outputs(model, _named(model, names, quiet(text))) for text in short]
    difference = tolerances.difference(own, np.concatenate(rows))
    if difference > tolerances.FLOAT32:
        raise ConfigError(
            f"Model {model.name!r} returns other outputs for texts that are padded to sequence_length="
            f"{transform.max_length} than for shorter rows, by {difference:.1e} of their scale: padding that "
            f"padding_mask excludes changes them. {_REMEDY}"
        )
    if odd:
        odd = sorted(odd, key=lambda text: not text.isprintable())
        listed = ", ".join(repr(text) for text in odd[:_NAMED])
        listed += f" and {len(odd) - _NAMED} more" if len(odd) > _NAMED else ""
        yield (
            f"The tokenizer of the folder is Hugging Face's equivalent of the {kind} of {model.name!r}. They "
            f"return different ids for {listed}."
        )
    yield "Pairs of texts longer than sequence_length may be cut at other tokens than by keras-hub."


def _prepared(preprocessor: Any, texts: Sequence[str]) -> dict[str, np.ndarray]:
    inputs = preprocessor(list(texts))
    return {name: keras.ops.convert_to_numpy(x) for name, x in inputs.items()}


def _differing(preprocessor: Any, transform: TextTransform, texts: Sequence[str]) -> list[str]:
    """The texts for which the two return other ids."""
    own = _prepared(preprocessor, texts)
    rows = transform.encode(list(texts))
    return [
        text
        for text, ids, mask, row in zip(texts, own["token_ids"], own["padding_mask"], rows, strict=True)
        if not np.array_equal(ids[mask.astype(bool)], row.ids)
    ]


def _named(model: Any, names: Sequence[str], batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A batch under the names that keras-hub has."""
    inputs = zip(functional_graph.function_of(model).inputs, names, strict=True)
    return {tensor.name: batch[name] for tensor, name in inputs}


def _outputs(model: Any, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    with keras.device("cpu"), in_float32():
        return keras.ops.convert_to_numpy(model(dict(inputs), training=False))
