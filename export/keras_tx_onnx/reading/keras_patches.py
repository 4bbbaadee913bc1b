"""Everything that the exporter replaces in Keras for a moment.

The functions of Keras are replaced while at least one of the contexts below is open in any thread, and
restored when the last of them closes. A replaced function reads context variables: it changes only what the
thread that opened the context computes, and calls Keras's own function for all others.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import keras.src.backend
import keras.src.ops
import numpy as np
from keras import tree
from keras.src.layers import layer as layer_module
from keras.src.layers.preprocessing.image_preprocessing.bounding_boxes import bounding_box
from keras.src.ops import core as operations_core
from keras.src.ops import numpy as operations_numpy
from keras.src.ops import operation as operation_module
from keras.src.ops.node import Node

from keras_tx_onnx.errors import NotLowered
from keras_tx_onnx.reading import keras_hub_functions
from keras_tx_onnx.reading.symbolic_sizes import OBSERVER, Real, Size, with_plain_sizes

Arange, Full = operations_numpy.Arange, operations_numpy.Full  # operations without a public name
RANDOM = "It draws random numbers at inference. Pass the numbers as an input."

# The trace of this thread, a `Tracer` of symbolic_backend.py; None outside of a trace.
TRACER: ContextVar[Any] = ContextVar("keras_tx_tracer", default=None)
_NODES: ContextVar[list[Any] | None] = ContextVar("keras_tx_nodes", default=None)
_DETERMINISTIC: ContextVar[bool] = ContextVar("keras_tx_deterministic", default=False)
_IN_FLOAT32: ContextVar[bool] = ContextVar("keras_tx_in_float32", default=False)
_PREDICATE: ContextVar[bool | None] = ContextVar("keras_tx_predicate", default=None)

# The functions that trace a control-flow operation, by the name of its class; filled by traced_functions.py.
CONTROL_FLOW: dict[str, Callable[..., Any]] = {}

_LOCK = threading.Lock()
_open_contexts = 0
_replaced: list[tuple[Any, str, Any, Any]] = []  # owner, name, the former entry of its namespace, ours
_ABSENT = object()
# Modules without these functions that do not change. Looking at all modules, thousands, takes 10 ms or more.
_without_functions: dict[str, Any] = {}
# Packages with thousands of modules that import nothing of keras.ops.
_WITHOUT_KERAS = sys.stdlib_module_names | {"google", "jax", "numpy", "scipy", "sympy", "tensorflow", "torch"}


# -- contexts -----------------------------------------------------------------------------------------------


@contextmanager
def patched() -> Iterator[None]:
    """A context in which the functions of Keras are replaced."""
    global _open_contexts
    with _LOCK:
        if _open_contexts == 0:
            try:
                _replace_functions()
            except BaseException:
                _restore_functions()
                raise
        _open_contexts += 1
    try:
        yield
    finally:
        with _LOCK:
            _open_contexts -= 1
            if _open_contexts == 0:
                _restore_functions()


@contextmanager
def having(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """A context in which Keras is patched and a context variable has a value."""
    with patched():
        token = variable.set(value)
        try:
            yield
        finally:
            variable.reset(token)


@contextmanager
def tracing(tracer: Any, allow_random: bool = False) -> Iterator[None]:
    """A context in which a `Tracer` of symbolic_backend.py runs the operations of this thread."""
    with having(TRACER, tracer), having(OBSERVER, tracer.observer), having(_DETERMINISTIC, not allow_random):
        yield


@contextmanager
def untraced() -> Iterator[None]:
    """A context without the trace, in which the backend runs code and computes values."""
    with having(TRACER, None), having(OBSERVER, None), having(_DETERMINISTIC, False):
        yield


@contextmanager
def collecting_nodes() -> Iterator[list[Any]]:
    """A context that collects the nodes that this thread adds to Keras's graph."""
    nodes: list[Any] = []
    with having(_NODES, nodes):
        yield nodes


def deterministic() -> Any:
    """A context in which drawing random numbers raises: in a file they would be the same at every call."""
    return having(_DETERMINISTIC, True)


