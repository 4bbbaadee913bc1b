"""Comparison, logic, choice and change of type in keras.ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.nodes.arguments import (
    NARROW,
    as_bool,
    as_float,
    dtype_of,
    held_as,
    operand,
    operands,
    refuse,
    result_type,
)
from keras_tx_onnx.reading.registry import lowers


def _truth(x: Any) -> Any:
    return ops.cast(x, "float32")


COMPARISONS: dict[str, tuple[Callable[..., Any], str]] = {
    "Greater": (ops.greater, "Greater"),
    "GreaterEqual": (ops.greater_equal, "GreaterOrEqual"),
    "Less": (ops.less, "Less"),
    "LessEqual": (ops.less_equal, "LessOrEqual"),
}


def _register_comparison(name: str, function: Callable[..., Any], node: str) -> None:
    @lowers(
        name, example=lambda x: _truth(function(x, 0)), shape=(4,), nodes=f"{node} Cast", takes_sizes=True
    )
    def lower(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
        dtype, values = operands(cx, x1, x2)
        if dtype == "bool":  # false before true
            values = [cx.op.Cast(value, to=ir.DataType.INT64) for value in values]
        return getattr(cx.op, node)(*values)


for _name, (_function, _node) in COMPARISONS.items():
    _register_comparison(_name, _function, _node)


@lowers("Equal", example=lambda x: _truth(ops.equal(x, 0)), shape=(4,), nodes="Equal Cast", takes_sizes=True)
def equal(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    return cx.op.Equal(*operands(cx, x1, x2)[1])


@lowers(
    "NotEqual",
    example=lambda x: _truth(ops.not_equal(x, 0)),
    shape=(4,),
    nodes="Equal Not Cast",
    takes_sizes=True,
)
def not_equal(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    return cx.op.Not(equal(cx, operation, x1, x2))


LOGIC: dict[str, tuple[Callable[..., Any], str]] = {
    "LogicalAnd": (ops.logical_and, "And"),
    "LogicalOr": (ops.logical_or, "Or"),
    "LogicalXor": (ops.logical_xor, "Xor"),
}


def _register_logic(name: str, function: Callable[..., Any], node: str) -> None:
    @lowers(
        name,
        example=lambda x: _truth(function(x > 0, x < 1)),
        shape=(4,),
        nodes=f"Greater Less {node} Cast",
    )
    def lower(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
        return getattr(cx.op, node)(as_bool(cx, x1), as_bool(cx, x2))


for _name, (_function, _node) in LOGIC.items():
    _register_logic(_name, _function, _node)


@lowers("LogicalNot", example=lambda x: _truth(ops.logical_not(x > 0)), shape=(4,), nodes="Greater Not Cast")
def logical_not(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.Not(as_bool(cx, x))


BITS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "BitwiseAnd": (ops.bitwise_and, "And", "Cast Cast BitwiseAnd"),
    "BitwiseOr": (ops.bitwise_or, "Or", "Cast Cast BitwiseOr"),
    "BitwiseXor": (ops.bitwise_xor, "Xor", "Cast Cast BitwiseXor"),
}


def _register_bits(name: str, function: Callable[..., Any], logical: str, nodes: str) -> None:
    """Of integers; Keras accepts booleans on some backends only."""

    @lowers(
        name,
        example=lambda x: function(ops.cast(x * 9, "int32"), ops.cast(x * 5, "int32")),
        shape=(4,),
        nodes=f"Mul Mul {nodes}",
    )
    def lower(cx: GraphContext, operation: Any, /, x: Any, y: Any) -> ir.Value:
        dtype, values = operands(cx, x, y)
        if dtype == "bool":
            return getattr(cx.op, logical)(*values)
        if cx.opset >= 18:
            return getattr(cx.op, name)(*values)
        if "64" in dtype:
            raise refuse(cx, operation, "dtype", dtype, "Pass opset=18 or higher.")
        return _of_bits(cx, getattr(cx.op, logical)(*(_bits(cx, value) for value in values)))


def _bits(cx: GraphContext, x: ir.Value) -> ir.Value:
    """The 34 bits of an integer in two's complement along a new last axis, as booleans."""
    x = cx.op.Unsqueeze(x, [-1])
    places = 2 ** np.arange(34)
    cut = cx.op.Div(cx.op.Sub(x, cx.op.Mod(x, places)), places)
    return cx.op.Cast(cx.op.Mod(cut, np.int64(2)), to=ir.DataType.BOOL)


def _of_bits(cx: GraphContext, bits: ir.Value) -> ir.Value:
    values = 2 ** np.arange(34)
    values[-1] *= -1
    return cx.op.ReduceSum(cx.op.Where(bits, values, np.int64(0)), [-1], keepdims=0)


for _name, (_function, _logical, _nodes) in BITS.items():
    _register_bits(_name, _function, _logical, _nodes)


