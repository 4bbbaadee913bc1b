"""The exported graph of a text classifier of keras-hub, with its preprocessor's tokenizer and its labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.models.tokenizer_checks import SPECIAL_TOKENS
from keras_tx.processing import TextTransform
from keras_tx.runtime.example_inputs import Use, draw
from keras_tx.weights.keras_hub_tokenizers import converted
from keras_tx_onnx import tolerances
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.interfaces.base import Example, Interface, Masks, Sizes, no_model_type
from keras_tx_onnx.interfaces.class_scores import ClassScores
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
_REMEDY = "Omit task and labels to export a generic model, whose inputs are token ids."
_SHAPE = (contract.BATCH_AXIS, contract.SEQUENCE_AXIS)
_ASCII = "".join(map(chr, range(32, 127)))
_CHARACTERS = [chr(code) for code in (*range(0x80, 0x3100), *range(0x3100, 0xD800, 61))]
_WORDS = 1000  # of the vocabulary, to compare tokenizers on
_LISTED = 20  # characters in a note


def has_tokenizer(model: Any) -> bool:
    """Whether a model has a preprocessor with a tokenizer, as text models of keras-hub have."""
    return getattr(getattr(model, "preprocessor", None), "tokenizer", None) is not None


@dataclasses.dataclass(frozen=True)
class TextClassifierOptions:
    """Options of a text classifier; see export_onnx."""

    labels: Sequence[str] | None = None


class TextClassifierInterface(Interface):
    """`input_ids`, `attention_mask` and perhaps `token_type_ids` to `logits`.

    The tokenizer of the folder must return the ids of the model's own preprocessor, which is tested on texts
    of its vocabulary.
    """

    kind = "a text classifier of keras-hub"
    Options = TextClassifierOptions
    task = contract.TEXT_CLASSIFICATION
    axes = (contract.SEQUENCE_AXIS,)
    sequences = masked = True

    def __init__(self, functional: Functional, options: TextClassifierOptions, opset: int):
        super().__init__(functional, options, opset)
        model = self.model
        function = functional_graph.function_of(model)
        self.names = _input_names(model, function)
        self.scores = ClassScores(model, function, options.labels)
        self.labels = self.scores.labels
        self.outputs = [contract.LOGITS]
        self.passes += self.scores.passes
        self.max_length = getattr(getattr(model, "backbone", None), "max_sequence_length", None)
        self.uses = dict(zip(self.names, input_uses(function), strict=True))
        vocabulary = self.uses[contract.INPUT_IDS].vocabulary_size
        segments = contract.TOKEN_TYPE_IDS in self.names
        transform = _transform(model, vocabulary, self.max_length, segments)
        self.uses[contract.INPUT_IDS] = Use(vocabulary, padding=transform.pad_id)
        config = {**self.scores.config, "vocab_size": vocabulary, "pad_token_id": transform.pad_id}
        if self.max_length is not None:
            config["max_position_embeddings"] = self.max_length
        if segments:
            config["type_vocab_size"] = self.uses[contract.TOKEN_TYPE_IDS].vocabulary_size
        self.files = {contract.CONFIG: config, **transform.files()}
        self.notes += _tokenizer_notes(model, transform)
        _check_padding(model, self.names, transform)
        self.notes.append(
            no_model_type(f"{model.name!r} is a keras-hub model")
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

    def expected(self, outputs: list[np.ndarray], inputs: list[np.ndarray]) -> list[np.ndarray]:
        return self.scores.expected(outputs, inputs)

    def export_options(self) -> dict[str, Any]:
        return {"task": self.task}


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
    """The tokenizer of the model's preprocessor."""
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


