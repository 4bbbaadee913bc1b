"""A model whose class has a `call` of its own, as a functional model of one layer: itself."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
from keras import tree

from keras_tx.errors import ConfigError, ExportError
from keras_tx.models.text_model import TextModel
from keras_tx_onnx import graph
from keras_tx_onnx.errors import one_line


@dataclasses.dataclass(frozen=True)
class Functional:
    """A functional model, the names of its outputs, and notes for the report."""

    model: Any
    outputs: list[str]
    notes: tuple[str, ...] = ()


def as_functional(model: Any, signature: Any = None) -> Functional:
    """The model itself where its graph is known, else a functional model around it.

    `signature` says what the model takes, as keras.InputSpec in the structure of its call's arguments. A
    Sequential that was never built is built by it; of another model Keras remembers the shapes of its first
    call, and neither the dtypes nor which axes are dynamic.
    """
    if graph.is_function(model) and (isinstance(model, TextModel) or not graph.has_own_call(model)):
        if signature is not None:
            raise ConfigError(
                f"input_signature was given, but {model.name!r} is a functional model and knows its inputs. "
                "Leave it out."
            )
        model = _for_any_batch(model) if isinstance(model, keras.Sequential) else model
        return Functional(model, list(graph.function_of(model).output_names))
    notes: tuple[str, ...] = ()
    if signature is None:
        signature, notes = _remembered(model)
    arguments = signature if isinstance(signature, (list, tuple)) else [signature]
    names = graph.call_arguments(model)[: len(arguments)]
    if len(names) < len(arguments):
        raise ConfigError(
            f"input_signature has {len(arguments)} parts, but the call of {model.name!r} takes {len(names)}: "
            f"{', '.join(names)}. A list stands for the arguments of the call; wrap a list that is one "
            "argument in another."
        )
    inputs = [_inputs(spec, name) for spec, name in zip(arguments, names, strict=True)]
    try:
        with graph.untouched(model):
            outputs = model(*inputs)
            packed = inputs[0] if len(inputs) == 1 else inputs
            functional = keras.Model(packed, outputs, name=model.name)
            return Functional(functional, _names(outputs, "output"), notes)
    except Exception as error:  # whatever the model's code raises
        raise ExportError(
            f"Model {model.name!r} ({type(model).__name__}) cannot be called on Keras tensors: "
            f"{one_line(error)} Write its call with keras.ops, or correct input_signature."
        ) from error


def _for_any_batch(model: Any) -> Any:
    """A Sequential model that its first batch built has that batch's size; this one has none.

    The layers are the same.
    """
    given = graph.function_of(model).inputs[0]
    if given.shape[0] is None or any(getattr(layer, "stateful", False) for layer in graph.parts(model)):
        return model
    inputs = keras.Input(given.shape[1:], dtype=given.dtype, name="input_layer")
    return graph.sequential_at(model, inputs)


def _names(outputs: Any, name: str) -> list[str]:
    """Names by the place in the structure that a call gives, in the order in which Keras flattens it."""
    if isinstance(outputs, dict):
        return [found for key in sorted(outputs) for found in _names(outputs[key], str(key))]
    if isinstance(outputs, (list, tuple)):
        return [found for i, part in enumerate(outputs) for found in _names(part, f"{name}_{i}")]
    return [name]


def _remembered(model: Any) -> tuple[list[Any], tuple[str, ...]]:
    if graph.is_function(model):  # of a class with a call of its own
        known = graph.function_of(model)
        return [tree.pack_sequence_as(known.input, [_spec(x) for x in known.inputs])], ()
    shapes = graph.shapes_of_first_call(model)
    if not shapes:
        raise ExportError(
            f"Model {model.name!r} ({type(model).__name__}) was never built, so nobody knows what it takes. "
            "Call it on data once, or pass input_signature=keras.InputSpec(shape=(None, ...), dtype=...)."
        )
    dtype = model.input_dtype

    def spec(shape: Any) -> Any:
        if isinstance(shape, dict):
            return {key: spec(part) for key, part in shape.items()}
        if isinstance(shape, (list, tuple)) and not all(n is None or isinstance(n, int) for n in shape):
            return [spec(part) for part in shape]
        return keras.InputSpec(shape=(None, *shape[1:]), dtype=dtype)

    note = (
        f"{model.name!r} is not a functional model: only its batch is dynamic, other sizes are those of its "
        f"first call, and its inputs are {dtype}. input_signature= says it otherwise."
    )
    return [spec(shape) for shape in shapes], (note,)


def _spec(tensor: keras.KerasTensor) -> keras.InputSpec:
    return keras.InputSpec(shape=tensor.shape, dtype=tensor.dtype, name=tensor.name)


def _inputs(spec: Any, name: str) -> Any:
    """Inputs for one argument of the call: named after it, and in a structure after their place there."""
    if isinstance(spec, dict):
        return {key: _inputs(part, str(key)) for key, part in spec.items()}
    if isinstance(spec, (list, tuple)):
        return [_inputs(part, f"{name}_{index}") for index, part in enumerate(spec)]
    shape, dtype = getattr(spec, "shape", None), getattr(spec, "dtype", None)
    if shape is None or dtype is None or len(shape) == 0:
        raise ConfigError(
            f"input_signature has {spec!r} for {name!r}: expected keras.InputSpec(shape=(None, ...), "
            "dtype=...), the batch first."
        )
    own = getattr(spec, "name", None) or name
    return keras.Input(tuple(shape)[1:], dtype=keras.backend.standardize_dtype(dtype), name=own)
