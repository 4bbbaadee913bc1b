"""Operations of keras.ops that move elements without changing them: shapes, axes, joining and cutting."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx_onnx.graph.builder import GraphContext, shape_of
from keras_tx_onnx.lowerings.nodes.arguments import (
    FAR,
    as_array,
    as_given,
    axes_of,
    dims,
    operand,
    operands,
    rank_of,
    refuse,
    result_type,
)
from keras_tx_onnx.reading.registry import lowers


@lowers("Reshape", example=lambda x: ops.reshape(x, (-1, 6)), shape=(4, 3), nodes="Reshape", takes_sizes=True)
def reshape(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    shape = operation.newshape
    shape = dims(cx, operation, "newshape", (shape,) if isinstance(shape, int) else shape)
    if isinstance(shape, list) and 0 in shape:  # an empty axis: 0 would mean the axis of the input
        return cx.op.Reshape(as_given(cx, x), shape, allowzero=1)
    return cx.op.Reshape(as_given(cx, x), shape)


@lowers("Ravel", example=lambda x: ops.ravel(x), shape=(4, 3), nodes="Reshape")
def ravel(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.Reshape(as_given(cx, x), [-1])


def permuted(cx: GraphContext, x: Any, order: Sequence[int]) -> ir.Value:
    return cx.op.Transpose(as_given(cx, x), perm=[axis % len(order) for axis in order])


@lowers("Transpose", example=lambda x: ops.transpose(x, (0, 2, 1)), shape=(4, 3), nodes="Transpose")
def transpose(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return permuted(cx, x, operation.axes or tuple(reversed(range(rank_of(x)))))


@lowers("Swapaxes", example=lambda x: ops.swapaxes(x, 1, -1), shape=(4, 3), nodes="Transpose")
def swapaxes(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    order = list(range(rank_of(x)))
    a, b = operation.axis1, operation.axis2
    order[a], order[b] = order[b], order[a]
    return permuted(cx, x, order)


@lowers("Moveaxis", example=lambda x: ops.moveaxis(x, 1, -1), shape=(4, 3), nodes="Transpose")
def moveaxis(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    rank = rank_of(x)
    sources, targets = axes_of(operation.source, rank), axes_of(operation.destination, rank)
    order = [axis for axis in range(rank) if axis not in sources]
    for target, source in sorted(zip(targets, sources, strict=True)):
        order.insert(target, source)
    return permuted(cx, x, order)


@lowers("ExpandDims", example=lambda x: ops.expand_dims(x, -1), shape=(4,), nodes="Unsqueeze")
def expand_dims(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    axes = operation.axis if isinstance(operation.axis, (list, tuple)) else [operation.axis]
    return cx.op.Unsqueeze(as_given(cx, x), list(axes))


@lowers("Squeeze", example=lambda x: ops.squeeze(x, -1), shape=(4, 1), nodes="Squeeze")
def squeeze(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    """Without an axis those that are known to be 1."""
    if operation.axis is not None:
        return cx.op.Squeeze(x, axes_of(operation.axis, rank_of(x)))
    axes = [axis for axis, size in enumerate(shape_of(x)) if size == 1]
    return cx.op.Squeeze(x, axes) if axes else cx.op.Identity(x)


@lowers(
    "BroadcastTo",
    example=lambda x: ops.broadcast_to(x, (2, 3, 4)),
    shape=(4,),
    nodes="Expand",
    takes_sizes=True,
)
def broadcast_to(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.Expand(as_given(cx, x), dims(cx, operation, "shape", operation.shape))


# -- joining ----------------------------------------------------------------------------------------------


def joined(cx: GraphContext, xs: Sequence[Any], axis: int) -> ir.Value:
    return cx.op.Concat(*operands(cx, *xs)[1], axis=axis)


@lowers("Concatenate", example=lambda x: ops.concatenate([x, x], axis=1), shape=(4, 3), nodes="Concat")
def concatenate(cx: GraphContext, operation: Any, /, xs: Any) -> ir.Value:
    if operation.axis is None:
        return cx.op.Concat(*(cx.op.Reshape(x, [-1]) for x in operands(cx, *xs)[1]), axis=0)
    return joined(cx, xs, operation.axis)


@lowers("Append", example=lambda x: ops.append(x, x, axis=1), shape=(4, 3), nodes="Concat")
def append(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    return concatenate(cx, operation, [x1, x2])


@lowers("Stack", example=lambda x: ops.stack([x, x], axis=1), shape=(4,), nodes="Unsqueeze Concat")
def stack(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    values = operands(cx, *x)[1]
    new = [operation.axis]
    return cx.op.Concat(*(cx.op.Unsqueeze(value, new) for value in values), axis=operation.axis)


@lowers("Hstack", example=lambda x: ops.hstack([x, x]), shape=(4,), nodes="Concat")
def hstack(cx: GraphContext, operation: Any, /, xs: Any) -> ir.Value:
    if min(map(rank_of, xs)) == 0:
        raise refuse(cx, operation, "xs of rank", 0)
    return joined(cx, xs, 0 if rank_of(xs[0]) == 1 else 1)


@lowers("Vstack", example=lambda x: ops.vstack([x, x]), shape=(4,), nodes="Concat")
def vstack(cx: GraphContext, operation: Any, /, xs: Any) -> ir.Value:
    if min(map(rank_of, xs)) < 2:
        raise refuse(cx, operation, "xs of rank", min(map(rank_of, xs)))
    return joined(cx, xs, 0)


@lowers(
    "Meshgrid",
    example=lambda x: ops.meshgrid(x[0], ops.arange(3.0)),
    shape=(4,),
    nodes="Gather Shape Shape Concat Reshape Reshape Expand Expand",
)
def meshgrid(cx: GraphContext, operation: Any, /, *x: Any) -> list[ir.Value]:
    """Vectors, each along another axis; `xy` swaps the first two axes."""
    if any(rank_of(v) != 1 for v in x):
        raise refuse(cx, operation, "x of rank", [rank_of(v) for v in x], "Pass vectors.")
    vectors = [as_given(cx, v) for v in x]
    places = list(range(len(x)))
    if operation.indexing == "xy" and len(x) > 1:
        places[0], places[1] = 1, 0
    sizes = [cx.op.Shape(vectors[places[axis]]) for axis in range(len(x))]
    shape = cx.op.Concat(*sizes, axis=0)
    shapes = [[-1 if axis == place else 1 for axis in range(len(x))] for place in places]
    return [cx.op.Expand(cx.op.Reshape(v, one), shape) for v, one in zip(vectors, shapes, strict=True)]


# -- cutting ----------------------------------------------------------------------------------------------


def cut(cx: GraphContext, x: ir.Value, axis: int, start: Any, end: Any) -> ir.Value:
    """Between numbers or scalars of the graph."""
    return cx.op.Slice(x, cx.vector([start]), cx.vector([end]), [axis])


@lowers("Split", example=lambda x: ops.split(x, 2, axis=1), shape=(4, 3), nodes="Split")
def split(cx: GraphContext, operation: Any, /, x: Any) -> list[ir.Value]:
    return split_along(cx, operation, x, operation.axis)


def split_along(cx: GraphContext, operation: Any, x: Any, axis: int) -> list[ir.Value]:
    sections, value, size = operation.indices_or_sections, as_given(cx, x), shape_of(x)[axis]
    if isinstance(sections, int):
        if size is not None:
            sizes = [size // sections] * sections
        elif cx.opset >= 18:
            return _listed(cx.op.Split(value, outputs=sections, axis=axis, num_outputs=sections))
        else:
            return _listed(cx.op.Split(value, outputs=sections, axis=axis))
        return _listed(cx.op.Split(value, sizes, outputs=sections, axis=axis))
    places = [int(place) for place in as_array(sections)]
    if size is None:
        return [cut(cx, value, axis, start, end) for start, end in pairwise([0, *places, FAR])]
    places = [min(place if place >= 0 else place + size, size) for place in places]
    sizes = [end - start for start, end in pairwise([0, *places, size])]
    if min(sizes) < 0:
        raise refuse(cx, operation, "indices_or_sections", sections, "They must increase.")
    return _listed(cx.op.Split(value, sizes, outputs=len(sizes), axis=axis))


def _listed(values: Any) -> list[ir.Value]:
    return list(values) if isinstance(values, tuple) else [values]


@lowers("Unstack", example=lambda x: ops.unstack(x, axis=1)[1:], shape=(2, 3), nodes="Gather")
def unstack(cx: GraphContext, operation: Any, /, x: Any) -> list[ir.Value]:
    axis, value = operation.axis, as_given(cx, x)
    count = operation.num if operation.num is not None else shape_of(x)[axis]
    if count is None:
        raise refuse(cx, operation, "axis", axis, "The axis is dynamic.")
    return [cx.op.Gather(value, np.int64(index), axis=axis) for index in range(count)]


# -- repeating and turning --------------------------------------------------------------------------------


@lowers("Tile", example=lambda x: ops.tile(x, (1, 2, 1)), shape=(4, 3), nodes="Tile", takes_sizes=True)
def tile(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    repeats = operation.repeats
    repeats = list(repeats) if isinstance(repeats, (list, tuple)) else [repeats]
    rank, value = rank_of(x), as_given(cx, x)
    if len(repeats) > rank:
        value = cx.op.Unsqueeze(value, list(range(len(repeats) - rank)))
    repeats = [1] * (rank - len(repeats)) + repeats
    return cx.op.Tile(value, dims(cx, operation, "repeats", repeats))


@lowers(
    "Repeat",
    example=lambda x: ops.repeat(x, 2, axis=1),
    shape=(4, 3),
    nodes="Gather",
    takes_sizes=True,
)
def repeat(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    """Each element several times: gathered by an index that repeats."""
    if isinstance(operation.repeats, ir.Value):
        if operation.axis is None or shape_of(x)[operation.axis] != 1:
            raise refuse(
                cx,
                operation,
                "repeats",
                operation.repeats,
                "Only an axis of size 1 can have dynamic repeats.",
            )
        times: list[Any] = [1] * rank_of(x)
        times[operation.axis] = operation.repeats
        return cx.op.Expand(as_given(cx, x), dims(cx, operation, "repeats", times))
    value, axis, repeats = as_given(cx, x), operation.axis, as_array(operation.repeats)
    size = shape_of(x)[axis] if axis is not None else None
    if axis is None:
        value, axis = cx.op.Reshape(value, [-1]), 0
    axis %= rank_of(x)
    if repeats.size == 1:
        repeats = repeats.reshape(())
    if size is not None:
        return cx.op.Gather(value, np.repeat(np.arange(size), repeats), axis=axis)
    if repeats.ndim:
        raise refuse(cx, operation, "repeats", operation.repeats, "The axis is dynamic.")
    end = cx.op.Mul(cx.op.Squeeze(cx.op.Shape(value, start=axis, end=axis + 1), [0]), np.int64(repeats))
    index = cx.op.Div(cx.op.Range(np.int64(0), end, np.int64(1)), np.int64(repeats))
    return cx.op.Gather(value, index, axis=axis)


@lowers("Flip", example=lambda x: ops.flip(x, axis=1), shape=(4, 3), nodes="Slice")
def flip(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    axes = axes_of(operation.axis, rank_of(x))
    n = len(axes)
    return cx.op.Slice(as_given(cx, x), [FAR] * n, [-FAR] * n, axes, [-1] * n)


@lowers("Roll", example=lambda x: ops.roll(x, 1, axis=1), shape=(4, 3), nodes="Slice Slice Concat")
def roll(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    value, shift, axis = as_given(cx, x), operation.shift, operation.axis
    if axis is None:
        flat = _rolled(cx, cx.op.Reshape(value, [-1]), int(shift), 0, None)
        return cx.op.Reshape(flat, cx.op.Shape(value))
    axes = axes_of(axis, rank_of(x))
    shifts = list(shift) if isinstance(shift, (list, tuple)) else [shift] * len(axes)
    for one, by in zip(axes, shifts, strict=True):
        value = _rolled(cx, value, int(by), one, shape_of(x)[one])
    return value


def _rolled(cx: GraphContext, x: ir.Value, shift: int, axis: int, size: int | None) -> ir.Value:
    start: Any
    if size is not None:
        start = -shift % size if size else 0
        if start == 0:
            return cx.op.Identity(x)
    else:
        start = cx.op.Squeeze(cx.op.Mod([-shift], cx.op.Shape(x, start=axis, end=axis + 1)), [0])
    return cx.op.Concat(cut(cx, x, axis, start, FAR), cut(cx, x, axis, 0, start), axis=axis)


@lowers("Pad", example=lambda x: ops.pad(x, [[0, 0], [1, 2]]), shape=(4,), nodes="Pad", takes_sizes=True)
def pad(cx: GraphContext, operation: Any, /, x: Any, constant_values: Any = None) -> ir.Value:
    if operation.mode not in ("constant", "reflect"):
        raise refuse(cx, operation, "mode", operation.mode, "Use constant or reflect.")
    dtype, rank = result_type(x), rank_of(x)
    widths = operation.pad_width
    if isinstance(widths, int):
        widths = [[widths, widths]] * rank
    elif not isinstance(widths[0], (list, tuple, np.ndarray)):
        widths = [list(widths)] * rank
    elif len(widths) == 1:
        widths = list(widths) * rank
    before, after = ([width[i] for width in widths] for i in (0, 1))
    sizes = dims(cx, operation, "pad_width", [*before, *after])
    value = operand(cx, x, dtype)
    if operation.mode == "reflect":
        return cx.op.Pad(value, sizes, mode="reflect")
    fill = operand(cx, 0 if constant_values is None else constant_values, dtype)
    return cx.op.Pad(value, sizes, fill, mode="constant")