def _tokenizer_notes(model: Any, transform: TextTransform) -> Iterator[str]:
    """Compares the tokenizer with the preprocessor; returns notes about texts with different ids.

    Raises a ConfigError if words of the vocabulary or ASCII text have different ids.
    """
    kind = type(model.preprocessor.tokenizer).__name__
    transform = dataclasses.replace(transform, too_long="cut")
    special = filter(None, [getattr(transform, name) for name in SPECIAL_TOKENS])
    differing = _differing(model.preprocessor, transform, list(dict.fromkeys(special)))
    around = [f"a{character}a" for character in _CHARACTERS]
    differing += [text[1] for text in _differing(model.preprocessor, transform, around)]
    texts = _texts(_words(transform, set(differing)))
    wrong = _differing(model.preprocessor, transform, texts)
    if wrong:
        raise ConfigError(
            f"The tokenizer of model {model.name!r}, a {kind}, cannot be converted: for the text "
            f"{wrong[0][:80]!r} its preprocessor returns different ids. {_REMEDY}"
        )
    if differing:
        differing = sorted(differing, key=lambda text: not text.isprintable())
        listed = ", ".join(map(repr, differing[:_LISTED]))
        listed += f" and {len(differing) - _LISTED} more" if len(differing) > _LISTED else ""
        yield (
            f"The tokenizer of the folder is Hugging Face's equivalent of the {kind} of {model.name!r}. They "
            f"return different ids for {listed}."
        )
    yield "Pairs of texts longer than sequence_length may be cut at other tokens than by keras-hub."


def _words(transform: TextTransform, excluded: set[str]) -> list[str]:
    """A sample of the vocabulary's words, without those that contain an excluded character."""
    words = [word.removeprefix("##").removeprefix("\u0120") for word in transform.vocabulary]
    words = sorted(word for word in words if word.isalnum() and not set(word) & excluded)
    return words[:: -(-len(words) // _WORDS) or 1]


def _texts(words: Sequence[str]) -> list[str]:
    """Texts of words and of ASCII characters to compare tokenizers on."""
    sentences = [" ".join(words[start : start + 8]) for start in range(0, len(words), 8)]
    return [
        "It's  a\ttest,\nisn't it? (No!)",
        "",
        " ".join(words) + ".",
        *_ASCII,
        *(_ASCII[i::7] for i in range(7)),
        *sentences,
        *(sentence.title() for sentence in sentences if sentence.isascii()),
    ]


def _check_padding(model: Any, names: Sequence[str], transform: TextTransform) -> None:
    """Raises a ConfigError if outputs for texts padded as keras-hub pads them differ from shorter rows."""
    transform = dataclasses.replace(transform, too_long="cut")
    texts = ["", " ".join(_words(transform, set(_CHARACTERS))[:2])]
    padded = _outputs(model, _prepared(model.preprocessor, texts))
    rows = [_outputs(model, _named(model, names, transform(text))) for text in texts]
    difference = tolerances.difference(padded, np.concatenate(rows))
    if difference > tolerances.FLOAT32:
        raise ConfigError(
            f"Model {model.name!r} returns different outputs for texts that are padded to sequence_length="
            f"{transform.max_length} than for shorter rows, by {difference:.1e} of their scale: padding that "
            f"padding_mask excludes changes them. {_REMEDY}"
        )


def _prepared(preprocessor: Any, texts: Sequence[str]) -> dict[str, np.ndarray]:
    inputs = preprocessor(list(texts))
    return {name: keras.ops.convert_to_numpy(x) for name, x in inputs.items()}


def _differing(preprocessor: Any, transform: TextTransform, texts: Sequence[str]) -> list[str]:
    """The texts for which the two return different ids."""
    own = _prepared(preprocessor, texts)
    rows = transform.encode(list(texts))
    return [
        text
        for text, ids, mask, row in zip(texts, own["token_ids"], own["padding_mask"], rows, strict=True)
        if not np.array_equal(ids[mask.astype(bool)], row.ids)
    ]


def _named(model: Any, names: Sequence[str], batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A batch with the input names of keras-hub."""
    inputs = zip(functional_graph.function_of(model).inputs, names, strict=True)
    return {tensor.name: batch[name] for tensor, name in inputs}


def _outputs(model: Any, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    with keras.device("cpu"), in_float32():
        return keras.ops.convert_to_numpy(model(dict(inputs), training=False))