@contextmanager
def in_float32() -> Iterator[None]:
    """A context in which layers of half precision compute in float32, with unchanged variables."""
    with having(_IN_FLOAT32, True), _Float32Scope("float32"):
        yield


class _Float32Scope(keras.src.backend.AutocastScope):
    """Casts variables as Keras does, but not float32 ones, which the NumPy backend would copy."""

    def maybe_cast(self, value: Any) -> Any:
        is_float32 = keras.backend.standardize_dtype(value.dtype) == "float32"
        return value if is_float32 else super().maybe_cast(value)


def forced_predicates(value: bool) -> Any:
    """A context in which `ops.cond` on numbers computes one branch, whatever its predicate."""
    return having(_PREDICATE, value)


def recording() -> Any:
    """The trace of this thread if it records operations, otherwise None."""
    tracer = TRACER.get()
    return None if tracer is None or tracer.calls is None else tracer


# -- installation -------------------------------------------------------------------------------------------


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replaces a function, which may be inherited, by `make(function)`."""
    usual = getattr(owner, name)
    _assign(owner, name, functools.wraps(usual)(make(usual)))


def _assign(owner: Any, name: str, value: Any) -> None:
    _replaced.append((owner, name, vars(owner).get(name, _ABSENT), value))
    setattr(owner, name, value)


def _replace_imported(make: dict[str, Callable[[Any], Any]]) -> None:
    """Replaces functions of keras.ops in each module that imported them under their names.

    Keras's own layers call them as attributes of keras.src.ops.
    """
    functions = {name: getattr(keras.ops, name) for name in make}
    extended = {name: functools.wraps(usual)(make[name](usual)) for name, usual in functions.items()}
    for module_name, module in list(sys.modules.items()):
        if _without_functions.get(module_name) is module:
            continue
        package, space = module_name.partition(".")[0], getattr(module, "__dict__", {})
        is_free = package in _WITHOUT_KERAS or module_name.startswith("keras.src.ops.")
        names = [] if is_free else [name for name, usual in functions.items() if space.get(name) is usual]
        for name in names:
            _assign(module, name, extended[name])
        if is_free or (not names and _is_installed(space)):
            _without_functions[module_name] = module


def _is_installed(space: Mapping[str, Any]) -> bool:
    """Whether the namespace is that of a module of an installed package that is imported completely."""
    is_partial = getattr(space.get("__spec__"), "_initializing", False)
    return not is_partial and "site-packages" in str(space.get("__file__"))


def _restore_functions() -> None:
    while _replaced:
        owner, name, former, ours = _replaced.pop()
        if vars(owner).get(name) is not ours:
            continue  # another library replaced it since
        if former is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, former)


def _replace_functions() -> None:
    _replace_imported(
        {
            **{name: _recorded(name) for name in _RECORDED},
            **dict.fromkeys(_SHAPED, _shaped),
            **{name: _control_flow(make) for name, make in _CONTROL_FLOW_CALLS.items()},
            "ndim": lambda usual: lambda x: len(x.shape) if TRACER.get() else usual(x),
            "einsum": _einsum,
            "softmax": _softmax,
            "clip": _clip,
        }
    )
    usual = keras.src.backend.any_symbolic_tensors
    extended = functools.wraps(usual)(_any_symbolic_tensors(usual))
    for name, module in list(sys.modules.items()):
        if name.startswith("keras.src.") and vars(module).get("any_symbolic_tensors") is usual:
            _assign(module, "any_symbolic_tensors", extended)
    _replace(keras.src.backend, "standardize_shape", _standardize_shape)
    _replace(keras.src.backend, "compute_output_spec", _compute_output_spec)
    _replace(keras.config, "backend", _backend)
    _replace(keras.KerasTensor, "__getitem__", _get_item)
    _replace(keras.KerasTensor, "__eq__", _equal)
    _replace(keras.random.SeedGenerator, "next", _next_seed)
    _replace(bounding_box.BoundingBox, "convert_format", _convert_format_of_boxes)
    _replace(keras.Operation, "symbolic_call", _symbolic_call)
    _replace(keras.layers.Layer, "symbolic_call", _symbolic_call_of_layer)
    _replace(keras.layers.Layer, "__call__", _call_of_layer)
    for module in (operation_module, layer_module):
        _replace(module, "Node", _node)
    for name in ("compute_dtype", "dtype_policy"):
        usual = vars(keras.layers.Layer)[name]
        value = property(_dtype_of_layer(usual.fget), usual.fset, usual.fdel, usual.__doc__)
        _assign(keras.layers.Layer, name, value)
    if keras.backend.backend() == "numpy":
        _replace(keras.src.backend.numpy, "matmul", _matmul_of_numpy)
    for name, trace in CONTROL_FLOW.items():
        _replace(getattr(operations_core, name), "symbolic_call", _traced_by(trace))
    _replace(operations_core.Cond, "call", _call_of_cond)
    for replaced in keras_hub_functions.REPLACED:
        if replaced.module in sys.modules:
            *owners, name = replaced.path.split(".")
            owner = functools.reduce(getattr, owners, sys.modules[replaced.module])
            _replace(owner, name, _while_tracing(replaced.make))


# -- the replaced functions ---------------------------------------------------------------------------------


def _any_symbolic_tensors(usual: Any) -> Any:
    def any_symbolic_tensors(args: Any = None, kwargs: Any = None) -> bool:
        if usual(args, kwargs):
            return True
        flat = tree.flatten((args, kwargs)) if recording() else ()
        return any(isinstance(x, (Size, Real)) for x in flat)

    return any_symbolic_tensors


def _standardize_shape(usual: Any) -> Any:
    def standardize_shape(shape: Any) -> Any:
        sizes = usual(shape)
        if not any(isinstance(n, Size) for n in shape):
            return sizes
        return tuple(a if isinstance(a, Size) else b for a, b in zip(shape, sizes, strict=True))

    return standardize_shape


def _compute_output_spec(usual: Any) -> Any:
    def compute_output_spec(function: Any, *args: Any, **kwargs: Any) -> Any:
        if TRACER.get() is None:
            return usual(function, *args, **kwargs)
        args, kwargs = tree.map_structure(with_plain_sizes, (args, kwargs))
        with untraced():
            return usual(function, *args, **kwargs)

    return compute_output_spec


def _node(usual: Any) -> Any:
    def node(operation: Any, call_args: Any = (), call_kwargs: Any = None, outputs: Any = ()) -> Any:
        tracer = TRACER.get()
        if tracer is None:
            return _collected(usual(operation, call_args, call_kwargs, outputs))
        return tracer.add(operation, call_args, call_kwargs, outputs)

    return node


def add_node(operation: Any, args: Any, kwargs: Any, outputs: Any) -> None:
    """Adds a call to Keras's own graph."""
    _collected(Node(operation, args, kwargs, outputs))


