"""Opens a layer: traces its `call` on Keras tensors whose dynamic axes are symbolic sizes.

The trace is exact for all sizes. Traces at other sample sizes, near and far, must be equal: a difference
means that a size lost its expression, for example in a NumPy number or in a loop over an axis, and raises.
Nothing is inferred from samples.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import tree

from keras_tx_onnx.errors import NotLowered, one_line
from keras_tx_onnx.graph.builder import KERAS_TENSOR
from keras_tx_onnx.graph.size_expressions import Bound, Expression, Symbol, of_symbol
from keras_tx_onnx.reading import functional_graph, keras_patches
from keras_tx_onnx.reading.symbolic_backend import Call, Trace, Tracer, output_spec, tensors_in, trace_of
from keras_tx_onnx.reading.symbolic_sizes import (
    Observer,
    Real,
    Size,
    expression_of,
    sizes_of,
)

# Sample sizes of the dynamic axes other than the batch, in two variants: the first row is traced; the trace
# must be the same at one of the second rows, and at each of the third, in which powers of two and long axes
# reveal sizes that C code such as math.gcd or math.log2 read. Patches and strides divide the second variant.
FIRST = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)
FAR = (1013, 1019, 1021, 1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069, 1087)
SAMPLES = (
    (
        FIRST,
        (FAR, tuple(n + 146 for n in FIRST), tuple(n + 44 for n in FIRST)),
        ((2, 3, 5, 7, 11, 13), (64, 128, 256, 512), (8209, 8219, 8221, 8231, 8233, 8237)),
    ),
    (
        tuple(32 * n for n in FIRST[:4]),
        (tuple(96 * n for n in FIRST[:4]), tuple(64 * n for n in FIRST[:4])),
        (),
    ),
)
BATCHES = (3, 7)
LAST_BATCHES = (2, 64, 1021)

# Which dynamic axes are assumed to be equal: those that are known to be, also those with the same index, or
# all but the batch, as a square adjacency matrix requires.
EQUAL = ("known", "numbered", "all")


class SizeLost(NotLowered):
    """A layer's code computes with a size in a way that a graph cannot express for all sizes."""


class NothingToCompare(SizeLost):
    """A layer's code runs at one of the sample sizes only, or compares sizes differently at each."""


@dataclasses.dataclass(frozen=True)
class TraceMode:
    """How a layer's code is run.

    Attributes:
        symbolic: whether ranges, fills and weights become part of the graph.
        plain: whether keras.backend.backend() returns a name for which code has no special case.
        trusting: whether inner layers have the output shapes that they declare.
        tables: whether arrays that the layer keeps, such as positions, become part of the graph.
    """

    symbolic: bool = True
    plain: bool = True
    trusting: bool = True
    tables: bool = False


MODES = (
    TraceMode(),
    TraceMode(plain=False),
    TraceMode(symbolic=False, plain=False),
    TraceMode(trusting=False),
    TraceMode(tables=True),
)
MISTRUSTING = tuple(mode for mode in MODES if not mode.trusting)
# Operations whose output size Keras infers without the size of the input: the relevant axes of the input, and
# the axis of the output.
CLIPPING: dict[str, Callable[[Any], tuple[tuple[int, ...], int]]] = {
    "Split": lambda operation: ((operation.axis,), operation.axis),
    "Diagonal": lambda operation: ((operation.axis1, operation.axis2), -1),
}


@dataclasses.dataclass(frozen=True)
class Opened:
    """A call as a trace, its bounds, and the values of its first inputs.

    Its other inputs are weights: variables, or None for unused ones.
    """

    trace: Trace
    values: list[ir.Value]
    weights: list[Any]
    bounds: list[Bound]


