"""Opens a layer: runs its `call` on Keras tensors at two sample sizes, and finds where the sizes went.

A layer's code may ask for the size of an axis that is only known when the model runs, and compute with it.
On Keras tensors such a size is None, and code goes wrong on None without an error. So every dynamic axis
gets a sample size, twice over: what differs between the two openings came from a size, and is written as a
computation in the graph; what cannot be is refused.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from typing import Any, TypeGuard

import keras
import numpy as np
import onnx_ir as ir
from keras import tree

from keras_tx_onnx import graph
from keras_tx_onnx.context import KERAS_TENSOR, Context
from keras_tx_onnx.control_flow import tracing_bodies
from keras_tx_onnx.dims import Size, sizes_of
from keras_tx_onnx.errors import NotLowered, one_line
from keras_tx_onnx.sized import made_in_the_graph

# Pairs of sizes for the dynamic axes, the batch first. The difference of each pair is more than twice the sum
# of those before it and no multiple of one, so that no sum, difference or product is taken for another. The
# second row has sizes that patches and strides divide.
SAMPLES = (
    ((3, 7), (11, 25), (13, 59), (23, 181), (43, 521), (61, 1499)),
    ((32, 192), (96, 480), (160, 1344), (352, 3840), (480, 11072), (608, 32320)),
)


# Which dynamic axes get the same samples: those that are known to be equal, also those of the same number, or
# all but the batch, as a square adjacency needs.
ALIKE = ("known", "numbered", "all")


@dataclasses.dataclass(frozen=True)
class Way:
    """How a layer's code is run.

    `symbolic` says that ranges, fills and weights become part of the graph, `plain` that code which asks for
    the backend is told of one that it has nothing special for, `trusting` that layers inside give the shapes
    that they promise.
    """

    symbolic: bool = True
    plain: bool = True
    trusting: bool = True


WAYS = (Way(), Way(plain=False), Way(symbolic=False, plain=False), Way(trusting=False))


@dataclasses.dataclass(frozen=True)
class Axis:
    """A dynamic axis of an input, and its two sample sizes."""

    value: ir.Value
    index: int
    sizes: tuple[int, int]
    size: Size | None = None


@dataclasses.dataclass(frozen=True)
class Opened:
    """A layer's call as two functions, one for each sample size, of the same inputs."""

    function: Any
    twin: Any
    axes: tuple[Axis, ...]
    weights: tuple[
        Any, ...
    ]  # what the last inputs of the function are: a variable, or None if it is not used


def open_layer(context: Context, layer: Any, args: tuple, kwargs: dict, masks: dict[int, ir.Value]) -> Opened:
    """Opens a layer for the values among its arguments; `masks` are their Keras masks, by the value's id."""
    if "training" in inspect.signature(layer.call).parameters:
        kwargs = {**kwargs, "training": False}
    first_error: Exception | None = None
    for way in WAYS:
        for samples in SAMPLES:
            for alike in ALIKE:
                try:
                    return _open(layer, args, kwargs, masks, samples, alike, way)
                except Exception as error:  # whatever a layer's code raises at these sizes
                    # With unlike sizes most layers of two inputs fail, and say nothing about why.
                    if alike == "numbered":
                        first_error = first_error or error
    assert first_error is not None
    raise NotLowered(f"Its call does not run on Keras tensors: {one_line(first_error)}") from first_error


def _open(
    layer: Any,
    args: tuple,
    kwargs: dict,
    masks: dict[int, ir.Value],
    samples: tuple,
    alike: str,
    way: Way,
) -> Opened:
    axes: list[Axis] = []
    chosen: dict[Any, tuple[int, int]] = {}
    values = graph.distinct_values((args, kwargs))
    for value in [*values, *(masks[id(v)] for v in values if id(v) in masks)]:
        for index, size in enumerate(value.meta[KERAS_TENSOR].shape):
            if size is None:
                known = sizes_of(value)[index]
                size = known if isinstance(known, Size) else None
                if alike == "all":
                    key = min(index, 1)
                elif alike == "numbered" or (index == 0 and size is None):
                    key = index
                else:
                    key = size if size is not None else (_source(value, masks, values), index)
                numbers = chosen.setdefault(key, samples[len(chosen)])
                axes.append(Axis(value, index, numbers, size))
    (function, weights), (twin, _) = (
        _function(layer, args, kwargs, masks, axes, which, way) for which in (0, 1)
    )
    return Opened(function, twin, tuple(axes), weights)


def _source(value: ir.Value, masks: dict[int, ir.Value], values: list[ir.Value]) -> int:
    """A mask has the sizes of the value that carries it."""
    return next((id(v) for v in values if masks.get(id(v)) is value), id(value))


def _function(
    layer: Any,
    args: tuple,
    kwargs: dict,
    masks: dict[int, ir.Value],
    axes: list[Axis],
    which: int,
    way: Way,
) -> tuple[Any, tuple[Any, ...]]:
    sizes = {(id(axis.value), axis.index): axis.sizes[which] for axis in axes}
    made: dict[int, keras.KerasTensor] = {}

    def fresh(x: Any) -> Any:
        if not isinstance(x, ir.Value):
            return x
        if id(x) not in made:
            known = x.meta[KERAS_TENSOR]
            shape = tuple(sizes.get((id(x), i), n) for i, n in enumerate(known.shape))
            made[id(x)] = keras.Input(batch_shape=shape, dtype=known.dtype)
        return made[id(x)]

    new_args, new_kwargs = tree.map_structure(fresh, (args, kwargs))
    for value_id, mask in masks.items():
        if value_id in made:
            graph.set_mask(made[value_id], fresh(mask))
    tensors = list(made.values())
    if not way.symbolic or not tensors:
        with tracing_bodies():
            return graph.function_of_call(layer, layer.call, new_args, new_kwargs, tensors), ()
    with (
        tracing_bodies(),
        made_in_the_graph(tensors[0], way.plain),
        graph.trusting(way.trusting),
        graph.weights_as_tensors(layer) as weights,
    ):
        tensors += [tensor for tensor, _ in weights.values()]
        function = graph.function_of_call(layer, layer.call, new_args, new_kwargs, tensors)
    return function, tuple(v if graph.uses(function, t) else None for t, v in weights.values())


