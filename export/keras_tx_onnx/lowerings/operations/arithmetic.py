"""Arithmetic of keras.ops, element by element."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from keras import ops

from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.nodes.arguments import (
    as_array,
    as_float,
    held_as,
    is_float,
    operand,
    operands,
    refuse,
    result_type,
    upper_bound,
    wrapped,
)
from keras_tx_onnx.reading.registry import lowers


def _integer(x: Any) -> Any:
    return ops.cast(x * 4, "int32")


# -- two operands -----------------------------------------------------------------------------------------


@lowers("Add", example=lambda x: ops.add(x, 1), shape=(4,), nodes="Add", takes_sizes=True)
def add(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    dtype, (a, b) = operands(cx, x1, x2)
    return cx.op.Or(a, b) if dtype == "bool" else wrapped(cx, cx.op.Add(a, b), dtype)


@lowers("Subtract", example=lambda x: 1 - x, shape=(4,), nodes="Sub", takes_sizes=True)
def subtract(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    dtype, (a, b) = operands(cx, x1, x2)
    if dtype == "bool":
        raise refuse(cx, operation, "dtype", dtype, "Keras does not subtract booleans.")
    return wrapped(cx, cx.op.Sub(a, b), dtype)


@lowers("Multiply", example=lambda x: x * x, shape=(4,), nodes="Mul", takes_sizes=True)
def multiply(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    dtype, (a, b) = operands(cx, x1, x2)
    return cx.op.And(a, b) if dtype == "bool" else wrapped(cx, cx.op.Mul(a, b), dtype)


def _divide(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    return cx.op.Div(as_float(cx, x1), as_float(cx, x2))


lowers("TrueDivide", example=lambda x: x / 2, shape=(4,), nodes="Div", takes_sizes=True)(_divide)
lowers("Divide", example=lambda x: ops.divide(1, x), shape=(4,), nodes="Div", takes_sizes=True)(_divide)


@lowers(
    "DivideNoNan",
    example=lambda x: ops.divide_no_nan(x, ops.relu(x)),
    shape=(4,),
    nodes="Relu Equal Where Div Where",
)
def divide_no_nan(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    """Zero where the divisor is."""
    a, b = as_float(cx, x1), as_float(cx, x2)
    zero = cx.op.Equal(b, 0.0)
    return cx.op.Where(zero, 0.0, cx.op.Div(a, cx.op.Where(zero, 1.0, b)))


@lowers("FloorDivide", example=lambda x: x // 0.3, shape=(4,), nodes="Div Floor", takes_sizes=True)
def floor_divide(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    dtype, (a, b) = operands(cx, x1, x2)
    if held_as(dtype) == ir.DataType.FLOAT:
        return cx.op.Floor(cx.op.Div(a, b))
    if dtype == "bool":
        raise refuse(cx, operation, "dtype", dtype)
    # Div cuts toward zero; the remainder has the sign of the divisor, as in Python.
    return wrapped(cx, cx.op.Div(cx.op.Sub(a, cx.op.Mod(a, b)), b), dtype)


@lowers("Mod", example=lambda x: _integer(x) % 3, shape=(4,), nodes="Mul Cast Mod", takes_sizes=True)
def mod(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    """The remainder has the sign of the divisor."""
    dtype, (a, b) = operands(cx, x1, x2)
    if dtype == "bool":
        raise refuse(cx, operation, "dtype", dtype)
    if held_as(dtype) == ir.DataType.INT64:
        return cx.op.Mod(a, b)
    rest = cx.op.Mod(a, b, fmod=1)  # the sign of the dividend
    other = cx.op.Less(cx.op.Mul(cx.op.Sign(rest), cx.op.Sign(b)), 0.0)
    return cx.op.Where(other, cx.op.Add(rest, b), rest)


@lowers("Power", example=lambda x: ops.square(x) ** 0.5, shape=(4,), nodes="Mul Pow", takes_sizes=True)
def power(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    dtype, (a, b) = operands(cx, x1, x2)
    if dtype == "bool":
        raise refuse(cx, operation, "dtype", dtype)
    return wrapped(cx, cx.op.Pow(a, b), dtype)


def _extreme(cx: GraphContext, node: str, logical: str, x1: Any, x2: Any) -> ir.Value:
    dtype, values = operands(cx, x1, x2)
    return getattr(cx.op, logical if dtype == "bool" else node)(*values)


@lowers("Maximum", example=lambda x: ops.maximum(x, 0), shape=(4,), nodes="Max", takes_sizes=True)
def maximum(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    return _extreme(cx, "Max", "Or", x1, x2)


@lowers("Minimum", example=lambda x: ops.minimum(x, 0), shape=(4,), nodes="Min", takes_sizes=True)
def minimum(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    return _extreme(cx, "Min", "And", x1, x2)


@lowers(
    "Hypot",
    example=lambda x: ops.hypot(x, -x),
    shape=(4,),
    nodes="Neg Abs Abs Max Min Equal Where Div Mul Add Sqrt Mul",
)
def hypot(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    """The larger one times sqrt(1 + ratio ** 2), which does not overflow."""
    a, b = cx.op.Abs(as_float(cx, x1)), cx.op.Abs(as_float(cx, x2))
    large, small = cx.op.Max(a, b), cx.op.Min(a, b)
    ratio = cx.op.Div(small, cx.op.Where(cx.op.Equal(large, 0.0), 1.0, large))
    return cx.op.Mul(large, cx.op.Sqrt(cx.op.Add(cx.op.Mul(ratio, ratio), 1.0)))


# -- one operand ------------------------------------------------------------------------------------------


@lowers("Negative", example=lambda x: -x, shape=(4,), nodes="Neg")
def negative(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    dtype = result_type(x)
    if dtype == "bool":
        raise refuse(cx, operation, "dtype", dtype, "Keras does not negate booleans.")
    return wrapped(cx, cx.op.Neg(x), dtype)


def _absolute(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    dtype = result_type(x)
    return x if dtype == "bool" else wrapped(cx, cx.op.Abs(x), dtype)


lowers("Absolute", example=lambda x: ops.absolute(x), shape=(4,), nodes="Abs")(_absolute)
lowers("Abs", example=lambda x: abs(x), shape=(4,), nodes="Abs")(_absolute)


@lowers("Sign", example=lambda x: ops.sign(x), shape=(4,), nodes="Sign")
def sign(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    if result_type(x) == "bool":
        raise refuse(cx, operation, "dtype", "bool")
    return cx.op.Sign(x)


@lowers("Square", example=lambda x: ops.square(x), shape=(4,), nodes="Mul")
def square(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    dtype = result_type(x)
    if dtype == "bool":
        dtype = "int32"
    value = operand(cx, x, dtype)
    return wrapped(cx, cx.op.Mul(value, value), dtype)


@lowers("Sqrt", example=lambda x: ops.sqrt(ops.square(x)), shape=(4,), nodes="Mul Sqrt")
def sqrt(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.Sqrt(as_float(cx, x))


@lowers("Rsqrt", example=lambda x: ops.rsqrt(ops.square(x)), shape=(4,), nodes="Mul Sqrt Reciprocal")
def rsqrt(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.Reciprocal(cx.op.Sqrt(as_float(cx, x)))


@lowers("Reciprocal", example=lambda x: ops.reciprocal(x), shape=(4,), nodes="Reciprocal")
def reciprocal(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.Reciprocal(as_float(cx, x))


def _to_whole(node: str) -> Any:
    def lower(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
        return getattr(cx.op, node)(x) if is_float(x) else as_float(cx, x)

    return lower


lowers("Floor", example=lambda x: ops.floor(x), shape=(4,), nodes="Floor")(_to_whole("Floor"))
lowers("Ceil", example=lambda x: ops.ceil(x), shape=(4,), nodes="Ceil")(_to_whole("Ceil"))


@lowers("Trunc", example=lambda x: ops.trunc(x), shape=(4,), nodes="Abs Floor Sign Mul")
def trunc(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    if not is_float(x):
        return x
    return cx.op.Mul(cx.op.Sign(x), cx.op.Floor(cx.op.Abs(x)))


@lowers("Round", example=lambda x: ops.round(x), shape=(4,), nodes="Round")
def round_(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    """Halves go to the even neighbour in both."""
    if not is_float(x):
        if operation.decimals < 0 or result_type(x) == "bool":
            raise refuse(cx, operation, "decimals", operation.decimals, "The input has an integer dtype.")
        return x
    if operation.decimals == 0:
        return cx.op.Round(x)
    factor = 10.0**operation.decimals
    return cx.op.Div(cx.op.Round(cx.op.Mul(x, factor)), factor)


@lowers("Clip", example=lambda x: ops.clip(x, -0.5, 0.5), shape=(4,), nodes="Clip")
def clip(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    dtype = result_type(x)
    dtype = "int32" if dtype == "bool" else dtype
    value = operand(cx, x, dtype)
    x_max = upper_bound(operation.x_min, operation.x_max)
    low, high = (
        None if bound is None else _bound(cx, operation, name, bound, dtype)
        for name, bound in (("x_min", operation.x_min), ("x_max", x_max))
    )
    if all(bound is None or bound.shape == ir.Shape(()) for bound in (low, high)):
        return cx.op.Clip(value, low, high)
    value = value if low is None else cx.op.Max(value, low)
    return value if high is None else cx.op.Min(value, high)


def _bound(cx: GraphContext, operation: Any, name: str, bound: Any, dtype: str) -> ir.Value:
    if held_as(dtype) == ir.DataType.INT64 and is_float(bound) and (as_array(bound) % 1).any():
        raise refuse(cx, operation, name, bound, "The input has an integer dtype.")
    return operand(cx, bound, dtype)