def open_call(
    name: str,
    function: Callable[..., Any],
    args: tuple,
    kwargs: dict,
    *,
    layer: Any = None,
    masks: dict[int, ir.Value] | None = None,
    trusting: bool = True,
) -> Opened:
    """Traces a function for the values among its arguments.

    Args:
        layer: the owner if the function is a method. Its weights become tensors of the trace.
        masks: the Keras masks of these values, by the value's id.
        trusting: whether inner layers may have the output shapes that they declare.
    """
    errors: list[tuple[int, Exception]] = []
    refuted: set[tuple[TraceMode, str]] = set()  # by a sample size; that others agree proves nothing
    for mode in MODES if trusting else MISTRUSTING:
        for samples in SAMPLES:
            for equal in EQUAL:
                attempt = _Attempt(name, function, args, kwargs, layer, masks or {}, equal, mode)
                if (equal != "known" and not attempt.merged) or (mode, equal) in refuted:
                    continue
                try:
                    return attempt.trace_at(*samples)
                except Exception as error:  # whatever a layer's code raises at these sizes
                    # With different sizes most layers with two inputs fail, with an unrelated error.
                    rank = 0 if isinstance(error, SizeLost) else 1 if equal == "numbered" else 2
                    errors.append((rank, error))
                    if isinstance(error, SizeLost) and not isinstance(error, NothingToCompare):
                        refuted.add((mode, equal))
    error = min(errors, key=lambda pair: pair[0])[1]
    if isinstance(error, SizeLost):
        raise error
    raise NotLowered(f"Its call does not run on Keras tensors: {one_line(error)}") from error


