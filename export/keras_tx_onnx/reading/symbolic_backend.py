"""Runs code on Keras tensors of symbolic sizes, and records the operations that it calls.

Keras is extended once, when this module is imported: each replaced function checks a context variable, and
outside of a trace it calls Keras's own directly. A trace thus affects only the traced code and no other
thread, and it changes no layer: nothing has to be restored.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import keras
import keras.src.backend
import keras.src.ops
import numpy as np
from keras import tree
from keras.src.layers import layer as layer_module
from keras.src.ops import numpy as numpy_operations
from keras.src.ops import operation as operation_module
from keras.src.ops.node import Node

from keras_tx_onnx.errors import NotLowered
from keras_tx_onnx.reading.symbolic_sizes import (
    OBSERVER,
    Observer,
    Real,
    Size,
    Symbol,
    larger,
    of_symbol,
    plain,
    smaller,
)

RANDOM = "It draws random numbers at inference. Pass the numbers as an input."


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
    everything: list[Call] = dataclasses.field(
        default_factory=list
    )  # with the calls in bodies of control flow

    def used(self) -> list[Call]:
        """The calls that the outputs need."""
        needed = set(map(id, self.outputs))
        kept = []
        for call in reversed(self.calls):
            if needed.intersection(map(id, call.outputs)):
                kept.append(call)
                needed.update(id(x) for x in tensors_in((call.args, call.kwargs)))
        return kept[::-1]


def tensors_in(structure: Any) -> list[keras.KerasTensor]:
    return [x for x in tree.flatten(structure) if isinstance(x, keras.KerasTensor)]


@dataclasses.dataclass
class _Tracer:
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
    everything: list[Call] = dataclasses.field(
        default_factory=list
    )  # with the calls in bodies of control flow

    def add(self, operation: Any, args: tuple, kwargs: dict, outputs: Any) -> Any:
        # A layer may return None beside its result, such as a cache that was not requested.
        made = [y for y in tree.flatten(outputs) if y is not None]
        if self.calls is None:
            if self.inside_layers == isinstance(operation, keras.layers.Layer):
                _made(Node(operation, args, kwargs, made))
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


_TRACER: ContextVar[_Tracer | None] = ContextVar("keras_tx_tracer", default=None)
_DRAWS_NOTHING: ContextVar[bool] = ContextVar("keras_tx_draws_nothing", default=False)
_IN_FLOAT32: ContextVar[bool] = ContextVar("keras_tx_in_float32", default=False)


_NODES: ContextVar[list[Any] | None] = ContextVar("keras_tx_nodes", default=None)


@contextmanager
def _set(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def _as_usual() -> Iterator[None]:
    """A context without the trace, in which the backend runs code and computes values."""
    with _set(_TRACER, None), _set(OBSERVER, None), _set(_DRAWS_NOTHING, False):
        yield


def trace(
    name: str, function: Callable[[], Any], inputs: Sequence[keras.KerasTensor], **options: Any
) -> Trace:
    """Records the operations that a function of these Keras tensors calls.

    `options` are those of `_Tracer`.
    """
    calls: list[Call] = []
    observer = Observer()
    tracer = _Tracer(observer, calls, **options)
    with _set(_TRACER, tracer), _set(OBSERVER, observer), drawing_nothing():
        result = function()
    results = [y for y in tree.flatten(result) if y is not None]
    known = {id(x) for call in calls for x in call.outputs} | set(map(id, inputs))
    for y in results:
        if not isinstance(y, keras.KerasTensor) or id(y) not in known:
            raise NotLowered(f"It returns {type(y).__name__}, which does not come from its inputs.")
    return Trace(name, list(inputs), calls, results, result, observer, tracer.everything)


def trace_body(
    function: Callable[[], Any], inputs: Sequence[keras.KerasTensor]
) -> tuple[Trace, list[keras.KerasTensor]]:
    """Traces a function inside a trace; returns the inner trace and the outer tensors that it reads."""
    tracer = _TRACER.get()
    assert tracer is not None and tracer.calls is not None
    outer, tracer.calls = tracer.calls, []
    try:
        result = function()
    finally:
        calls, tracer.calls = tracer.calls, outer
    outputs = tensors_in(result)
    made = {id(x) for call in calls for x in call.outputs} | set(map(id, inputs))
    traced = Trace("body", [], calls, outputs, result, tracer.observer)
    read = [x for call in traced.used() for x in tensors_in((call.args, call.kwargs))] + outputs
    captured = list({id(x): x for x in read if id(x) not in made}.values())
    traced.inputs = [*inputs, *captured]
    return traced, captured


def is_tracing() -> bool:
    """Whether operations are recorded."""
    tracer = _TRACER.get()
    return tracer is not None and tracer.calls is not None


@contextmanager
def collecting_nodes() -> Iterator[list[Any]]:
    """A context that collects the nodes that this thread adds to Keras's graph."""
    nodes: list[Any] = []
    with _set(_NODES, nodes):
        yield nodes


