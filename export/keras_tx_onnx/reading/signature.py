"""Inputs of models: functional models around models whose class has its own `call`."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
from typing import Any

import keras
from keras import tree

from keras_tx.errors import ConfigError, ExportError
from keras_tx.models.text_model import TextModel
from keras_tx_onnx.errors import one_line
from keras_tx_onnx.reading import functional_graph


@dataclasses.dataclass(frozen=True)
class Functional:
    """A functional model, the names of its outputs, and notes for the report.

    `signature` is the text of the signature of a model whose class has its own `call`.
    """

    model: Any
    outputs: list[str]
    notes: tuple[str, ...] = ()
    signature: str | None = None


def as_functional(model: Any, signature: Any = None) -> Functional:
    """The model itself where its graph is known, else a functional model around it.

    `signature` describes the arguments of the model's call: keras.InputSpec in the structure of each, None
    for one that keeps its default. An unbuilt Sequential is built with it. Without it, the shapes that Keras
    recorded in the first call are used; dtypes and dynamic axes are not recorded.
    """
    if _knows_inputs(model):
        if signature is not None:
            raise ConfigError(
                f"input_signature was passed, but {model.name!r} is a functional model and knows its inputs. "
                "Leave it out."
            )
        model = _for_any_batch(model) if isinstance(model, keras.Sequential) else model
        return Functional(model, functional_graph.output_names(functional_graph.function_of(model)))
    notes: tuple[str, ...] = ()
    if signature is None:
        specs, notes = _recorded(model)
    else:
        specs = _by_argument(model, signature)
    inputs = {name: _inputs(spec, name) for name, spec in specs.items()}
    try:
        with functional_graph.untouched(model):
            outputs = _call(model, inputs)
            packed = list(inputs.values())
            functional = keras.Model(packed[0] if len(packed) == 1 else packed, outputs, name=model.name)
            notes = (*notes, *_defaults(model, specs))
            return Functional(functional, _names(outputs, "output"), notes, _to_text(specs))
    except Exception as error:  # the model's code may raise any exception
        raise ExportError(
            f"Model {model.name!r} ({type(model).__name__}) cannot be called on Keras tensors: "
            f"{one_line(error)} Write its call with keras.ops, or correct input_signature."
        ) from error


def restored_signature(model: Any, text: str) -> Any:
    """The signature of a text, for this model; None for a model whose graph is known.

    Raises an ExportError if the model's call has no argument of a name in the text.
    """
    if _knows_inputs(model):
        return None
    specs = _to_specs(json.loads(text))
    names = [p.name for p in functional_graph.call_parameters(model)]
    for name in specs:
        if name not in names:
            raise ExportError(
                f"The call of model {model.name!r} has no argument {name!r}, an input of the folder. "
                "Pass the model that was exported."
            )
    return [specs.get(name) for name in names]


def _knows_inputs(model: Any) -> bool:
    return functional_graph.is_function(model) and (
        isinstance(model, TextModel) or not functional_graph.has_own_call(model)
    )


def _to_text(specs: Any) -> str:
    """Specs in any structure as JSON; a spec is its dtype, sizes and name, such as "float32 None,4 x"."""

    def text(spec: Any) -> str:
        dtype = keras.backend.standardize_dtype(spec.dtype)
        return f"{dtype} {','.join(map(str, spec.shape))} {spec.name or ''}".rstrip()

    return json.dumps(tree.map_structure(text, specs))


def _to_specs(texts: Any) -> Any:
    def spec(text: str) -> keras.InputSpec:
        dtype, sizes, *name = text.split(" ", 2)
        shape = tuple(None if size == "None" else int(size) for size in sizes.split(","))
        return keras.InputSpec(shape=shape, dtype=dtype, name=name[0] if name else None)

    return tree.map_structure(spec, texts)


def _call(model: Any, inputs: dict[str, Any]) -> Any:
    """Calls the model: the first arguments by position, those after one with its default by name."""
    parameters = functional_graph.call_parameters(model)
    positional = list(
        itertools.takewhile(lambda p: p.name in inputs and p.kind != p.KEYWORD_ONLY, parameters)
    )
    named = {name: x for name, x in inputs.items() if name not in {p.name for p in positional}}
    return model(*(inputs[p.name] for p in positional), **named)


def _by_argument(model: Any, signature: Any) -> dict[str, Any]:
    """The specs of input_signature, by the names of the call's arguments."""
    parts = list(signature) if isinstance(signature, (list, tuple)) else [signature]
    parameters = [
        p for p in functional_graph.call_parameters(model) if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if len(parameters) < len(parts):
        raise ConfigError(
            f"input_signature has {len(parts)} parts, but the call of {model.name!r} accepts "
            f"{len(parameters)}: {', '.join(p.name for p in parameters)}. A list has one part for each "
            "argument; wrap a list that is itself one argument in another list."
        )
    specs = {p.name: spec for p, spec in zip(parameters, parts, strict=False) if spec is not None}
    for p in parameters:
        if p.default is p.empty and p.name not in specs:
            raise ConfigError(
                f"input_signature has nothing for {p.name!r}, a required argument of the call of "
                f"{model.name!r}. Pass a keras.InputSpec for it; the arguments are "
                f"{', '.join(p.name for p in parameters)}."
            )
    return specs


def _defaults(model: Any, specs: dict[str, Any]) -> tuple[str, ...]:
    """A note that names the arguments of the call that keep their default."""
    left = [
        f"{p.name!r} keeps its default ({p.default!r})"
        for p in functional_graph.call_parameters(model)
        if p.name not in specs and p.default is not p.empty and functional_graph.is_read(model, p.name)
    ]
    return (f"In the call of {model.name!r}, {', '.join(left)}.",) if left else ()


def _for_any_batch(model: Any) -> Any:
    """The same layers with a dynamic batch, if a first batch of fixed size built a Sequential model."""
    first = functional_graph.function_of(model).inputs[0]
    if first.shape[0] is None or any(
        getattr(layer, "stateful", False) for layer in functional_graph.parts(model)
    ):
        return model
    inputs = keras.Input(first.shape[1:], dtype=first.dtype)
    return functional_graph.sequential_at(model, inputs)


def _names(outputs: Any, name: str) -> list[str]:
    """Names by the place in the structure of the outputs, in the order in which Keras flattens it."""
    if isinstance(outputs, dict):
        return [leaf for key in sorted(outputs) for leaf in _names(outputs[key], str(key))]
    if isinstance(outputs, (list, tuple)):
        return [leaf for i, part in enumerate(outputs) for leaf in _names(part, f"{name}_{i}")]
    return [name]


def _recorded(model: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The inputs that Keras recorded, by argument; raises an ExportError if some were not recorded."""
    dtype = model.input_dtype
    notes: tuple[str, ...] = ()
    if functional_graph.is_function(model):  # of a class with its own call
        known = functional_graph.function_of(model)
        first = functional_graph.call_parameters(model)[0].name
        specs = {first: tree.pack_sequence_as(known.input, [_spec(x) for x in known.inputs])}
        recorded = {first}
    else:
        shapes, recorded = functional_graph.shapes_of_first_call(model)
        if not shapes:
            why, remedy = "is not built", "Call it on data once, or pass"
            if functional_graph.was_called(model):
                why, remedy = "builds itself, so Keras does not record its inputs", "Pass"
            raise ExportError(
                f"Model {model.name!r} ({type(model).__name__}) {why}. "
                f"{remedy} input_signature=keras.InputSpec(shape=(None, ...), dtype=...)."
            )
        specs = {name: _spec_of_shape(shape, dtype) for name, shape in shapes.items()}
        notes = (
            f"{model.name!r} is not a functional model: only its batch is dynamic, other sizes are those of "
            f"its first call, and its inputs are {dtype}. Change that with input_signature=.",
        )
    _check_recorded(model, specs, recorded)
    return specs, notes


def _check_recorded(model: Any, specs: dict[str, Any], recorded: set[str]) -> None:
    """Raises an ExportError if a call may have had tensors that Keras does not record."""
    parameters = functional_graph.call_parameters(model)
    several = [p.name for p in parameters if p.kind == p.VAR_POSITIONAL]
    if several:
        raise ExportError(
            f"The call of model {model.name!r} accepts *{several[0]}, and Keras does not record how many "
            "tensors it had. Use a named argument for each tensor."
        )
    unknown = [
        p
        for p in parameters
        if p.name not in recorded and p.default in (None, p.empty) and functional_graph.is_read(model, p.name)
    ]
    if unknown:
        names = ", ".join(f"**{p.name}" if p.kind == p.VAR_KEYWORD else repr(p.name) for p in unknown)
        known = [_written(specs[p.name]) for p in parameters if p.name in specs]
        raise ExportError(
            f"The call of model {model.name!r} ({type(model).__name__}) accepts {names}, but Keras records "
            f"only the shape of {', '.join(map(repr, specs))} when a model is called. "
            f"{_remedy(known, [p for p in unknown if p.kind != p.VAR_KEYWORD])}."
        )


def _remedy(known: list[str], unknown: list[inspect.Parameter]) -> str:
    every = ", ".join([*known, *("keras.InputSpec(shape=(None, ...), dtype=...)" for _ in unknown)])
    if any(p.default is p.empty for p in unknown):
        return f"Pass input_signature=[{every}]"
    alone = f"Pass input_signature=[{', '.join(known)}] to export a call without"
    return f"{alone}, input_signature=[{every}] to export one with all of them" if unknown else alone


def _written(spec: Any) -> str:
    """A spec as Python code."""
    if isinstance(spec, dict):
        return "{" + ", ".join(f"{key!r}: {_written(part)}" for key, part in spec.items()) + "}"
    if isinstance(spec, (list, tuple)):
        return f"[{', '.join(map(_written, spec))}]"
    return f"keras.InputSpec(shape={tuple(spec.shape)}, dtype={spec.dtype!r})"


def _spec_of_shape(shape: Any, dtype: str) -> Any:
    if isinstance(shape, dict):
        return {key: _spec_of_shape(part, dtype) for key, part in shape.items()}
    if not all(n is None or isinstance(n, int) for n in shape):
        return [_spec_of_shape(part, dtype) for part in shape]
    return keras.InputSpec(shape=(None, *shape[1:]), dtype=dtype)


def _spec(tensor: keras.KerasTensor) -> keras.InputSpec:
    return keras.InputSpec(shape=tensor.shape, dtype=tensor.dtype, name=tensor.name)


def _inputs(spec: Any, name: str) -> Any:
    """Inputs for one argument of the call: named after it, and in a structure after their place there."""
    if isinstance(spec, dict):
        return {key: _inputs(part, str(key)) for key, part in spec.items()}
    if isinstance(spec, (list, tuple)):
        return [_inputs(part, f"{name}_{index}") for index, part in enumerate(spec)]
    shape, dtype = getattr(spec, "shape", None), getattr(spec, "dtype", None)
    if not shape or dtype is None:
        axes = repr(tuple(shape)) if shape else "(None, ...)"
        raise ConfigError(
            f"input_signature has {spec!r} for {name!r}, which has no {'dtype' if shape else 'shape'}. "
            f"Expected keras.InputSpec(shape={axes}, dtype={dtype or 'float32'!r}), the batch first."
        )
    own = getattr(spec, "name", None) or name
    return keras.Input(tuple(shape)[1:], dtype=keras.backend.standardize_dtype(dtype), name=own)
