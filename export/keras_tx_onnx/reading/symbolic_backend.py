"""Runs code on Keras tensors of symbolic sizes, and records the operations that it calls."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import keras
import numpy as np
from keras import tree

from keras_tx_onnx.errors import NotLowered
from keras_tx_onnx.graph.size_expressions import Symbol, of_symbol
from keras_tx_onnx.reading.keras_patches import Arange, Full, add_node, recording
from keras_tx_onnx.reading.symbolic_sizes import (
    Observer,
    Real,
    Size,
    larger,
    plain_number,
    smaller,
    with_plain_sizes,
)


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of an operation in a graph; `outputs` are the resulting Keras tensors.

    In a walk, the arguments are values in place of Keras tensors.
    """

    operation: Any
    args: tuple
    kwargs: dict
    outputs: list


@dataclasses.dataclass
class Trace:
    """The operations that code called, in order, as a function of Keras tensors."""

    name: str
    inputs: list[keras.KerasTensor]
    calls: list[Call]
    outputs: list[keras.KerasTensor]
    result: Any  # the structure of the returned outputs
    observer: Observer
    everything: list[Call] = dataclasses.field(default_factory=list)  # with those in control flow

    def used(self) -> list[Call]:
        """The calls that the outputs need."""
        needed = set(map(id, self.outputs))
        needed_calls = []
        for call in reversed(self.calls):
            if needed.intersection(map(id, call.outputs)):
                needed_calls.append(call)
                needed.update(id(x) for x in tensors_in((call.args, call.kwargs)))
        return needed_calls[::-1]


def tensors_in(structure: Any) -> list[keras.KerasTensor]:
    return [x for x in tree.flatten(structure) if isinstance(x, keras.KerasTensor)]