def _made(node: Any) -> Any:
    nodes = _NODES.get()
    if nodes is not None:
        nodes.append(node)
    return node


@contextmanager
def building() -> Iterator[None]:
    """A context in which code builds a real Keras graph, with shapes inferred as in a trace."""
    with _set(_TRACER, _Tracer(Observer(), None)), drawing_nothing():
        yield


def output_spec(operation: Any, args: Any, kwargs: Any) -> Any:
    """The outputs of an operation for Keras tensors of symbolic sizes."""
    observer = Observer(quiet=1)
    with _set(_TRACER, _Tracer(observer, [])), _set(OBSERVER, observer):
        if isinstance(operation, keras.layers.Layer):
            return _spec_of_layer(operation, args, kwargs)
        return _spec_of_operation(operation, args, kwargs)


def drawing_nothing() -> Any:
    """A context in which drawing random numbers raises: in a file they would be the same at every call."""
    return _set(_DRAWS_NOTHING, True)


@contextmanager
def in_float32() -> Iterator[None]:
    """A context in which layers of half precision compute in float32, with unchanged variables."""
    with _set(_IN_FLOAT32, True), keras.src.backend.AutocastScope("float32"):
        yield


# -- shape inference ----------------------------------------------------------------------------------------


def _spec_of_operation(operation: Any, args: Any, kwargs: Any) -> Any:
    # Keras looks up the types of arguments, so sizes become numbers there; settings stay sizes.
    numbers, named = tree.map_structure(_as_number, (args, kwargs))
    kind = type(operation).__name__
    if kind == "Einsum":  # Keras writes sizes as text
        outputs = operation.compute_output_spec(*map(_with_plain_sizes, numbers), **named)
        outputs._shape = _contracted(operation.subscripts, [x.shape for x in numbers], outputs.shape)
        return outputs
    outputs = operation.compute_output_spec(*numbers, **named)
    if kind == "GetItem":
        key = args[1] if len(args) > 1 else kwargs["key"]
        outputs._shape = _sliced(args[0].shape, key, outputs.shape)
    return outputs


def _contracted(subscripts: str, shapes: Sequence[Any], inferred: Sequence[Any]) -> tuple[Any, ...]:
    """The shape of an einsum. Without "->", or with an ellipsis, what Keras infers."""
    known, arrow, result = subscripts.replace(" ", "").partition("->")
    if not arrow or "..." in known:
        return tuple(inferred)
    pairs = zip(known.split(","), shapes, strict=True)
    sizes = [(axis, n) for letters, shape in pairs for axis, n in zip(letters, shape, strict=True)]
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


def _spec_of_layer(layer: Any, args: Any, kwargs: Any) -> Any:
    tracer = _TRACER.get()
    assert tracer is not None
    # An inherited compute_output_spec may not accept the arguments of a subclass.
    kwargs = {name: x for name, x in kwargs.items() if x is not None}
    if isinstance(layer, keras.Sequential) and layer.built and len(args) == 1:
        with suppress(Exception):  # such as a model whose first layer takes a list
            x = _renewed(args[0])
            for part in layer.layers:
                x = part(x)
            return _renewed(x)
    if type(layer).compute_output_shape is keras.layers.Layer.compute_output_shape:
        with suppress(Exception):  # whatever its code raises; running it on the backend is slower
            if type(layer).compute_output_spec is keras.layers.Layer.compute_output_spec:
                args, kwargs = tree.map_structure(_renewed, (args, kwargs))
                return tree.map_structure(_renewed, layer.call(*args, **kwargs))
    usual = keras.Operation.compute_output_spec
    try:
        outputs = layer.compute_output_spec(*args, **kwargs)
    except TypeError:
        outputs = usual(layer, *args, **kwargs)
    if not tracer.trusting and not type(layer).__module__.startswith("keras.src."):
        return usual(layer, *args, **kwargs)
    if isinstance(layer, keras.layers.EinsumDense) and isinstance(outputs, keras.KerasTensor):
        known, _, result = layer.equation.replace(" ", "").partition("->")
        x = args[0] if args else kwargs["inputs"]
        if "..." not in known:
            sizes = dict(zip(known.split(",")[0], x.shape, strict=True))
            shape = [sizes.get(axis, n) for axis, n in zip(result, outputs.shape, strict=True)]
            return keras.KerasTensor(shape, outputs.dtype)
    # Some layers declare a shape with None even for tensors of known size.
    if any(None in y.shape for y in tensors_in(outputs)):
        return usual(layer, *args, **kwargs)
    return outputs