def _collected(node: Any) -> Any:
    nodes = _NODES.get()
    if nodes is not None:
        nodes.append(node)
    return node


def _symbolic_call(usual: Any) -> Any:
    def symbolic_call(operation: Any, *args: Any, **kwargs: Any) -> Any:
        tracer = TRACER.get()
        if tracer is None:
            return usual(operation, *args, **kwargs)
        return tracer.call_operation(operation, args, kwargs)

    return symbolic_call


def _symbolic_call_of_layer(usual: Any) -> Any:
    def symbolic_call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        tracer = TRACER.get()
        return usual(layer, *args, **kwargs) if tracer is None else tracer.spec_of_layer(layer, args, kwargs)

    return symbolic_call


def _call_of_layer(usual: Any) -> Any:
    def __call__(layer: Any, *args: Any, **kwargs: Any) -> Any:
        tracer = TRACER.get()
        if tracer is None:
            return usual(layer, *args, **kwargs)
        if not any(isinstance(x, keras.KerasTensor) for x in tree.flatten((args, kwargs))):
            with untraced():
                return usual(layer, *args, **kwargs)
        with tracer.inside_layer():
            return usual(layer, *args, **kwargs)

    return __call__


def _get_item(usual: Any) -> Any:
    def __getitem__(x: Any, key: Any) -> Any:
        # A Keras tensor refuses a plain slice, None and TensorFlow's list of slices, which backends accept.
        if TRACER.get() is not None:
            if isinstance(key, list) and any(k is None or isinstance(k, slice) for k in key):
                key = tuple(key)
            key = (key,) if key is None or isinstance(key, slice) else key
        return usual(x, key)

    return __getitem__


