"""Operations of keras.ops that pick and place elements: indices, slices, scattering, order, triangles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx_onnx.graph.builder import GraphContext, shape_of
from keras_tx_onnx.lowerings.nodes.arguments import (
    FAR,
    as_given,
    as_index,
    dims,
    held_as,
    length_of,
    operand,
    operands,
    rank_of,
    refuse,
    result_type,
    scalar,
    sizes_of,
)
from keras_tx_onnx.lowerings.operations.shapes import cut
from keras_tx_onnx.reading.registry import lowers


@lowers(
    "GetItem",
    example=lambda x: x[:, -1, None, 1:3],
    shape=(4, 3),
    nodes="Slice Gather Unsqueeze",
    takes_sizes=True,
)
def get_item(cx: GraphContext, operation: Any, /, x: Any, key: Any) -> ir.Value:
    """Slices, then gathers at indices, which removes their axes, then inserts new axes."""
    x = as_given(cx, x)
    keys = _keys(cx, operation, key, len(shape_of(x)))
    axes = [k for k in keys if k is not None]
    x = _sliced(cx, x, [(axis, k) for axis, k in enumerate(axes) if isinstance(k, slice)])
    for axis in reversed(range(len(axes))):
        if not isinstance(axes[axis], slice):
            x = cx.op.Gather(x, as_index(cx, axes[axis]), axis=axis)
    remaining = [k for k in keys if k is None or isinstance(k, slice)]
    added = [axis for axis, k in enumerate(remaining) if k is None]
    return cx.op.Unsqueeze(x, added) if added else x


def _keys(cx: GraphContext, operation: Any, key: Any, rank: int) -> list[Any]:
    """A part for each axis, and None for each new axis; raises where they have no lowering."""
    keys = _parts(key)
    arrays = [k for k in keys if _is_array(k)]
    others = [k for k in keys if not (_is_array(k) or isinstance(k, (slice, type(Ellipsis))))]
    if arrays and (len(arrays) > 1 or others or held_as(result_type(arrays[0])) != ir.DataType.INT64):
        raise refuse(
            cx, operation, "key", key, "Use integers and slices, or slices and one array of integers."
        )
    if not all(k is None or _is_place(k) for k in others):
        raise refuse(cx, operation, "key", key, "Use integers and slices.")
    return _without_ellipsis(keys, rank)


def _parts(key: Any) -> list[Any]:
    parts = key if isinstance(key, tuple) else (key,)
    return [int(k) if isinstance(k, np.integer) else k for k in parts]


def _without_ellipsis(keys: list[Any], rank: int) -> list[Any]:
    missing = [slice(None)] * (rank - sum(k is not None and k is not Ellipsis for k in keys))
    at = next((i for i, k in enumerate(keys) if k is Ellipsis), len(keys))
    return [*keys[:at], *missing, *keys[at + 1 :]]


def _is_place(key: Any) -> bool:
    return (isinstance(key, int) and not isinstance(key, bool)) or (
        isinstance(key, ir.Value) and rank_of(key) == 0 and held_as(result_type(key)) == ir.DataType.INT64
    )


def _is_array(key: Any) -> bool:
    if isinstance(key, ir.Value):
        return not _is_place(key)
    return isinstance(key, (list, np.ndarray)) or ops.is_tensor(key)


def _sliced(cx: GraphContext, x: ir.Value, slices: Sequence[tuple[int, slice]]) -> ir.Value:
    slices = [(axis, k) for axis, k in slices if (k.start, k.stop, k.step) != (None, None, None)]
    if not slices:
        return x
    starts, ends, steps = [], [], []
    for _, k in slices:
        step = 1 if k.step is None else k.step
        backward = not isinstance(step, ir.Value) and step < 0
        first, last = (FAR, -FAR) if backward else (0, FAR)
        starts.append(scalar(first if k.start is None else k.start))
        ends.append(scalar(last if k.stop is None else k.stop))
        steps.append(step)
    axes = [axis for axis, _ in slices]
    return cx.op.Slice(x, cx.vector(starts), cx.vector(ends), axes, cx.vector(steps))


@lowers(
    "Take",
    example=lambda x: ops.take(x, [[2, 0], [1, -1]], axis=1),
    shape=(4, 3),
    nodes="Gather",
    takes_sizes=True,
)
def take(cx: GraphContext, operation: Any, /, x: Any, indices: Any) -> ir.Value:
    value = as_given(cx, x)
    if operation.axis is None:
        return cx.op.Gather(cx.op.Reshape(value, [-1]), as_index(cx, indices), axis=0)
    return cx.op.Gather(value, as_index(cx, indices), axis=operation.axis)


@lowers(
    "TakeAlongAxis",
    example=lambda x: ops.take_along_axis(x, ops.argsort(x, axis=1), axis=1),
    shape=(4, 3),
    nodes="TopK GatherElements",
)
def take_along_axis(cx: GraphContext, operation: Any, /, x: Any, indices: Any) -> ir.Value:
    value, index = as_given(cx, x), as_index(cx, indices)
    if operation.axis is None:
        return cx.op.Gather(cx.op.Reshape(value, [-1]), index, axis=0)
    axis = operation.axis % rank_of(x)
    sizes = list(enumerate(zip(sizes_of(x), sizes_of(indices), strict=True)))
    # Both must have the same size along the other axes; dynamic batches are assumed to be equal.
    same = [i == axis or (a == b and (a is not None or i == 0)) for i, (a, b) in sizes]
    if not all(same):
        value = _stretched(cx, value, index, axis)
        index = _stretched(cx, index, value, axis)
    return cx.op.GatherElements(value, index, axis=axis)


def _stretched(cx: GraphContext, x: ir.Value, other: ir.Value, axis: int) -> ir.Value:
    """Broadcast to the other one's shape, but along one axis."""
    before, behind = cx.op.Shape(other, start=0, end=axis), cx.op.Shape(other, start=axis + 1)
    return cx.op.Expand(x, cx.op.Concat(before, [1], behind, axis=0))