def _renewed(x: Any) -> Any:
    return keras.KerasTensor(x.shape, x.dtype) if isinstance(x, keras.KerasTensor) else x


# -- replaced functions of Keras ----------------------------------------------------------------------------


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Permanently replaces a function of Keras by `make(function)`."""
    usual = getattr(owner, name)
    setattr(owner, name, functools.wraps(usual)(make(usual)))


def _standardize_shape(usual: Any) -> Any:
    def standardize_shape(shape: Any) -> Any:
        sizes = usual(shape)
        if not any(isinstance(n, Size) for n in shape):
            return sizes
        return tuple(a if isinstance(a, Size) else b for a, b in zip(shape, sizes, strict=True))

    return standardize_shape


def _any_symbolic_tensors(usual: Any) -> Any:
    def any_symbolic_tensors(args: Any = None, kwargs: Any = None) -> bool:
        if usual(args, kwargs):
            return True
        tracer = _TRACER.get()
        flat = () if tracer is None or tracer.calls is None else tree.flatten((args, kwargs))
        return any(isinstance(x, (Size, Real)) for x in flat)

    return any_symbolic_tensors


def _node(usual: Any) -> Any:
    def node(operation: Any, call_args: Any = (), call_kwargs: Any = None, outputs: Any = ()) -> Any:
        tracer = _TRACER.get()
        if tracer is None:
            return _made(usual(operation, call_args, call_kwargs, outputs))
        return tracer.add(operation, call_args, call_kwargs, outputs)

    return node


class AsTensor(keras.Operation):
    """A number that was computed from sizes, as a tensor."""

    def call(self, x: Any) -> Any:
        return keras.ops.convert_to_tensor(x)


def _symbolic_call(usual: Any) -> Any:
    def symbolic_call(operation: Any, *args: Any, **kwargs: Any) -> Any:
        tracer = _TRACER.get()
        if tracer is None:
            return usual(operation, *args, **kwargs)
        if tracer.calls is not None and not tensors_in((args, kwargs)):
            args, kwargs = tree.map_structure(_tensor_of, (args, kwargs))
        with tracer.quiet():
            outputs = _spec_of_operation(operation, args, kwargs)
            tracer.add(operation, args, kwargs, outputs)
        return outputs

    return symbolic_call


def _tensor_of(x: Any) -> Any:
    if not isinstance(x, (Size, Real)):
        return x
    tensor = keras.KerasTensor((), "float32" if isinstance(x, Real) else "int32")
    _TRACER.get().add(AsTensor(), (x,), {}, tensor)  # type: ignore[union-attr]
    return tensor


def _symbolic_call_of_layer(usual: Any) -> Any:
    def symbolic_call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        return usual(layer, *args, **kwargs) if _TRACER.get() is None else _spec_of_layer(layer, args, kwargs)

    return symbolic_call


def _call_of_layer(usual: Any) -> Any:
    def __call__(layer: Any, *args: Any, **kwargs: Any) -> Any:
        tracer = _TRACER.get()
        if tracer is None:
            return usual(layer, *args, **kwargs)
        if not tensors_in((args, kwargs)):
            with _as_usual():
                return usual(layer, *args, **kwargs)
        tracer.inside_layers += 1
        try:
            with tracer.quiet():
                return usual(layer, *args, **kwargs)
        finally:
            tracer.inside_layers -= 1

    return __call__


def _compute_output_spec(usual: Any) -> Any:
    def compute_output_spec(function: Any, *args: Any, **kwargs: Any) -> Any:
        if _TRACER.get() is None:
            return usual(function, *args, **kwargs)
        args, kwargs = tree.map_structure(_with_plain_sizes, (args, kwargs))
        with _as_usual():
            return usual(function, *args, **kwargs)

    return compute_output_spec


def _with_plain_sizes(x: Any) -> Any:
    if isinstance(x, keras.KerasTensor):
        return keras.KerasTensor([n if n is None else plain(n) for n in x.shape], x.dtype)
    return _as_number(x)


def _as_number(x: Any) -> Any:
    if isinstance(x, slice):
        return slice(*map(_as_number, (x.start, x.stop, x.step)))
    if isinstance(x, Real):
        return float.__float__(x)
    return plain(x) if isinstance(x, Size) else x


def _get_item(usual: Any) -> Any:
    def __getitem__(x: Any, key: Any) -> Any:
        # A Keras tensor refuses a plain slice, None and TensorFlow's list of slices, which backends accept.
        if _TRACER.get() is not None:
            if isinstance(key, list) and any(k is None or isinstance(k, slice) for k in key):
                key = tuple(key)
            key = (key,) if key is None or isinstance(key, slice) else key
        return usual(x, key)

    return __getitem__


def _equal(usual: Any) -> Any:
    def __eq__(x: Any, other: Any) -> Any:
        # == of Keras tensors compares identities, but that of every backend compares values.
        tracer = _TRACER.get()
        numeric = isinstance(other, (bool, int, float, np.ndarray, np.generic, keras.KerasTensor))
        if tracer is None or tracer.calls is None or not (numeric or keras.ops.is_tensor(other)):
            return usual(x, other)
        return keras.ops.equal(x, other)

    return __eq__


def _backend(usual: Any) -> Any:
    def backend() -> str:
        tracer = _TRACER.get()
        return usual() if tracer is None or tracer.calls is None or not tracer.plain else "numpy"

    return backend


def _next_seed(usual: Any) -> Any:
    def next(generator: Any, *args: Any, **kwargs: Any) -> Any:
        if _DRAWS_NOTHING.get():
            raise NotLowered(RANDOM)
        return usual(generator, *args, **kwargs)

    return next


def _recorded(make: Callable[..., Any]) -> Any:
    """A function of keras.ops that computes eagerly, also on sizes, as an operation of the trace."""

    def wrapper(usual: Any) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            tracer = _TRACER.get()
            if tracer is None or tracer.calls is None or not tracer.ranges:
                return usual(*args, **kwargs)
            result = make(tracer, *args, **kwargs)
            return usual(*args, **kwargs) if result is None else result

        return function

    return wrapper


def _arange(tracer: _Tracer, start: Any, stop: Any = None, step: Any = None, dtype: Any = None) -> Any:
    if stop is None:
        start, stop = 0, start
    step = 1 if step is None else step
    if tensors_in((start, stop, step)):
        return None
    numbers = (start, stop, step)
    if dtype is None:
        dtype = (
            keras.config.floatx() if any(isinstance(n, (float, np.floating)) for n in numbers) else "int32"
        )
    if any(isinstance(n, Size) for n in numbers):
        start, stop, step = (int(n) if type(n) is float and n.is_integer() else n for n in numbers)
        if not all(isinstance(n, int) for n in (start, stop, step)) or isinstance(step, Size) or step == 0:
            return None
        ahead = stop - start if step > 0 else start - stop
        count = larger((ahead + abs(step) - 1) // abs(step), 0)
    else:
        count = len(np.arange(start, stop, step))
    dtype = keras.backend.standardize_dtype(dtype)
    outputs = keras.KerasTensor((count,), dtype)
    return tracer.add(numpy_operations.Arange(dtype=dtype), (start, stop), {"step": step}, outputs)


def _full(tracer: _Tracer, shape: Any, fill_value: Any, dtype: Any = None) -> Any:
    if tensors_in(fill_value):
        return None
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    dtype = keras.backend.standardize_dtype(dtype)
    operation = numpy_operations.Full(shape=shape, dtype=dtype)
    return tracer.add(operation, (fill_value,), {}, keras.KerasTensor(shape, dtype))


def _tri(tracer: _Tracer, n: Any, m: Any = None, k: Any = 0, dtype: Any = None, compare: Any = None) -> Any:
    m = n if m is None else m
    if not any(isinstance(x, Size) for x in (n, m, k)):
        return None
    ops = keras.ops
    rows, columns = ops.expand_dims(ops.arange(n), 1), ops.expand_dims(ops.arange(m), 0)
    return ops.cast((compare or ops.greater_equal)(rows + k, columns), dtype or keras.config.floatx())


def _extend_keras() -> None:
    def eye(tracer: _Tracer, N: Any, M: Any = None, k: Any = 0, dtype: Any = None) -> Any:
        return _tri(tracer, N, M, k, dtype, keras.ops.equal)

    recorded: dict[str, Callable[..., Any]] = {
        "arange": _arange,
        "full": _full,
        "zeros": lambda tracer, shape, dtype=None: _full(tracer, shape, 0, dtype),
        "ones": lambda tracer, shape, dtype=None: _full(tracer, shape, 1, dtype),
        "empty": lambda tracer, shape, dtype=None: _full(tracer, shape, 0, dtype),
        "tri": lambda tracer, N, M=None, k=0, dtype=None: _tri(tracer, N, M, k, dtype),
        "eye": eye,
        "identity": lambda tracer, n, dtype=None: eye(tracer, n, dtype=dtype),
    }
    # Models import keras.ops, Keras's own layers keras.src.ops.
    for name, make in recorded.items():
        for module in (keras.ops, keras.src.ops):
            _replace(module, name, _recorded(make))
    for module in (keras.ops, keras.src.ops):
        _replace(module, "ndim", lambda usual: lambda x: len(x.shape) if _TRACER.get() else usual(x))
        _replace(module, "einsum", _einsum)
        _replace(module, "softmax", _softmax)
    _replace(keras.src.backend, "standardize_shape", _standardize_shape)
    _replace(keras.src.backend, "compute_output_spec", _compute_output_spec)
    _replace(keras.config, "backend", _backend)
    _replace(keras.KerasTensor, "__getitem__", _get_item)
    _replace(keras.KerasTensor, "__eq__", _equal)
    _replace(keras.random.SeedGenerator, "next", _next_seed)
    _replace(keras.Operation, "symbolic_call", _symbolic_call)
    _replace(keras.layers.Layer, "symbolic_call", _symbolic_call_of_layer)
    _replace(keras.layers.Layer, "__call__", _call_of_layer)
    for module in (operation_module, layer_module):
        _replace(module, "Node", _node)
    asks = keras.src.backend.any_symbolic_tensors
    extended = _any_symbolic_tensors(asks)
    for name, module in list(sys.modules.items()):
        if name.startswith("keras.src.") and vars(module).get("any_symbolic_tensors") is asks:
            module.any_symbolic_tensors = extended  # type: ignore[attr-defined]
    for name in ("compute_dtype", "dtype_policy"):
        _replace_dtype(name)


def _einsum(usual: Any) -> Any:
    def einsum(subscripts: str, *operands: Any, **options: Any) -> Any:
        # On Keras tensors Keras reads a capital letter as a number.
        small = subscripts.lower()
        if _TRACER.get() is not None and len(set(small)) == len(set(subscripts)):
            subscripts = small
        return usual(subscripts, *operands, **options)

    return einsum


def _softmax(usual: Any) -> Any:
    def softmax(*args: Any, **kwargs: Any) -> Any:
        tracer = _TRACER.get()
        if tracer is None:
            return usual(*args, **kwargs)
        with tracer.quiet():  # Keras warns about an axis of size 1, and computes the same
            return usual(*args, **kwargs)

    return softmax


def _replace_dtype(name: str) -> None:
    usual: property = vars(keras.layers.Layer)[name]

    def value(layer: Any) -> Any:
        x = usual.fget(layer)  # type: ignore[misc]
        if not _IN_FLOAT32.get() or getattr(x, "compute_dtype", x) not in ("float16", "bfloat16"):
            return x
        if isinstance(x, str):
            return "float32"
        mode = x.quantization_mode
        return keras.dtype_policies.get(f"{mode}_from_float32" if mode else "float32")

    setattr(keras.layers.Layer, name, property(value, usual.fset, usual.fdel, usual.__doc__))


_extend_keras()