@dataclasses.dataclass
class Tracer:
    """The state of a trace, for the replaced functions of Keras.

    Args:
        calls: the recorded operations; None if Keras makes its own nodes, for a real model.
        plain: whether keras.backend.backend() returns a name for which code has no special case.
        ranges: whether arange and its like are recorded, rather than computed.
        trusting: whether the output shapes that layers declare are used; some are wrong.
        fresh: axes of outputs that Keras's shape inference turned into plain numbers, by call, output, axis.
    """

    observer: Observer
    calls: list[Call] | None
    plain: bool = True
    ranges: bool = True
    trusting: bool = True
    fresh: dict[tuple[int, int, int], Symbol] = dataclasses.field(default_factory=dict)
    inside_layers: int = 0
    everything: list[Call] = dataclasses.field(default_factory=list)  # with those in control flow

    def add(self, operation: Any, args: tuple, kwargs: dict, outputs: Any) -> Any:
        # A layer may return None beside its result, such as a cache that was not requested.
        made = [y for y in tree.flatten(outputs) if y is not None]
        if self.calls is None:
            if self.inside_layers == isinstance(operation, keras.layers.Layer):
                add_node(operation, args, kwargs, made)
            return outputs
        for (call, output, axis), symbol in self.fresh.items():
            if call == len(self.everything) and output < len(made) and axis < len(made[output].shape):
                size = made[output].shape[axis]
                if isinstance(size, int) and not isinstance(size, Size):
                    shape = list(made[output].shape)
                    shape[axis] = Size(size, of_symbol(symbol))
                    made[output]._shape = tuple(shape)
        call = Call(operation, tuple(args or ()), dict(kwargs or {}), made)
        self.calls.append(call)
        self.everything.append(call)
        return outputs

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """A context for Keras's own shape inference, whose comparisons of sizes are not recorded."""
        self.observer.quiet += 1
        try:
            yield
        finally:
            self.observer.quiet -= 1

    @contextmanager
    def inside_layer(self) -> Iterator[None]:
        self.inside_layers += 1
        try:
            with self.quiet():
                yield
        finally:
            self.inside_layers -= 1

    def call_operation(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """The outputs of an operation, which is recorded."""
        if self.calls is not None and not tensors_in((args, kwargs)):
            args, kwargs = tree.map_structure(self._as_tensor, (args, kwargs))
        with self.quiet():
            outputs = _spec_of_operation(operation, args, kwargs)
            self.add(operation, args, kwargs, outputs)
        return outputs

    def _as_tensor(self, x: Any) -> Any:
        if not isinstance(x, (Size, Real)):
            return x
        tensor = keras.KerasTensor((), "float32" if isinstance(x, Real) else "int32")
        self.add(AsTensor(), (x,), {}, tensor)
        return tensor

    def spec_of_layer(self, layer: Any, args: Any, kwargs: Any) -> Any:
        return _spec_of_layer(layer, args, kwargs, self.trusting)

    def constant(self, x: Any) -> Any:
        """An array of NumPy or the backend as a recorded constant; anything else is returned as it is."""
        if isinstance(x, keras.KerasTensor) or not (isinstance(x, np.ndarray) or keras.ops.is_tensor(x)):
            return x
        array = keras.ops.convert_to_numpy(x)
        tensor = keras.KerasTensor(array.shape, keras.backend.standardize_dtype(x.dtype))
        self.add(AsTensor(), (array,), {}, tensor)
        return tensor

    def create(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The result of a function of keras.ops that creates a tensor; None if Keras computes it."""
        return _CREATED[name](self, *args, **kwargs)


class AsTensor(keras.Operation):
    """A number that was computed from sizes, or an array that does not depend on inputs, as a tensor."""

    def call(self, x: Any) -> Any:
        return keras.ops.convert_to_tensor(x)


def trace_of(
    name: str,
    tracer: Tracer,
    inputs: Sequence[keras.KerasTensor],
    result: Any,
    constants: bool = True,
) -> Trace:
    """The recorded operations as a function of `inputs`; `result` is what the code returned.

    An array among its results does not depend on the inputs, because code that computes with a Keras tensor
    returns Keras tensors. That it does not depend on their sizes is checked by traces at other sizes. It
    becomes a constant of the graph if `constants` is true, and raises NotLowered otherwise.
    """
    if constants and tracer.calls is not None:
        result = tree.map_structure(tracer.constant, result)
    calls = tracer.calls or []
    results = [y for y in tree.flatten(result) if y is not None]
    known = {id(x) for call in calls for x in call.outputs} | set(map(id, inputs))
    for y in results:
        if not isinstance(y, keras.KerasTensor) or id(y) not in known:
            raise NotLowered(f"It returns {type(y).__name__}, which does not come from its inputs.")
    return Trace(name, list(inputs), calls, results, result, tracer.observer, tracer.everything)


@contextmanager
def tracing_body() -> Iterator[list[Call]]:
    """A context inside a trace that records the calls of a function separately."""
    tracer = recording()
    outer, tracer.calls = tracer.calls, []
    try:
        yield tracer.calls
    finally:
        tracer.calls = outer


def body_of(calls: list[Call], inputs: Sequence[keras.KerasTensor], result: Any) -> tuple[Trace, list[Any]]:
    """The calls of a function as a trace, and the outer tensors that it reads."""
    outputs = tensors_in(result)
    made = {id(x) for call in calls for x in call.outputs} | set(map(id, inputs))
    traced = Trace("body", [], calls, outputs, result, recording().observer)
    read = [x for call in traced.used() for x in tensors_in((call.args, call.kwargs))] + outputs
    captured = list({id(x): x for x in read if id(x) not in made}.values())
    traced.inputs = [*inputs, *captured]
    return traced, captured


# -- shape inference ----------------------------------------------------------------------------------------


def output_spec(tracer: Tracer, operation: Any, args: Any, kwargs: Any) -> Any:
    """The outputs of an operation for Keras tensors of symbolic sizes."""
    if isinstance(operation, keras.layers.Layer):
        return tracer.spec_of_layer(operation, args, kwargs)
    return _spec_of_operation(operation, args, kwargs)


def _spec_of_operation(operation: Any, args: Any, kwargs: Any) -> Any:
    # Keras looks up the types of arguments, so sizes become numbers there; settings stay sizes.
    numbers, named = tree.map_structure(plain_number, (args, kwargs))
    kind = type(operation).__name__
    if kind == "Einsum":  # Keras writes sizes as text
        outputs = operation.compute_output_spec(*map(with_plain_sizes, numbers), **named)
        outputs._shape = _contracted(operation.subscripts, [x.shape for x in numbers], outputs.shape)
        return outputs
    outputs = operation.compute_output_spec(*numbers, **named)
    if kind == "GetItem":
        key = args[1] if len(args) > 1 else kwargs["key"]
        outputs._shape = _sliced(args[0].shape, key, outputs.shape)
    return outputs


def _contracted(subscripts: str, shapes: Sequence[Any], inferred: Sequence[Any]) -> tuple[Any, ...]:
    """The shape of an einsum. Keras infers it without "->"."""
    known, arrow, result = subscripts.replace(" ", "").partition("->")
    if not arrow:
        return tuple(inferred)
    terms = known.split(",")
    counts = [
        len(shape) - len(term.replace("...", "")) if "..." in term else 0
        for term, shape in zip(terms, shapes, strict=True)
    ]
    letters = [letter for letter in string.ascii_letters if letter not in subscripts][: max(counts)]
    terms = [
        term.replace("...", "".join(letters[len(letters) - count :]))
        for term, count in zip(terms, counts, strict=True)
    ]
    pairs = zip(terms, shapes, strict=True)
    sizes = [(axis, n) for axes, shape in pairs for axis, n in zip(axes, shape, strict=True)]
    result = result.replace("...", "".join(letters))
    return tuple(next((n for a, n in sizes if a == axis and n != 1), 1) for axis in result)


def _sliced(shape: Sequence[Any], key: Any, inferred: Sequence[Any]) -> tuple[Any, ...]:
    """The shape of a slice, which Keras infers as plain numbers."""
    keys = list(key) if isinstance(key, (tuple, list)) else [key]
    used = sum(k is not None and k is not Ellipsis for k in keys)
    at = next((i for i, k in enumerate(keys) if k is Ellipsis), len(keys))
    keys = [*keys[:at], *[slice(None)] * (len(shape) - used), *keys[at + 1 :]]
    sizes, rest = [], list(shape)
    for k in keys:
        if k is None:
            sizes.append(1)
            continue
        size = rest.pop(0)
        if isinstance(k, slice):
            sizes.append(_cut(size, k, inferred[len(sizes)]))
    return tuple(sizes)


def _cut(size: Any, k: slice, inferred: Any) -> Any:
    parts = (k.start, k.stop, k.step)
    if parts == (None, None, None) or not any(isinstance(n, Size) for n in (size, *parts)):
        return size if parts == (None, None, None) else inferred
    step = 1 if k.step is None else k.step
    if isinstance(step, Size) or step < 1 or not all(n is None or isinstance(n, int) for n in parts):
        return size if parts == (None, None, -1) else inferred
    start, stop = (_place(n, size, end) for n, end in ((k.start, 0), (k.stop, size)))
    return larger((stop - start + step - 1) // step, 0)


def _place(n: Any, size: Any, end: Any) -> Any:
    """Where a slice begins or ends; a negative number counts from the end."""
    if n is None:
        return end
    return smaller(n, size) if n >= 0 else larger(size + n, 0)


def _spec_of_layer(layer: Any, args: Any, kwargs: Any, trusting: bool) -> Any:
    # An inherited compute_output_spec may not accept the arguments of a subclass.
    kwargs = {name: x for name, x in kwargs.items() if x is not None}
    for infer in (_spec_of_sequential, _spec_of_call):
        with suppress(Exception):  # whatever the layer's code raises; running it on the backend is slower
            outputs = infer(layer, args, kwargs)
            if outputs is not None:
                return outputs
    try:
        outputs = layer.compute_output_spec(*args, **kwargs)
    except Exception as error:  # a declaration may fail for the arguments of this call
        return _spec_after_failed_declaration(layer, args, kwargs, error)
    if not trusting and not type(layer).__module__.startswith("keras.src."):
        return _spec_without_declaration(layer, args, kwargs)
    if isinstance(layer, keras.layers.EinsumDense) and isinstance(outputs, keras.KerasTensor):
        x = args[0] if args else kwargs["inputs"]
        equation, _, result = layer.equation.replace(" ", "").partition("->")
        if "..." not in equation:
            sizes = dict(zip(equation.split(",")[0], x.shape, strict=True))
            shape = [sizes.get(axis, n) for axis, n in zip(result, outputs.shape, strict=True)]
            return keras.KerasTensor(shape, outputs.dtype)
    # Some layers declare a shape with None even for tensors of known size.
    if _has_unknown_size(outputs) and not _has_unknown_size((args, kwargs)):
        return _spec_without_declaration(layer, args, kwargs)
    return outputs


def _has_unknown_size(values: Any) -> bool:
    return any(None in x.shape for x in tensors_in(values))


def _spec_after_failed_declaration(layer: Any, args: Any, kwargs: Any, error: Exception) -> Any:
    """The outputs of a layer without its declaration; if that fails too, raises the declaration's error."""
    try:
        return _spec_without_declaration(layer, args, kwargs)
    except Exception as last:
        if isinstance(error, TypeError):  # the declaration does not accept these arguments
            raise last from error
        raise error from last


def _spec_without_declaration(layer: Any, args: Any, kwargs: Any) -> Any:
    """The outputs of a layer, inferred from its `call` on Keras tensors or else on the backend."""
    try:
        return _outputs_of_call(layer, args, kwargs)
    except Exception as error:
        try:
            return keras.Operation.compute_output_spec(layer, *args, **kwargs)
        except Exception as last:
            raise last from error


def _spec_of_sequential(layer: Any, args: Any, kwargs: Any) -> Any:
    """The outputs of a built Sequential model: those of its layers in order."""
    if not isinstance(layer, keras.Sequential) or not layer.built or len(args) != 1:
        return None
    x = _renewed(args[0])
    for part in layer.layers:
        x = part(x)
    return _renewed(x)


def _spec_of_call(layer: Any, args: Any, kwargs: Any) -> Any:
    """The outputs of a layer without a declared output shape, inferred from its `call`."""
    kind, base = type(layer), keras.layers.Layer
    if kind.compute_output_shape is not base.compute_output_shape:
        return None
    if kind.compute_output_spec is not base.compute_output_spec:
        return None
    return _outputs_of_call(layer, args, kwargs)


def _outputs_of_call(layer: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs = tree.map_structure(_renewed, (args, kwargs))
    return tree.map_structure(_renewed, layer.call(*args, **kwargs))


def _renewed(x: Any) -> Any:
    return keras.KerasTensor(x.shape, x.dtype) if isinstance(x, keras.KerasTensor) else x


# -- functions that create tensors --------------------------------------------------------------------------


def _arange(tracer: Tracer, start: Any, stop: Any = None, step: Any = None, dtype: Any = None) -> Any:
    if stop is None:
        start, stop = 0, start
    step = 1 if step is None else step
    numbers = (start, stop, step)
    if tensors_in(numbers):
        return None
    if dtype is None:
        floating = any(isinstance(n, (float, np.floating)) for n in numbers)
        dtype = keras.config.floatx() if floating else "int32"
    if any(isinstance(n, Size) for n in numbers):
        start, stop, step = (int(n) if type(n) is float and n.is_integer() else n for n in numbers)
        count = _count(start, stop, step)
        if count is None:
            return None
    else:
        count = len(np.arange(start, stop, step))
    dtype = keras.backend.standardize_dtype(dtype)
    return tracer.add(Arange(dtype=dtype), (start, stop), {"step": step}, keras.KerasTensor((count,), dtype))


def _count(start: Any, stop: Any, step: Any) -> Any:
    """The length of a range of sizes; None if it is unknown."""
    if not all(isinstance(n, int) for n in (start, stop, step)) or isinstance(step, Size) or step == 0:
        return None
    distance = stop - start if step > 0 else start - stop
    return larger((distance + abs(step) - 1) // abs(step), 0)


def _full(tracer: Tracer, shape: Any, fill_value: Any, dtype: Any = None) -> Any:
    if tensors_in(fill_value):
        return None
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    dtype = keras.backend.standardize_dtype(dtype)
    operation = Full(shape=shape, dtype=dtype)
    return tracer.add(operation, (fill_value,), {}, keras.KerasTensor(shape, dtype))


def _tri(tracer: Tracer, n: Any, m: Any = None, k: Any = 0, dtype: Any = None, compare: Any = None) -> Any:
    m = n if m is None else m
    if not any(isinstance(x, Size) for x in (n, m, k)):
        return None
    ops = keras.ops
    rows, columns = ops.expand_dims(ops.arange(n), 1), ops.expand_dims(ops.arange(m), 0)
    return ops.cast((compare or ops.greater_equal)(rows + k, columns), dtype or keras.config.floatx())


def _eye(tracer: Tracer, N: Any, M: Any = None, k: Any = 0, dtype: Any = None) -> Any:
    return _tri(tracer, N, M, k, dtype, keras.ops.equal)


_CREATED: dict[str, Callable[..., Any]] = {
    "arange": _arange,
    "full": _full,
    "zeros": lambda tracer, shape, dtype=None: _full(tracer, shape, 0, dtype),
    "ones": lambda tracer, shape, dtype=None: _full(tracer, shape, 1, dtype),
    "empty": lambda tracer, shape, dtype=None: _full(tracer, shape, 0, dtype),
    "tri": lambda tracer, N, M=None, k=0, dtype=None: _tri(tracer, N, M, k, dtype),
    "eye": _eye,
    "identity": lambda tracer, n, dtype=None: _eye(tracer, n, dtype=dtype),
}
