"""Operations of keras.ops that are rare in a forward pass, each as more common nodes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.nodes.arguments import (
    FAR,
    as_bool,
    as_float,
    as_given,
    axes_of,
    held_as,
    is_float,
    operand,
    operands,
    rank_of,
    reduce,
    refuse,
    result_type,
    sizes_of,
    wrapped,
)
from keras_tx_onnx.lowerings.operations.creation import zeros_like
from keras_tx_onnx.lowerings.operations.shapes import cut, joined, split_along
from keras_tx_onnx.reading.registry import lowers

lowers("EmptyLike", example=lambda x: ops.empty_like(x) * 0, shape=(4,), nodes="Shape Expand Mul")(zeros_like)


@lowers("Fabs", example=lambda x: ops.fabs(x), shape=(4,), nodes="Abs")
def fabs(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.Abs(as_float(cx, x))


@lowers("Cbrt", example=lambda x: ops.cbrt(x), shape=(4,), nodes="Sign Abs Pow Mul")
def cbrt(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    x = as_float(cx, x)
    return cx.op.Mul(cx.op.Sign(x), cx.op.Pow(cx.op.Abs(x), 1 / 3))


@lowers("Sinc", example=lambda x: ops.sinc(x), shape=(4,), nodes="Mul Equal Sin Where Div Where")
def sinc(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    angle = cx.op.Mul(as_float(cx, x), math.pi)
    zero = cx.op.Equal(angle, 0.0)
    return cx.op.Where(zero, 1.0, cx.op.Div(cx.op.Sin(angle), cx.op.Where(zero, 1.0, angle)))


@lowers("Erfc", example=lambda x: ops.erfc(x), shape=(4,), nodes="Erf Sub")
def erfc(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.Sub(1.0, cx.op.Erf(as_float(cx, x)))


@lowers("Heaviside", example=lambda x: ops.heaviside(x, x), shape=(4,), nodes="Greater Cast Equal Where")
def heaviside(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    x = as_float(cx, x1)
    step = cx.op.Cast(cx.op.Greater(x, 0.0), to=ir.DataType.FLOAT)
    return cx.op.Where(cx.op.Equal(x, 0.0), as_float(cx, x2), step)


@lowers("Fmod", example=lambda x: ops.fmod(x, x + 3), shape=(4,), nodes="Add Mod")
def fmod(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    """The remainder has the sign of the dividend."""
    dtype, (a, b) = operands(cx, x1, x2)
    if dtype == "bool":
        raise refuse(cx, operation, "dtype", dtype)
    return cx.op.Mod(a, b, fmod=1)


def _infinite(sign: str) -> Callable[..., Any]:
    def lower(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
        return cx.op.IsInf(as_float(cx, x), **{f"detect_{sign}": 0})

    return lower


def _truth(x: Any) -> Any:
    return ops.cast(x, "float32")


lowers("Isposinf", example=lambda x: _truth(ops.isposinf(x)), shape=(4,), nodes="IsInf Cast")(
    _infinite("negative")
)
lowers("Isneginf", example=lambda x: _truth(ops.isneginf(x)), shape=(4,), nodes="IsInf Cast")(
    _infinite("positive")
)


@lowers(
    "IsIn",
    example=lambda x: _truth(ops.isin(ops.round(x), np.array([0.0, 1.0], "float32"))),
    shape=(4,),
    nodes="Round Unsqueeze Equal Cast ReduceMax Cast Cast",
)
def is_in(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    _, (a, b) = operands(cx, x1, x2)
    b = b if rank_of(x2) == 1 else cx.op.Reshape(b, [-1])
    same = cx.op.Cast(cx.op.Equal(cx.op.Unsqueeze(a, [-1]), b), to=ir.DataType.INT64)
    contained = cx.op.Cast(reduce(cx, "ReduceMax", same, [rank_of(x1)], keepdims=False), to=ir.DataType.BOOL)
    return cx.op.Not(contained) if operation.invert else contained


@lowers(
    "Select",
    example=lambda x: ops.select([x > 1, x > 0], [x * 2, x], 0.0),
    shape=(4,),
    nodes="Greater Greater Mul Where Where",
)
def select(cx: GraphContext, operation: Any, /, condlist: Any, choicelist: Any, default: Any = 0) -> ir.Value:
    """The first choice whose condition holds."""
    dtype, (*choices, result) = operands(cx, *choicelist, default)
    if dtype == "bool":
        raise refuse(cx, operation, "dtype", dtype)
    for condition, choice in reversed(list(zip(condlist, choices, strict=True))):
        result = cx.op.Where(as_bool(cx, condition), choice, result)
    return result


@lowers("Diff", example=lambda x: ops.diff(x, axis=1), shape=(4, 3), nodes="Slice Slice Sub")
def diff(cx: GraphContext, operation: Any, /, a: Any) -> ir.Value:
    dtype, value, axis = result_type(a), as_given(cx, a), operation.axis % rank_of(a)
    for _ in range(operation.n):
        later, earlier = cut(cx, value, axis, 1, FAR), cut(cx, value, axis, 0, -1)
        if dtype == "bool":
            value = cx.op.Xor(later, earlier)
        else:
            value = wrapped(cx, cx.op.Sub(later, earlier), dtype)
    return value


def _flipped(axis: int) -> Callable[..., Any]:
    def lower(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
        return cx.op.Slice(as_given(cx, x), [FAR], [-FAR], [axis], [-1])

    return lower


lowers("Fliplr", example=lambda x: ops.fliplr(x), shape=(4, 3), nodes="Slice")(_flipped(1))
lowers("Flipud", example=lambda x: ops.flipud(x), shape=(4, 3), nodes="Slice")(_flipped(0))


@lowers("Rot90", example=lambda x: ops.rot90(x, axes=(1, 2)), shape=(4, 3), nodes="Transpose Slice")
def rot90(cx: GraphContext, operation: Any, /, array: Any) -> ir.Value:
    value, rank = as_given(cx, array), rank_of(array)
    first, second = axes_of(list(operation.axes), rank)
    turns = operation.k % 4
    if turns == 2:
        return cx.op.Slice(value, [FAR, FAR], [-FAR, -FAR], [first, second], [-1, -1])
    if turns:
        order = list(range(rank))
        order[first], order[second] = second, first
        value = cx.op.Transpose(value, perm=order)
        value = cx.op.Slice(value, [FAR], [-FAR], [first if turns == 1 else second], [-1])
    return value


@lowers("Dstack", example=lambda x: ops.dstack([x, x]), shape=(4, 3), nodes="Concat")
def dstack(cx: GraphContext, operation: Any, /, xs: Any) -> ir.Value:
    if min(map(rank_of, xs)) < 3:
        raise refuse(cx, operation, "xs of rank", min(map(rank_of, xs)))
    return joined(cx, xs, 2)


def _split_axis(axis: int) -> Callable[..., Any]:
    def lower(cx: GraphContext, operation: Any, /, x: Any) -> list[ir.Value]:
        return split_along(cx, operation, x, axis)

    return lower


lowers("Hsplit", example=lambda x: ops.hsplit(x, 2), shape=(4, 3), nodes="Split")(_split_axis(1))
lowers("Dsplit", example=lambda x: ops.dsplit(x, 3), shape=(4, 3), nodes="Split")(_split_axis(2))


@lowers(
    "Cross",
    example=lambda x: ops.cross(x, x * x),
    shape=(4, 3),
    nodes="Mul Gather Gather Gather Gather Mul Mul Sub",
)
def cross(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    """Of vectors of three along the last axis."""
    axes = (operation.axisa, operation.axisb, operation.axisc)
    if axes != (-1, -1, -1) or sizes_of(x1)[-1] != 3 or sizes_of(x2)[-1] != 3:
        raise refuse(cx, operation, "axes", axes, "Use vectors of size 3 along the last axis.")
    dtype, (a, b) = operands(cx, x1, x2)
    next_, last = np.array([1, 2, 0]), np.array([2, 0, 1])

    def reordered(x: ir.Value, order: np.ndarray) -> ir.Value:
        return cx.op.Gather(x, order, axis=-1)

    forth = cx.op.Mul(reordered(a, next_), reordered(b, last))
    back = cx.op.Mul(reordered(a, last), reordered(b, next_))
    return wrapped(cx, cx.op.Sub(forth, back), dtype)


@lowers(
    "CDist",
    example=lambda x: ops.cdist(x, x * 2),
    shape=(4, 3),
    nodes="Mul Unsqueeze Unsqueeze Sub ReduceL2",
)
def cdist(cx: GraphContext, operation: Any, /, x: Any, y: Any) -> ir.Value:
    apart = cx.op.Sub(cx.op.Unsqueeze(as_float(cx, x), [-2]), cx.op.Unsqueeze(as_float(cx, y), [-3]))
    return reduce(cx, "ReduceL2", apart, [max(rank_of(x), rank_of(y))], keepdims=False)


def _without_nan(node: str, fill: float) -> Callable[..., Any]:
    def lower(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
        if not is_float(x):
            raise refuse(
                cx,
                operation,
                "dtype",
                result_type(x),
                "Integers have no NaN: use the operation without nan in its name.",
            )
        value = as_float(cx, x)
        value = cx.op.Where(cx.op.IsNaN(value), fill, value)
        return reduce(cx, node, value, axes_of(operation.axis, rank_of(x)), operation.keepdims)

    return lower


lowers("Nansum", example=lambda x: ops.nansum(x, axis=1), shape=(4, 3), nodes="IsNaN Where ReduceSum")(
    _without_nan("ReduceSum", 0.0)
)
lowers("Nanprod", example=lambda x: ops.nanprod(x, axis=1), shape=(4, 3), nodes="IsNaN Where ReduceProd")(
    _without_nan("ReduceProd", 1.0)
)


@lowers(
    "Nanmean",
    example=lambda x: ops.nanmean(x, axis=1),
    shape=(4, 3),
    nodes="IsNaN Where ReduceSum Not Cast ReduceSum Div",
)
def nanmean(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    value, axes = as_float(cx, x), axes_of(operation.axis, rank_of(x))
    missing = cx.op.IsNaN(value)
    total = reduce(cx, "ReduceSum", cx.op.Where(missing, 0.0, value), axes, operation.keepdims)
    there = cx.op.Cast(cx.op.Not(missing), to=ir.DataType.FLOAT)
    return cx.op.Div(total, reduce(cx, "ReduceSum", there, axes, operation.keepdims))


@lowers(
    "Logaddexp2",
    example=lambda x: ops.logaddexp2(x, -x),
    shape=(4,),
    nodes="Neg Max Equal Sub Abs Neg Pow Add Log Mul Where Add",
)
def logaddexp2(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    a, b = as_float(cx, x1), as_float(cx, x2)
    gap = cx.op.Neg(cx.op.Abs(cx.op.Sub(a, b)))
    more = cx.op.Mul(cx.op.Log(cx.op.Add(cx.op.Pow(2.0, gap), 1.0)), 1 / math.log(2))
    return cx.op.Add(cx.op.Max(a, b), cx.op.Where(cx.op.Equal(a, b), 1.0, more))


@lowers(
    "Diag",
    example=lambda x: ops.diag(x[0]),
    shape=(4,),
    nodes="Gather Where",
)
def diag(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    """A vector as the diagonal of a matrix of zeros."""
    if rank_of(x) != 1 or operation.k != 0:
        raise refuse(cx, operation, "x of rank, and k", (rank_of(x), operation.k), "Use a vector and k=0.")
    dtype = result_type(x)
    size = sizes_of(x)[0]
    if size is None:
        raise refuse(cx, operation, "x of size", None)
    held = operand(cx, x, "int32" if dtype == "bool" else dtype)
    zero = operand(cx, 0, "int32" if dtype == "bool" else dtype)
    result = cx.op.Where(np.eye(size, dtype=bool), held, zero)
    return cx.op.Cast(result, to=ir.DataType.BOOL) if held_as(dtype) == ir.DataType.BOOL else result