@lowers(
    "Slice",
    example=lambda x: ops.slice(x, [0, 1], [2, 2]),
    shape=(4,),
    nodes="Slice",
    takes_sizes=True,
)
def slice_(cx: GraphContext, operation: Any, /, inputs: Any, start_indices: Any) -> ir.Value:
    starts, sizes = _starts(cx, operation, start_indices), operation.shape
    if not isinstance(sizes, (list, tuple)) or not all(
        isinstance(n, (int, np.integer, ir.Value)) for n in sizes
    ):
        raise refuse(cx, operation, "shape", sizes)
    ends = [
        FAR if isinstance(n, (int, np.integer)) and n == -1 else _plus(cx, start, n)
        for start, n in zip(starts, sizes, strict=True)
    ]
    return cx.op.Slice(as_given(cx, inputs), cx.vector(starts), cx.vector(ends), list(range(len(starts))))


def _starts(cx: GraphContext, operation: Any, starts: Any) -> list[Any]:
    """Numbers and scalars of the graph."""
    if isinstance(starts, ir.Value):
        (count,) = shape_of(starts)
        if count is None:
            raise refuse(cx, operation, "start_indices of shape", (None,))
        places = as_index(cx, starts)
        return [cx.op.Gather(places, np.int64(i), axis=0) for i in range(count)]
    starts = starts if isinstance(starts, (list, tuple)) else ops.convert_to_numpy(starts)
    return [as_index(cx, n) if isinstance(n, ir.Value) else int(n) for n in starts]


def _plus(cx: GraphContext, a: Any, b: Any) -> Any:
    if isinstance(a, ir.Value) or isinstance(b, ir.Value):
        return cx.op.Add(scalar(a), scalar(b))
    return int(a) + int(b)