def _equal(usual: Any) -> Any:
    def __eq__(x: Any, other: Any) -> Any:
        # == of Keras tensors compares identities, but that of every backend compares values.
        numeric = isinstance(other, (bool, int, float, np.ndarray, np.generic, keras.KerasTensor))
        if not recording() or not (numeric or keras.ops.is_tensor(other)):
            return usual(x, other)
        return keras.ops.equal(x, other)

    return __eq__


def _backend(usual: Any) -> Any:
    def backend() -> str:
        tracer = recording()
        return "numpy" if tracer is not None and tracer.plain else usual()

    return backend


class _KerasOperations:
    """keras.ops, with the attributes of the backend that keras.utils.bounding_boxes uses."""

    numpy = keras.ops

    def __getattr__(self, name: str) -> Any:
        return getattr(keras.ops, name)

    def reset(self) -> None:
        """Does nothing: there is no other backend."""


def _convert_format_of_boxes(usual: Any) -> Any:
    def convert_format(converter: Any, boxes: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(boxes, keras.KerasTensor):  # which the backend rejects
            converter.backend = _KerasOperations()
        return usual(converter, boxes, *args, **kwargs)

    return convert_format


def _next_seed(usual: Any) -> Any:
    def next(generator: Any, *args: Any, **kwargs: Any) -> Any:
        if _DETERMINISTIC.get():
            raise NotLowered(RANDOM)
        return usual(generator, *args, **kwargs)

    return next


def _einsum(usual: Any) -> Any:
    def einsum(subscripts: str, *operands: Any, **options: Any) -> Any:
        # On Keras tensors Keras reads a capital letter as a number.
        small = subscripts.lower()
        if TRACER.get() is not None and len(set(small)) == len(set(subscripts)):
            subscripts = small
        return usual(subscripts, *operands, **options)

    return einsum


def _matmul_of_numpy(usual: Any) -> Any:
    def matmul(x1: Any, x2: Any) -> Any:
        # Keras copies both arguments twice, also weights, which takes as long as the product of a short text.
        x1, x2 = (keras.ops.convert_to_tensor(x) if isinstance(x, keras.Variable) else x for x in (x1, x2))
        if all(type(x) is np.ndarray and x.dtype == np.float32 for x in (x1, x2)):
            return np.matmul(x1, x2)
        return usual(x1, x2)

    return matmul


def _softmax(usual: Any) -> Any:
    def softmax(*args: Any, **kwargs: Any) -> Any:
        tracer = TRACER.get()
        if tracer is None:
            return usual(*args, **kwargs)
        with tracer.quiet():  # Keras warns about an axis of size 1, and computes the same
            return usual(*args, **kwargs)

    return softmax


def _clip(usual: Any) -> Any:
    def clip(x: Any, x_min: Any, x_max: Any) -> Any:
        # The operation keeps its bounds as attributes, which a graph of tensors does not see.
        kinds = (keras.KerasTensor, Size, Real)
        if not recording() or not any(isinstance(bound, kinds) for bound in (x_min, x_max)):
            return usual(x, x_min, x_max)
        steps = [(keras.ops.maximum, x_min), (keras.ops.minimum, x_max)]
        if keras.backend.backend() == "tensorflow":  # the lower bound wins there, the upper one elsewhere
            steps.reverse()
        y = x
        for limit, bound in steps:
            y = y if bound is None else limit(y, bound)
        return keras.ops.cast(y, x.dtype)

    return clip


# Functions of keras.ops that compute eagerly, also on sizes; a trace records them as operations.
_RECORDED = ("arange", "full", "zeros", "ones", "empty", "tri", "eye", "identity")


def _recorded(name: str) -> Callable[[Any], Any]:
    def wrapper(usual: Any) -> Any:
        def function(*args: Any, **kwargs: Any) -> Any:
            tracer = recording()
            if tracer is None or not tracer.ranges:
                return usual(*args, **kwargs)
            result = tracer.create(name, *args, **kwargs)
            return usual(*args, **kwargs) if result is None else result

        return function

    return wrapper


# Functions of keras.ops that compute eagerly where only their other arguments are sizes.
_SHAPED = ("broadcast_to", "pad", "repeat", "reshape", "slice", "tile")


def _shaped(usual: Any) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        tracer = recording()
        if tracer is not None and args and any(isinstance(n, Size) for n in tree.flatten((args[1:], kwargs))):
            first = keras.ops.convert_to_tensor(args[0]) if isinstance(args[0], keras.Variable) else args[0]
            args = (tracer.constant(first), *args[1:])
        return usual(*args, **kwargs)

    return function


def _dtype_of_layer(usual: Any) -> Any:
    def value(layer: Any) -> Any:
        x = usual(layer)
        if not _IN_FLOAT32.get() or getattr(x, "compute_dtype", x) not in ("float16", "bfloat16"):
            return x
        if isinstance(x, str):
            return "float32"
        mode, _, _ = x.name.rpartition("_from_")  # with the bits and the sizes of groups
        return keras.dtype_policies.get(f"{mode}_from_float32" if mode else "float32")

    return value


# -- control flow -------------------------------------------------------------------------------------------


def _traced_by(trace: Callable[..., Any]) -> Callable[[Any], Any]:
    def wrapper(usual: Any) -> Any:
        def symbolic_call(operation: Any, *args: Any, **kwargs: Any) -> Any:
            return (trace if recording() else usual)(operation, *args, **kwargs)

        return symbolic_call

    return wrapper


def _call_of_cond(usual: Any) -> Any:
    def call(operation: Any, pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
        if recording():
            return operation.symbolic_call(pred, true_fn, false_fn)
        value = _PREDICATE.get()
        if value is not None and not isinstance(pred, bool):
            return true_fn() if value else false_fn()
        return usual(operation, pred, true_fn, false_fn)

    return call


def _switch(index: Any, branches: Any, *operands: Any) -> Any:
    return operations_core.Switch().symbolic_call(index, branches, *operands)


def _while_loop(cond: Any, body: Any, loop_vars: Any, maximum_iterations: Any = None) -> Any:
    return operations_core.WhileLoop(cond, body, maximum_iterations).symbolic_call(loop_vars)


def _fori_loop(lower: Any, upper: Any, body_fun: Any, init_val: Any) -> Any:
    return operations_core.ForiLoop(lower, upper, body_fun).symbolic_call(init_val)


def _scan(
    f: Any, init: Any, xs: Any = None, length: Any = None, reverse: Any = False, unroll: Any = 1
) -> Any:
    return operations_core.Scan(length, reverse, unroll).symbolic_call(f, init, xs)


def _custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: f(*args, **kwargs)[0]


# Keras checks only the arguments of these for Keras tensors, not the tensors that the functions capture.
_CONTROL_FLOW_CALLS: dict[str, Callable[..., Any]] = {
    "switch": _switch,
    "while_loop": _while_loop,
    "fori_loop": _fori_loop,
    "scan": _scan,
    "custom_gradient": _custom_gradient,
}


def _control_flow(traced: Callable[..., Any]) -> Callable[[Any], Any]:
    return _while_tracing(lambda usual: traced)


def _while_tracing(make: Callable[[Any], Callable[..., Any]]) -> Callable[[Any], Any]:
    """Makes a function that a trace replaces by `make(function)`."""

    def wrapper(usual: Any) -> Any:
        traced = make(usual)

        def function(*args: Any, **kwargs: Any) -> Any:
            return (traced if recording() else usual)(*args, **kwargs)

        return function

    return wrapper