class _Attempt:
    """One attempt to trace a function."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple,
        kwargs: dict,
        layer: Any,
        masks: dict[int, ir.Value],
        equal: str,
        mode: TraceMode,
    ):
        self.name, self.function, self.args, self.kwargs = name, function, args, kwargs
        self.layer, self.masks, self.mode = layer, masks, mode
        values = functional_graph.distinct_values((args, kwargs))
        self.values = functional_graph.distinct_values(
            [values, [masks[id(v)] for v in values if id(v) in masks]]
        )
        axes = [
            (axis, n) for v in self.values for axis, n in enumerate(sizes_of(v)) if not isinstance(n, int)
        ]
        batches = {size.symbol for axis, size in axes if axis == 0} - {None}
        symbols = sorted(set().union(*(size.symbols() for _, size in axes)), key=lambda s: s.number)
        self.batches = [symbol for symbol in symbols if symbol in batches]
        self.others = [symbol for symbol in symbols if symbol not in batches]
        self.merged = _merged(axes, equal)
        self.unequal: tuple[Symbol, Symbol] | None = None  # the axes that differed where the code raised

    def trace_at(self, first: tuple, others: tuple, last: tuple) -> Opened:
        """The trace at the first samples, which must be the same at all others that the code accepts."""
        fresh: dict[tuple[int, int, int], Symbol] = {}
        while True:
            one, weights = self._first(first, fresh)
            lost = one.observer.lost
            if lost:
                raise SizeLost(f"It converts a size to a plain number by {lost[0]}. {ADVICE}")
            places = (
                set() if not self.batches and not self.others else self._compared(one, others, last, fresh)
            )
            if not places:
                break
            fresh |= {place: Symbol(None, place[2]) for place in sorted(places)}
        # Inner axes that must be equal: if they are not, Keras fails like the graph.
        pairs = [(a, b) for a, b in self.merged.items() if a.least and b.least]
        equal = [Bound(of_symbol(a) - of_symbol(b), "==") for a, b in pairs]
        used = {id(x) for call in one.used() for x in tensors_in((call.args, call.kwargs))}
        used |= set(map(id, one.outputs))
        variables = [variable if id(tensor) in used else None for tensor, variable in weights]
        return Opened(one, self.values, variables, [*equal, *one.observer.bounds])

    def _first(self, row: tuple, fresh: dict) -> tuple[Trace, list[tuple[Any, Any]]]:
        """The trace at a row of samples, with axes made equal where the code raises because they are not."""
        while True:
            try:
                return self._trace(row, BATCHES[0], fresh)
            except Exception:
                if self.unequal is None:
                    raise
                one, other = self.unequal
                one, other = self.merged.get(one, one), self.merged.get(other, other)
                if one is other:
                    raise
                self.merged |= {symbol: one for symbol, first in self.merged.items() if first is other}
                self.merged[other] = one

    def _compared(self, one: Trace, others: tuple, last: tuple, fresh: dict) -> set[tuple[int, int, int]]:
        """Compares with traces at other samples. Returns the axes that shape inference made plain numbers."""
        suitable = not others
        pairs = [*((row, BATCHES[1]) for row in others), *zip(last, LAST_BATCHES, strict=False)]
        for index, (row, batch) in enumerate(pairs):
            if index < len(others) and suitable:
                continue
            try:
                other, _ = self._trace(row, batch, fresh)
            except Exception:  # a layer may refuse these sizes
                continue
            places = {place for place in _plain_axes(one, other) if place not in fresh}
            if places:
                return places
            if list(one.observer.bounds) == list(other.observer.bounds):
                _check_same(one, other)
                suitable = True
        if not suitable:
            raise NothingToCompare(
                f"It runs at one size of its inputs only, or differently at each. {ADVICE}"
            )
        return set()

    def _trace(self, row: tuple, batch: int, fresh: dict) -> tuple[Trace, list[tuple[Any, Any]]]:
        samples: dict[Any, int] = {symbol: batch + 2 * i for i, symbol in enumerate(self.batches)}
        samples |= dict(zip(self.others, itertools.cycle(row), strict=False))
        samples |= {symbol: samples[first] for symbol, first in self.merged.items()}
        made: dict[int, keras.KerasTensor] = {}

        def tensor(x: Any) -> Any:
            if not isinstance(x, ir.Value):
                return x
            if id(x) not in made:
                made[id(x)] = tensor_of(x, samples)
            return made[id(x)]

        function, weights = self.function, []
        mode = self.mode
        if self.layer is not None and mode.symbolic:
            function, weights = _with_tensors(self.layer, self.function)
        tracer = Tracer(Observer(), [], mode.plain, mode.symbolic, mode.trusting, fresh)
        with functional_graph.unchanged([]), keras_patches.tracing(tracer):  # assignments change nothing
            if mode.tables and function is not self.function:
                _record_tables(tracer, function)
            inputs = [*map(tensor, self.values), *(x for x, _ in weights)]
            new_args, new_kwargs = tree.map_structure(tensor, (self.args, self.kwargs))
            for value_id, mask in self.masks.items():
                if value_id in made:
                    functional_graph.set_mask(made[value_id], tensor(mask))
            try:
                result = function(*new_args, **new_kwargs)
            except Exception:
                self.unequal = _last_unequal(tracer.observer)
                raise
        # A mask has a row for each row of the batch, which a constant has not.
        is_mask = getattr(self.function, "__name__", "") == "compute_mask"
        return trace_of(self.name, tracer, inputs, result, constants=not is_mask), weights


def _merged(axes: list[tuple[int, Expression]], equal: str) -> dict[Symbol, Symbol]:
    """The axes that are assumed to be equal to another one, with that axis."""
    merged: dict[Symbol, Symbol] = {}
    firsts: dict[int, Symbol] = {}
    for axis, size in axes if equal != "known" else ():
        if size.symbol is not None:
            first = firsts.setdefault(min(axis, 1) if equal == "all" else axis, size.symbol)
            if first is not size.symbol:
                merged[size.symbol] = first
    return merged


def _last_unequal(observer: Observer) -> tuple[Symbol, Symbol] | None:
    """The two axes that were compared last, if they differed, also as factors of two products."""
    difference = observer.unequal
    if difference is None or len(difference.terms) != 2:
        return None
    (one, a), (other, b) = difference.terms
    mine = [atom for atom in one if atom not in other]
    theirs = [atom for atom in other if atom not in one]
    if a + b != 0 or len(mine) != 1 or len(theirs) != 1:
        return None
    pair = sorted((atom for atom in (*mine, *theirs) if isinstance(atom, Symbol)), key=lambda s: s.number)
    return (pair[0], pair[1]) if len(pair) == 2 else None


ADVICE = (
    "Compute with sizes by + - * / // % **, math.ceil, math.floor and comparisons, or by keras.ops on a "
    "tensor."
)


def tensor_of(value: ir.Value, samples: Mapping[Symbol, int]) -> keras.KerasTensor:
    """A Keras tensor in place of a value, with its symbolic sizes."""
    known = value.meta[KERAS_TENSOR]
    shape = [n if isinstance(n, int) else Size(n.evaluate(samples), n) for n in sizes_of(value)]
    return keras.KerasTensor(shape, known.dtype)


def _with_tensors(
    layer: Any, function: Callable[..., Any]
) -> tuple[Callable[..., Any], list[tuple[Any, Any]]]:
    """A method of a copy of the layer with tensors as variables, and pairs of these tensors and variables.

    Operations on a variable alone, such as slicing a table, become part of the graph.
    """
    weights = []
    if vars(layer).get(function.__name__) is not None or not hasattr(type(layer), function.__name__):
        return function, weights
    copied = object.__new__(type(layer))
    attributes = vars(copied)
    attributes.update(vars(layer))
    for name, x in vars(layer).items():
        if isinstance(x, keras.Variable):
            floating = keras.backend.is_float_dtype(x.dtype)
            attributes[name] = keras.KerasTensor(x.shape, layer.compute_dtype if floating else x.dtype)
            weights.append((attributes[name], x))
    return getattr(copied, function.__name__), weights


def _record_tables(tracer: Tracer, method: Any) -> None:
    """Replaces the arrays among the attributes of a copied layer by constants of the trace."""
    attributes = vars(method.__self__)
    attributes.update({name: tracer.constant(x) for name, x in attributes.items()})


def _plain_axes(one: Trace, other: Trace) -> Iterator[tuple[int, int, int]]:
    """The axes of outputs without an expression that depend on sizes of inputs: by call, output and axis."""
    for index, (a, b) in enumerate(zip(one.everything, other.everything, strict=False)):
        if type(a.operation) is not type(b.operation) or len(a.outputs) != len(b.outputs):
            return
        clipped = _clipped_axis(a)
        for output, (x, y) in enumerate(zip(a.outputs, b.outputs, strict=True)):
            if len(x.shape) != len(y.shape):
                return
            for axis, (n, m) in enumerate(zip(x.shape, y.shape, strict=True)):
                plain = not isinstance(n, Size) and not isinstance(m, Size)
                if plain and (n != m or (clipped is not None and axis == clipped % len(x.shape))):
                    yield index, output, axis


def _clipped_axis(call: Call) -> int | None:
    """The output axis of a call that Keras infers without the dynamic size of the input."""
    clip = CLIPPING.get(type(call.operation).__name__)
    if clip is None:
        return None
    axes, end = clip(call.operation)
    shape = tensors_in((call.args, call.kwargs))[0].shape
    return end if any(isinstance(shape[axis], Size) for axis in axes) else None


def _check_same(one: Trace, other: Trace) -> None:
    """Raises where two traces differ in anything but the sample values of sizes."""
    calls, others = one.used(), other.used()
    places = [_places(one), _places(other)]
    kinds = [[type(call.operation) for call in calls] for calls in (calls, others)]
    if kinds[0] != kinds[1] or [places[0][id(x)] for x in one.outputs] != [
        places[1][id(x)] for x in other.outputs
    ]:
        raise SizeLost(
            f"It has size-dependent control flow without a comparison of sizes, such as a loop over an axis. "
            f"{ADVICE}"
        )
    for a, b in zip(calls, others, strict=True):
        pairs = [
            (a.args, b.args),
            (a.kwargs, b.kwargs),
            ([x.shape for x in a.outputs], [x.shape for x in b.outputs]),
        ]
        if a.operation is not b.operation:
            pairs.append((settings_of(a.operation), settings_of(b.operation)))
        for x, y in zip(getattr(a.operation, "bodies", ()), getattr(b.operation, "bodies", ()), strict=True):
            _check_same(x.trace, y.trace)
            pairs.append((_numbers(x.results), _numbers(y.results)))
        for x, y in pairs:
            different = _difference(x, y, places)
            if different is not None:
                raise SizeLost(
                    f"The operation {functional_graph.name_of(a.operation)!r} has a constant that depends "
                    f"on the size of an input: {different}. {ADVICE}"
                )


def _numbers(results: list[Any]) -> list[Any]:
    return [x for x in results if not isinstance(x, keras.KerasTensor)]


def _places(one: Trace) -> dict[int, tuple[int, int]]:
    """Where each Keras tensor of a trace comes from."""
    places = {id(x): (-1, index) for index, x in enumerate(one.inputs)}
    for index, call in enumerate(one.used()):
        places.update({id(x): (index, output) for output, x in enumerate(call.outputs)})
    return places


def settings_of(operation: Any) -> dict[str, Any]:
    """The settings that an operation was created with."""
    if isinstance(operation, keras.layers.Layer):
        return {name: x for name, x in operation.get_config().items() if name != "name"}
    return {name: x for name, x in vars(operation).items() if name[0] != "_" and name != "name"}


def _difference(x: Any, y: Any, places: list[dict[int, tuple[int, int]]]) -> str | None:
    """How two arguments differ, or None."""
    if isinstance(x, (Size, Real)) or isinstance(y, (Size, Real)):
        same = type(x) is type(y) and expression_of(x) == expression_of(y)
        return None if same else f"{x!r} at one size and {y!r} at another"
    if isinstance(x, keras.KerasTensor) and isinstance(y, keras.KerasTensor):
        same = places[0].get(id(x)) == places[1].get(id(y))
        return None if same else "another tensor at another size"
    first, second = _elements(x), _elements(y)
    if first is not None and second is not None and first.keys() == second.keys():
        return next(filter(None, (_difference(first[key], second[key], places) for key in first)), None)
    if x is y or not _is_data(x) or _same(x, y):  # an object, such as a layer's initializer
        return None
    return f"{_short(x)} at one size and {_short(y)} at another"


def _elements(x: Any) -> dict[Any, Any] | None:
    """The elements of a structure, by key or index; None if it is no structure."""
    if isinstance(x, slice):
        x = (x.start, x.stop, x.step)
    if isinstance(x, (list, tuple)):
        return dict(enumerate(x))
    return x if isinstance(x, dict) else None


def _is_data(x: Any) -> bool:
    kinds = (bool, int, float, complex, str, bytes, slice, list, tuple, dict, np.ndarray, np.generic)
    return isinstance(x, kinds) or keras.ops.is_tensor(x)


def _same(first: Any, second: Any) -> bool:
    if keras.ops.is_tensor(first) or isinstance(first, np.ndarray):
        if not (keras.ops.is_tensor(second) or isinstance(second, np.ndarray)):
            return False
        a, b = keras.ops.convert_to_numpy(first), keras.ops.convert_to_numpy(second)
        return a.shape == b.shape and bool(np.array_equal(a, b))
    return type(first) is type(second) and bool(first == second)


def _short(x: Any) -> str:
    shape = getattr(x, "shape", None)
    return f"an array of shape {tuple(shape)}" if shape and not callable(shape) else repr(x)


def declared_sizes(operation: Any, args: tuple, kwargs: dict) -> list[tuple[Any, ...]] | None:
    """The sizes that Keras infers for the results of an operation: numbers, expressions, None where unknown.

    None if inference fails at every sample size.
    """
    values = functional_graph.distinct_values((args, kwargs))
    symbols = {s for v in values for n in sizes_of(v) if isinstance(n, Expression) for s in n.symbols()}
    ordered = sorted(symbols, key=lambda s: s.number)

    def inferred(row: tuple) -> list[tuple[Any, ...]]:
        samples = dict(zip(ordered, itertools.cycle(row), strict=False))
        tracer = Tracer(Observer(quiet=1), [])
        with keras_patches.tracing(tracer, allow_random=True):
            new = tree.map_structure(
                lambda x: tensor_of(x, samples) if isinstance(x, ir.Value) else x, (args, kwargs)
            )
            return [tuple(x.shape) for x in tensors_in(output_spec(tracer, operation, *new))]

    for first, others, last in SAMPLES:
        traces = []
        for row in (first, *others, *last[:1]):
            with suppress(Exception):  # a layer may refuse these sizes
                traces.append(inferred(row))
            if not traces:
                break
            if len(traces) == 2:
                return [tuple(map(_agreed, one, other)) for one, other in zip(*traces, strict=True)]
    return None


def _agreed(n: Any, m: Any) -> Any:
    if isinstance(n, Size):
        return n.expression if isinstance(m, Size) and n.expression == m.expression else None
    return n if n == m else None
