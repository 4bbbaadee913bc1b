"""Reductions of keras.ops: sums, means, extremes and where they are; cumulative sums; norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.nodes.arguments import (
    as_bool,
    as_float,
    axes_of,
    held_as,
    operand,
    rank_of,
    reduce,
    refuse,
    result_type,
    spec_of,
    wrapped,
)
from keras_tx_onnx.lowerings.operations.comparison import to_dtype
from keras_tx_onnx.reading.registry import lowers


def _axes(operation: Any, x: Any) -> list[int]:
    return axes_of(operation.axis, rank_of(x))


@lowers("Sum", example=lambda x: ops.sum(x, axis=1), shape=(4, 3), nodes="ReduceSum")
def sum_(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    dtype = spec_of(operation, x).dtype  # of booleans int32
    total = reduce(cx, "ReduceSum", operand(cx, x, dtype), _axes(operation, x), operation.keepdims)
    return total if result_type(x) == "bool" else wrapped(cx, total, dtype)


@lowers("Prod", example=lambda x: ops.prod(x, axis=1), shape=(4, 3), nodes="ReduceProd")
def prod(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    dtype = spec_of(operation, x).dtype
    product = reduce(cx, "ReduceProd", operand(cx, x, dtype), _axes(operation, x), operation.keepdims)
    return wrapped(cx, product, dtype)


@lowers("Mean", example=lambda x: ops.mean(x, axis=-1), shape=(4, 3), nodes="ReduceMean")
def mean(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    """Of integers too it is a float."""
    return reduce(cx, "ReduceMean", as_float(cx, x), _axes(operation, x), operation.keepdims)


def moments_of(
    cx: GraphContext, x: ir.Value, axes: list[int], keepdims: bool
) -> tuple[Callable[[], ir.Value], ir.Value]:
    """A function that returns the mean in the requested shape, and the variance."""
    centre = reduce(cx, "ReduceMean", x, axes, keepdims=True)
    off = cx.op.Sub(x, centre)
    variance = reduce(cx, "ReduceMean", cx.op.Mul(off, off), axes, keepdims)
    return lambda: centre if keepdims else cx.op.Squeeze(centre, axes), variance


@lowers("Var", example=lambda x: ops.var(x, axis=1), shape=(4, 3), nodes="ReduceMean Sub Mul ReduceMean")
def var(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return moments_of(cx, as_float(cx, x), _axes(operation, x), operation.keepdims)[1]


@lowers("Std", example=lambda x: ops.std(x, axis=1), shape=(4, 3), nodes="ReduceMean Sub Mul ReduceMean Sqrt")
def std(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.Sqrt(moments_of(cx, as_float(cx, x), _axes(operation, x), operation.keepdims)[1])


@lowers(
    "Moments",
    example=lambda x: ops.moments(x, axes=[1], keepdims=True),
    shape=(4, 3),
    nodes="ReduceMean Sub Mul ReduceMean",
)
def moments(cx: GraphContext, operation: Any, /, x: Any) -> tuple[ir.Value, ir.Value]:
    if operation.synchronized:
        raise refuse(cx, operation, "synchronized", True, "Pass synchronized=False.")
    centre, variance = moments_of(
        cx, as_float(cx, x), axes_of(operation.axes, rank_of(x)), operation.keepdims
    )
    return centre(), variance


def _extreme(cx: GraphContext, operation: Any, x: Any, node: str) -> ir.Value:
    initial = getattr(operation, "initial", None)
    dtype = result_type(x)
    held = "int32" if dtype == "bool" else dtype  # onnxruntime has no extremes of booleans
    result = reduce(cx, f"Reduce{node}", operand(cx, x, held), _axes(operation, x), operation.keepdims)
    if initial is not None:
        result = getattr(cx.op, node)(result, operand(cx, initial, held))
    return cx.op.Cast(result, to=ir.DataType.BOOL) if dtype == "bool" else result


def _max(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return _extreme(cx, operation, x, "Max")


def _min(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return _extreme(cx, operation, x, "Min")


lowers("Max", example=lambda x: ops.max(x, axis=1), shape=(4, 3), nodes="ReduceMax")(_max)
lowers("Amax", example=lambda x: ops.amax(x, axis=1), shape=(4, 3), nodes="ReduceMax")(_max)
lowers("Min", example=lambda x: ops.min(x, axis=1), shape=(4, 3), nodes="ReduceMin")(_min)
lowers("Amin", example=lambda x: ops.amin(x, axis=1), shape=(4, 3), nodes="ReduceMin")(_min)


@lowers("Ptp", example=lambda x: ops.ptp(x, axis=1), shape=(4, 3), nodes="ReduceMax ReduceMin Sub")
def ptp(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.Sub(_max(cx, operation, x), _min(cx, operation, x))


def _truth(cx: GraphContext, operation: Any, x: Any, node: str) -> ir.Value:
    numbers = cx.op.Cast(as_bool(cx, x), to=ir.DataType.INT64)
    return cx.op.Cast(reduce(cx, node, numbers, _axes(operation, x), operation.keepdims), to=ir.DataType.BOOL)


@lowers(
    "Any",
    example=lambda x: ops.cast(ops.any(x > 0, axis=1), "float32"),
    shape=(4, 3),
    nodes="Greater Cast ReduceMax Cast Cast",
)
def any_(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return _truth(cx, operation, x, "ReduceMax")


@lowers(
    "All",
    example=lambda x: ops.cast(ops.all(x > -1, axis=1), "float32"),
    shape=(4, 3),
    nodes="Greater Cast ReduceMin Cast Cast",
)
def all_(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return _truth(cx, operation, x, "ReduceMin")


@lowers(
    "CountNonzero",
    example=lambda x: ops.count_nonzero(ops.relu(x), axis=1) / 2,
    shape=(4,),
    nodes="Relu Cast Cast ReduceSum Cast Div",
)
def count_nonzero(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    numbers = cx.op.Cast(as_bool(cx, x), to=ir.DataType.INT64)
    return reduce(cx, "ReduceSum", numbers, _axes(operation, x), keepdims=False)


@lowers("Argmax", example=lambda x: ops.argmax(x, axis=1) / 2, shape=(4, 3), nodes="ArgMax Cast Div")
def argmax(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return _place(cx, operation, x, "ArgMax")


@lowers("Argmin", example=lambda x: ops.argmin(x, axis=1) / 2, shape=(4, 3), nodes="ArgMin Cast Div")
def argmin(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return _place(cx, operation, x, "ArgMin")


def _place(cx: GraphContext, operation: Any, x: Any, node: str) -> ir.Value:
    """The first of equal ones, in both."""
    rank = rank_of(x)
    if held_as(result_type(x)) != ir.DataType.FLOAT:
        x = cx.op.Cast(x, to=ir.DataType.DOUBLE)  # onnxruntime compares no int64 here
    if operation.axis is not None:
        return getattr(cx.op, node)(x, axis=operation.axis, keepdims=int(operation.keepdims))
    place = getattr(cx.op, node)(cx.op.Reshape(x, [-1]), axis=0, keepdims=0)
    return cx.op.Reshape(place, [1] * rank) if operation.keepdims else place


@lowers("Cumsum", example=lambda x: ops.cumsum(x, axis=1), shape=(4, 3), nodes="CumSum")
def cumsum(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    dtype = keras.backend.standardize_dtype(operation.dtype or result_type(x))
    x = to_dtype(cx, operation, x, "int32" if dtype == "bool" else dtype)
    if operation.axis is None:
        return wrapped(cx, cx.op.CumSum(cx.op.Reshape(x, [-1]), np.int64(0)), dtype)
    return wrapped(cx, cx.op.CumSum(x, np.int64(operation.axis)), dtype)


@lowers("Logsumexp", example=lambda x: ops.logsumexp(x, axis=1), shape=(4, 3), nodes="ReduceLogSumExp")
def logsumexp(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return reduce(cx, "ReduceLogSumExp", as_float(cx, x), _axes(operation, x), operation.keepdims)


@lowers("Norm", example=lambda x: ops.norm(x), shape=(4,), nodes="ReduceL2")
def norm(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    """Of a vector any order; of a matrix those that are sums and extremes, not singular values."""
    axes = _axes(operation, x)
    return norm_of(cx, operation, as_float(cx, x), operation.ord, axes, operation.keepdims)


def norm_of(
    cx: GraphContext, operation: Any, x: ir.Value, order: Any, axes: list[int], keepdims: bool
) -> ir.Value:
    if order is None or (order == "fro" and len(axes) == 2) or (order == 2 and len(axes) == 1):
        return reduce(cx, "ReduceL2", x, axes, keepdims)
    if isinstance(order, (int, float)):
        if len(axes) == 1:
            return _vector_norm(cx, x, order, axes, keepdims)
        if len(axes) == 2 and abs(order) in (1, math.inf):
            summed, compared = axes if abs(order) == 1 else axes[::-1]
            sums = reduce(cx, "ReduceL1", x, [summed], keepdims=True)
            extreme = reduce(cx, "ReduceMax" if order > 0 else "ReduceMin", sums, [compared], keepdims=True)
            return extreme if keepdims else cx.op.Squeeze(extreme, axes)
    raise refuse(cx, operation, "ord", order, f"The norm is over {len(axes)} axes.")


def _vector_norm(cx: GraphContext, x: ir.Value, order: float, axes: list[int], keepdims: bool) -> ir.Value:
    if abs(order) == math.inf:
        return reduce(cx, "ReduceMax" if order > 0 else "ReduceMin", cx.op.Abs(x), axes, keepdims)
    if order == 1:
        return reduce(cx, "ReduceL1", x, axes, keepdims)
    if order == 0:
        nonzero = cx.op.Cast(cx.op.Not(cx.op.Equal(x, 0.0)), to=ir.DataType.FLOAT)
        return reduce(cx, "ReduceSum", nonzero, axes, keepdims)
    total = reduce(cx, "ReduceSum", cx.op.Pow(cx.op.Abs(x), float(order)), axes, keepdims)
    return cx.op.Pow(total, 1 / order)


@lowers(
    "Average",
    example=lambda x: ops.average(x, axis=1, weights=np.array([1.0, 2.0, 5.0], "float32")),
    shape=(3,),
    nodes="Reshape Mul ReduceSum ReduceSum Div",
)
def average(cx: GraphContext, operation: Any, /, x: Any, weights: Any = None) -> ir.Value:
    """Weighted along one axis, or everywhere."""
    value, axes = as_float(cx, x), _axes(operation, x)
    if weights is None:
        return reduce(cx, "ReduceMean", value, axes, keepdims=False)
    factors = as_float(cx, weights)
    if rank_of(weights) < rank_of(x):  # as many as the axis is long
        shape = [1] * rank_of(x)
        shape[axes[0]] = -1
        factors = cx.op.Reshape(factors, shape)
    total = reduce(cx, "ReduceSum", cx.op.Mul(value, factors), axes, keepdims=False)
    return cx.op.Div(total, reduce(cx, "ReduceSum", factors, axes, keepdims=False))