@lowers(
    "SliceUpdate",
    example=lambda x: ops.slice_update(x, [0, 1], ops.ones((2, 2))),
    shape=(4,),
    nodes="Slice Slice Slice Slice Concat Slice Concat",
    takes_sizes=True,
)
def slice_update(
    cx: GraphContext, operation: Any, /, inputs: Any, start_indices: Any, updates: Any
) -> ir.Value:
    dtype = result_type(inputs)
    value, news = operand(cx, inputs, dtype), operand(cx, updates, dtype)
    starts = _starts(cx, operation, start_indices)
    sizes = sizes_of(updates)
    partial = []
    for axis, (whole, size, start) in enumerate(zip(sizes_of(inputs), sizes, starts, strict=True)):
        at_zero = not isinstance(start, ir.Value) and start == 0
        if not (at_zero and whole == size and (size is not None or axis == 0)):
            partial.append(axis)
    length = {axis: sizes[axis] if sizes[axis] is not None else length_of(cx, news, axis) for axis in partial}
    return _updated(cx, value, news, [(axis, starts[axis], length[axis]) for axis in partial])


def _updated(cx: GraphContext, x: ir.Value, news: ir.Value, parts: list[tuple[int, Any, Any]]) -> ir.Value:
    """Concatenates the parts before, in and after the window along an axis, recursively along the next."""
    if not parts:
        return news
    (axis, start, size), rest = parts[0], parts[1:]
    end = _plus(cx, start, size)
    before, behind = cut(cx, x, axis, 0, start), cut(cx, x, axis, end, FAR)
    middle = _updated(cx, cut(cx, x, axis, start, end), news, rest) if rest else news
    return cx.op.Concat(before, middle, behind, axis=axis)


REDUCTIONS = {None: "none", "add": "add", "mul": "mul", "max": "max", "min": "min"}


@lowers(
    "ScatterUpdate",
    example=lambda x: ops.scatter_update(x, [[0, 1], [1, 2]], ops.array([5.0, 6.0])),
    shape=(4,),
    nodes="ScatterND",
)
def scatter_update(cx: GraphContext, operation: Any, /, inputs: Any, indices: Any, updates: Any) -> ir.Value:
    reduction, dtype = operation.reduction, result_type(inputs)
    if (
        reduction not in REDUCTIONS
        or (reduction in ("max", "min") and cx.opset < 18)
        or (reduction is not None and dtype == "bool")
    ):
        raise refuse(cx, operation, "reduction", reduction, f"(opset {cx.opset}, dtype {dtype})")
    return cx.op.ScatterND(
        operand(cx, inputs, dtype),
        as_index(cx, indices),
        operand(cx, updates, dtype),
        reduction=REDUCTIONS[reduction],
    )


@lowers(
    "Scatter",
    example=lambda x: ops.scatter(np.array([[1], [3]]), x[:2, :], (5, 4)),
    shape=(4,),
    nodes="Slice Expand ScatterND",
    takes_sizes=True,
)
def scatter(cx: GraphContext, operation: Any, /, indices: Any, values: Any) -> ir.Value:
    """Into zeros; values for the same place add up."""
    dtype = result_type(values)
    if dtype == "bool":
        raise refuse(cx, operation, "dtype", dtype)
    zeros = cx.op.Expand(operand(cx, 0, dtype), dims(cx, operation, "shape", operation.shape))
    return cx.op.ScatterND(zeros, as_index(cx, indices), operand(cx, values, dtype), reduction="add")


# -- order ------------------------------------------------------------------------------------------------


@lowers("TopK", example=lambda x: ops.top_k(x, 2)[0], shape=(4,), nodes="TopK", takes_sizes=True)
def top_k(cx: GraphContext, operation: Any, /, x: Any) -> tuple[ir.Value, ir.Value]:
    """Sorted always, which an order that does not matter may be."""
    if result_type(x) == "bool":
        raise refuse(cx, operation, "dtype", "bool")
    return cx.op.TopK(as_given(cx, x), cx.vector([operation.k]), outputs=2, axis=-1)


