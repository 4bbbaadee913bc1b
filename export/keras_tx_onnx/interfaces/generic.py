"""The interface of any other Keras model: its own inputs and outputs."""

from __future__ import annotations

import re
from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.runtime.example_inputs import draw, is_mask
from keras_tx_onnx.graph.builder import GraphContext, onnx_dtype
from keras_tx_onnx.interfaces.base import Example, Interface, Masks, NoOptions, Sizes, axis_names
from keras_tx_onnx.reading import functional_graph, symbolic_sizes
from keras_tx_onnx.reading.input_uses import input_uses
from keras_tx_onnx.reading.signature import Functional

_UNNAMED = re.compile(r"(keras_tensor|input_layer)(_\d+)?")  # default names of Keras


class GenericInterface(Interface):
    """The inputs and outputs of a Keras model, under their own names."""

    kind = "a generic model"
    Options = NoOptions

    def __init__(self, functional: Functional, options: NoOptions, opset: int):
        super().__init__(functional, options, opset)
        self.outputs = [_without_index(name) for name in functional.outputs]
        function = functional_graph.function_of(self.model)
        self.tensors: list[keras.KerasTensor] = list(function.inputs)
        names = _numbered(_input_names(function))
        self.specs = [
            contract.TensorSpec(name, _numpy_dtype(tensor.dtype), tuple(axis_names(tensor.shape, prefix)))
            for name, tensor, prefix in zip(names, self.tensors, _prefixes(names), strict=True)
        ]
        self.uses = dict(zip(names, input_uses(function), strict=True))
        sizes = dict.fromkeys(size for spec in self.specs for size in spec.shape[1:])
        self.axes = tuple(size for size in sizes if isinstance(size, str))
        ranks = [len(tensor.shape) for tensor in self.tensors if None in tensor.shape[1:]]
        self.sequences = bool(ranks) and max(ranks) <= 3
        self.pictures = bool(ranks) and set(ranks) == {4}
        padded = any(use.padding is not None for use in self.uses.values())
        self.masked = padded or any(map(is_mask, self.specs))
        self.batch = next((tensor.shape[0] for tensor in self.tensors[:1] if tensor.shape), None)
        note = (
            f"Exported as a generic model with its own inputs and outputs, because {self.model.name!r} "
            f"({type(self.model).__name__}) belongs to no model family of keras_tx."
        )
        self.notes.insert(0, note)

    def open(self, context: GraphContext) -> list[ir.Value]:
        return [
            context.input(spec.name, onnx_dtype(tensor.dtype), list(spec.shape))
            for spec, tensor in zip(self.specs, self.tensors, strict=True)
        ]

    def example(self, sizes: Sizes, masks: Masks, random: np.random.Generator) -> Example:
        feed = draw(self.specs, self.uses, {contract.BATCH_AXIS: len(masks), **sizes}, masks, random)
        return feed, list(feed.values())


def _numpy_dtype(dtype: str) -> str:
    if dtype == "bool":
        return "bool"
    return "float32" if keras.backend.is_float_dtype(dtype) else "int64"


def _prefixes(names: list[str]) -> list[str]:
    """The prefix of each input's dynamic axes, because axes with one name have the same size.

    Several inputs that are one tokenized text share a prefix; a single input has none.
    """
    if len(names) == 1:
        return [""]
    texts = [symbolic_sizes.text_of(name, names) for name in names]
    return [name if text is None else _stem(text) for name, text in zip(names, texts, strict=True)]


def _stem(text: str) -> str:
    """A name such as `query_ids` without the ending of token ids."""
    ending = next(ending for ending in symbolic_sizes.TOKENS if text.endswith(ending))
    return text.removesuffix(ending).rstrip("_")


def _numbered(names: list[str]) -> list[str]:
    """Names with a number where one is repeated."""
    return [f"{name}_{names[:i].count(name)}" if name in names[:i] else name for i, name in enumerate(names)]


def _input_names(function: Any) -> list[str]:
    """The names of a graph's inputs.

    Keras numbers unnamed inputs differently in each process: such an input is named by its key in a dict of
    inputs, or `input`, `input_2` ... in order.
    """
    names = []
    for index, (path, tensor) in enumerate(keras.tree.flatten_with_path(function.input)):
        name = _without_index(tensor.name)
        if _UNNAMED.fullmatch(name):
            keys = [key for key in path if isinstance(key, str)]
            name = keys[-1] if keys else "input" if index == 0 else f"input_{index + 1}"
        names.append(name)
    return names


def _without_index(name: str) -> str:
    """A name of Keras without the index of the output, as in `dense:0`."""
    return name.split(":")[0]