class Sizes:
    """Finds what a number that differs between two openings is made of, and computes it in the graph."""

    def __init__(self, context: Context, axes: tuple[Axis, ...]):
        self.context = context
        self.axes = axes

    def resolve(self, first: Any, second: Any) -> Any:
        """`first`, with values of the graph in the place of numbers that differ in `second`."""
        if isinstance(first, ir.Value) or first is second:
            return first
        if isinstance(first, slice) and isinstance(second, slice):
            parts = zip(
                (first.start, first.stop, first.step), (second.start, second.stop, second.step), strict=True
            )
            return slice(*(self.resolve(a, b) for a, b in parts))
        if (
            isinstance(first, (list, tuple))
            and isinstance(second, (list, tuple))
            and len(first) == len(second)
        ):
            return type(first)([self.resolve(a, b) for a, b in zip(first, second, strict=True)])
        if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
            return {key: self.resolve(first[key], second[key]) for key in first}
        if _is_integer(first) and _is_integer(second):
            return first if first == second else self.find(int(first), int(second))
        if _same(first, second) or not _is_data(first):  # an object, such as a layer's initializer
            return first
        if _is_scalar(first) and _is_scalar(second):
            return self._scalar(first, second)
        raise self._refusal(first, second)

    def _scalar(self, first: Any, second: Any) -> ir.Value:
        """A size that became a float, or a tensor without axes."""
        one, other = (float(keras.ops.convert_to_numpy(x)) for x in (first, second))
        if not (one.is_integer() and other.is_integer()):
            raise self._refusal(first, second)
        value = self.find(int(one), int(other))
        dtype = "float32" if isinstance(first, float) else keras.backend.standardize_dtype(first.dtype)
        if keras.backend.is_float_dtype(dtype):
            value = self.context.op.Cast(value, to=ir.DataType.FLOAT)
        value.meta[KERAS_TENSOR] = keras.KerasTensor((), dtype)
        return value

    def _refusal(self, first: Any, second: Any) -> NotLowered:
        return NotLowered(
            f"The operation {self.context.scope!r} has a constant that depends on the size of an input: "
            f"{_short(first)} at one size and {_short(second)} at another. Compute it with keras.ops from a "
            "tensor, not from its shape."
        )

    def find(self, first: int, second: int) -> ir.Value:
        """The scalar that was `first` at the first sample sizes and `second` at the second."""
        op = self.context.op
        for axis in self.axes:
            if axis.sizes == (first, second):
                return self._size(axis)
        for axis in self.axes:
            a, b = axis.sizes
            if first % a == 0 and first // a * b == second:
                return op.Mul(self._size(axis), np.int64(first // a))
        for one, other in itertools.product(self.axes, repeat=2):
            pairs = list(zip(one.sizes, other.sizes, strict=True))
            if [m + n for m, n in pairs] == [first, second]:
                return op.Add(self._size(one), self._size(other))
            if [m - n for m, n in pairs] == [first, second]:
                return op.Sub(self._size(one), self._size(other))
            a, b = (m * n for m, n in pairs)
            if first % a == 0 and first // a * b == second:
                product = op.Mul(self._size(one), self._size(other))
                return product if first == a else op.Mul(product, np.int64(first // a))
        for axis in self.axes:
            a, b = axis.sizes
            if first - a == second - b:
                return op.Add(self._size(axis), np.int64(first - a))
            if first + a == second + b:
                return op.Sub(np.int64(first + a), self._size(axis))
            # Only where the sizes had to be divisible: at others, a quotient is not this one.
            if first > 0 and a % first == 0 and a // first * second == b:
                return op.Div(self._size(axis), np.int64(a // first))
        raise NotLowered(
            f"The operation {self.context.scope!r} uses a number that depends on the size of an input "
            f"({first} at one size, {second} at another) in a way that is not a sum, difference or product "
            "of sizes."
        )

    def same(self, pair: tuple[int, int]) -> Any:
        """The number that a size is in both openings, or the dynamic size that it comes from, or None."""
        if pair[0] == pair[1]:
            return pair[0]
        return next((axis.size for axis in self.axes if axis.sizes == pair), None)

    def _size(self, axis: Axis) -> ir.Value:
        op = self.context.op
        value, index = (axis.value, axis.index) if axis.size is None else (axis.size.value, axis.size.axis)
        return op.Squeeze(op.Shape(value, start=index, end=index + 1), [0])


def _is_data(x: Any) -> bool:
    kinds = (bool, int, float, complex, str, bytes, slice, list, tuple, dict, np.ndarray, np.generic)
    return isinstance(x, kinds) or keras.ops.is_tensor(x)


def _is_integer(x: Any) -> TypeGuard[int]:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def _is_scalar(x: Any) -> bool:
    return isinstance(x, float) or (
        (keras.ops.is_tensor(x) or isinstance(x, (np.ndarray, np.generic))) and len(x.shape) == 0
    )


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