def _invert(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    dtype = result_type(x)
    if dtype == "bool":
        return cx.op.Not(x)
    if dtype.startswith("uint"):
        raise refuse(cx, operation, "dtype", dtype)
    return cx.op.Sub(np.int64(-1), x)  # in two's complement


for _name, _function in (("BitwiseNot", ops.bitwise_not), ("BitwiseInvert", ops.bitwise_invert)):
    lowers(
        _name,
        example=lambda x, function=_function: function(ops.cast(x * 9, "int32")),
        shape=(4,),
        nodes="Mul Cast Sub",
    )(_invert)


@lowers(
    "Isclose",
    example=lambda x: _truth(ops.isclose(x, 0.5)),
    shape=(4,),
    nodes="Sub Abs Abs Mul Add IsInf Not LessOrEqual And Equal Or Cast",
)
def isclose(
    cx: GraphContext, operation: Any, /, x1: Any, x2: Any, rtol: Any = 1e-5, atol: Any = 1e-8
) -> ir.Value:
    """|x1 - x2| <= atol + rtol |x2|; equal ones, infinite too, are close."""
    if operation.equal_nan:
        raise refuse(cx, operation, "equal_nan", True)
    a, b = as_float(cx, x1), as_float(cx, x2)
    bound = cx.op.Add(cx.op.Mul(cx.op.Abs(b), as_float(cx, rtol)), as_float(cx, atol))
    near = cx.op.And(cx.op.LessOrEqual(cx.op.Abs(cx.op.Sub(a, b)), bound), cx.op.Not(cx.op.IsInf(bound)))
    return cx.op.Or(near, cx.op.Equal(a, b))


@lowers(
    "Where", example=lambda x: ops.where(x > 0, x, 0), shape=(4,), nodes="Greater Where", takes_sizes=True
)
def where(cx: GraphContext, operation: Any, /, condition: Any, x1: Any = None, x2: Any = None) -> ir.Value:
    if x1 is None or x2 is None:
        raise refuse(cx, operation, "x1 and x2", None, "Pass x1 and x2.")
    dtype, (a, b) = operands(cx, x1, x2)
    condition = as_bool(cx, condition)
    if dtype == "bool":  # onnxruntime has no Where of booleans
        return cx.op.Or(cx.op.And(condition, a), cx.op.And(cx.op.Not(condition), b))
    return cx.op.Where(condition, a, b)


@lowers("Cast", example=lambda x: ops.cast(x, "int32") / 2, shape=(4,), nodes="Cast Cast Div")
def cast(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return to_dtype(cx, operation, x, operation.dtype)


@lowers(
    "SaturateCast",
    example=lambda x: ops.saturate_cast(x * 300, "uint8") / 2,
    shape=(4,),
    nodes="Mul Clip Cast Cast Div",
)
def saturate_cast(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    dtype = keras.backend.standardize_dtype(operation.dtype)
    if dtype in NARROW and dtype_of(x) != "bool":
        limits = ir.DataType[dtype.upper()]
        x_dtype = result_type(x)
        bits = limits.bitwidth
        low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        bounds = (operand(cx, bound, x_dtype) for bound in (low, high))
        return operand_as(cx, cx.op.Clip(x, *bounds), x_dtype, "int64")
    if held_as(dtype) == ir.DataType.INT64 and held_as(result_type(x)) == ir.DataType.FLOAT:
        raise refuse(cx, operation, "dtype", dtype, "Use int8, int16, uint8 or uint16.")
    return to_dtype(cx, operation, x, dtype)


def to_dtype(cx: GraphContext, operation: Any, x: Any, dtype: str) -> ir.Value:
    """A value in another dtype of Keras. Floats stay: the graph computes in float32."""
    target = keras.backend.standardize_dtype(dtype)
    if not (target == "bool" or "int" in target or keras.backend.is_float_dtype(target)) or target == "int4":
        raise refuse(cx, operation, "dtype", target)
    if not isinstance(x, ir.Value):
        return operand(cx, x, target)
    dtype_before = result_type(x)
    if target in NARROW and dtype_before not in (target, "bool"):
        return cx.op.Cast(cx.op.Cast(x, to=NARROW[target]), to=ir.DataType.INT64)
    if dtype_before in NARROW and held_as(target) == ir.DataType.INT64 and dtype_before != target:
        return cx.op.Identity(x)  # one value cannot remember two dtypes
    return operand_as(cx, x, dtype_before, target)


def operand_as(cx: GraphContext, x: ir.Value, before: str, target: str) -> ir.Value:
    return x if held_as(before) == held_as(target) else cx.op.Cast(x, to=held_as(target))


@lowers("ConvertToTensor", example=lambda x: ops.convert_to_tensor(x), shape=(4,), nodes="")
def convert_to_tensor(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    if operation.sparse:
        raise refuse(cx, operation, "sparse", operation.sparse)
    return to_dtype(cx, operation, x, operation.dtype or result_type(x))


@lowers("StopGradient", example=lambda x: ops.stop_gradient(x), shape=(4,), nodes="")
def stop_gradient(cx: GraphContext, operation: Any, /, variable: Any) -> ir.Value:
    return operand(cx, variable, result_type(variable))


def _same(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return operand(cx, x, result_type(x))


lowers("Copy", example=lambda x: ops.copy(x), shape=(4,), nodes="")(_same)


@lowers("Array", example=lambda x: ops.array(x), shape=(4,), nodes="")
def array(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return to_dtype(cx, operation, x, operation.dtype or result_type(x))