def _sorted(cx: GraphContext, operation: Any, x: Any) -> tuple[ir.Value, ir.Value]:
    """Equal ones stay in their order."""
    value = operand(cx, x, "int32") if result_type(x) == "bool" else as_given(cx, x)
    if operation.axis is None:
        flat = cx.op.Reshape(value, [-1])
        return cx.op.TopK(flat, cx.op.Shape(flat), outputs=2, axis=0, largest=0)
    axis = operation.axis % rank_of(x)
    size = sizes_of(x)[axis]
    count = cx.op.Shape(value, start=axis, end=axis + 1) if size is None else [size]
    return cx.op.TopK(value, count, outputs=2, axis=axis, largest=0)


@lowers("Sort", example=lambda x: ops.sort(x), shape=(4,), nodes="TopK")
def sort(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    result = _sorted(cx, operation, x)[0]
    return cx.op.Cast(result, to=ir.DataType.BOOL) if result_type(x) == "bool" else result


@lowers("Argsort", example=lambda x: ops.argsort(x) / 2, shape=(4,), nodes="TopK Cast Div")
def argsort(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return _sorted(cx, operation, x)[1]


@lowers(
    "SearchSorted",
    example=lambda x: ops.searchsorted(ops.array([-1.0, 0.0, 1.0]), x[0]) / 2,
    shape=(4,),
    nodes="Gather Unsqueeze Less Cast ReduceSum Cast Div",
)
def search_sorted(cx: GraphContext, operation: Any, /, sorted_sequence: Any, values: Any) -> ir.Value:
    """How many are smaller, or not larger."""
    if rank_of(sorted_sequence) != 1:
        raise refuse(cx, operation, "sorted_sequence of rank", rank_of(sorted_sequence))
    _, (places, numbers) = operands(cx, sorted_sequence, values)
    node = cx.op.Less if operation.side == "left" else cx.op.LessOrEqual
    below = node(places, cx.op.Unsqueeze(numbers, [-1]))
    return cx.op.ReduceSum(cx.op.Cast(below, to=ir.DataType.INT64), [-1], keepdims=0)


# -- triangles and diagonals ------------------------------------------------------------------------------


@lowers("Tril", example=lambda x: ops.tril(x, 1), shape=(4, 4), nodes="Trilu", takes_sizes=True)
def tril(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.Trilu(as_given(cx, x), scalar(operation.k), upper=0)


@lowers("Triu", example=lambda x: ops.triu(x), shape=(4, 4), nodes="Trilu", takes_sizes=True)
def triu(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.Trilu(as_given(cx, x), scalar(operation.k), upper=1)


def _diagonal(cx: GraphContext, operation: Any, x: Any) -> ir.Value:
    """The diagonal of the largest square whose corner is at the offset."""
    rank, offset = rank_of(x), operation.offset
    first, second = operation.axis1 % rank, operation.axis2 % rank
    if result_type(x) == "bool" or not isinstance(offset, int):
        raise refuse(cx, operation, "dtype and offset", (result_type(x), offset))
    value = as_given(cx, x)
    if offset:
        value = cut(cx, value, second if offset > 0 else first, abs(offset), FAR)
    sizes = [shape_of(x)[axis] for axis in (first, second)]
    if None in sizes or offset or sizes[0] != sizes[1]:
        lengths = [cx.op.Shape(value, start=axis, end=axis + 1) for axis in (first, second)]
        shorter = cx.op.Min(*lengths)
        value = cx.op.Slice(value, [0, 0], cx.op.Concat(shorter, shorter, axis=0), [first, second])
    letters = [chr(ord("a") + axis) for axis in range(rank)]
    letters[second] = letters[first]
    rest = [letter for axis, letter in enumerate(letters) if axis not in (first, second)]
    return cx.op.Einsum(value, equation=f"{''.join(letters)}->{''.join(rest)}{letters[first]}")


@lowers("Diagonal", example=lambda x: ops.diagonal(x, axis1=1, axis2=2), shape=(4, 4), nodes="Einsum")
def diagonal(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return _diagonal(cx, operation, x)


@lowers("Trace", example=lambda x: ops.trace(x, axis1=1, axis2=2), shape=(4, 4), nodes="Einsum ReduceSum")
def trace(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.ReduceSum(_diagonal(cx, operation, x), [-1], keepdims=0)
