"""Functions of one number in keras.ops: exponentials, logarithms, trigonometry, questions about floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.nodes.arguments import as_float, is_float, operand
from keras_tx_onnx.reading.registry import lowers

# Operation, the function of keras.ops, the node. All of them return floats, also for integers.
SAME_NAME = {
    "Exp": (ops.exp, "Exp"),
    "Log": (ops.log, "Log"),
    "Sin": (ops.sin, "Sin"),
    "Cos": (ops.cos, "Cos"),
    "Tan": (ops.tan, "Tan"),
    "Arcsin": (ops.arcsin, "Asin"),
    "Arccos": (ops.arccos, "Acos"),
    "Arctan": (ops.arctan, "Atan"),
    "Sinh": (ops.sinh, "Sinh"),
    "Cosh": (ops.cosh, "Cosh"),
    "Tanh": (ops.tanh, "Tanh"),
    "Arcsinh": (ops.arcsinh, "Asinh"),
    "Arccosh": (ops.arccosh, "Acosh"),
    "Arctanh": (ops.arctanh, "Atanh"),
    "Erf": (ops.erf, "Erf"),
}
WITHIN = {"Log", "Arcsin", "Arccos", "Arctanh", "Arccosh"}  # these have gaps: their example avoids them


def _register(name: str, function: Callable[[Any], Any], node: str) -> None:
    def lower(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
        return getattr(cx.op, node)(as_float(cx, x))

    def example(x: Any) -> Any:
        if name not in WITHIN:
            return function(x)
        return function(ops.sigmoid(x) + 1.5 if name == "Arccosh" else ops.sigmoid(x))

    before = {"Arccosh": "Sigmoid Add "}.get(name, "Sigmoid " if name in WITHIN else "")
    lowers(name, example=example, shape=(4,), nodes=before + node)(lower)


for _name, (_function, _node) in SAME_NAME.items():
    _register(_name, _function, _node)


@lowers(
    "Log1p",
    example=lambda x: ops.log1p(ops.relu(x)),
    shape=(4,),
    nodes="Relu Add Sub Equal IsInf Or Log Where Div Mul Where",
)
def log1p(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    """log(u) * x / (u - 1) with u = 1 + x, exact near 0 too; x itself where u is 1 or infinite."""
    x = as_float(cx, x)
    u = cx.op.Add(x, 1.0)
    gained = cx.op.Sub(u, 1.0)
    same = cx.op.Or(cx.op.Equal(gained, 0.0), cx.op.IsInf(u, detect_negative=0))
    scaled = cx.op.Mul(cx.op.Log(u), cx.op.Div(x, cx.op.Where(same, 1.0, gained)))
    return cx.op.Where(same, x, scaled)


@lowers("Expm1", example=lambda x: ops.expm1(x), shape=(4,), nodes="Mul Tanh Exp Add Mul")
def expm1(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    """tanh(x / 2) * (exp(x) + 1), which keeps its digits near 0."""
    x = as_float(cx, x)
    return cx.op.Mul(cx.op.Tanh(cx.op.Mul(x, 0.5)), cx.op.Add(cx.op.Exp(x), 1.0))


@lowers("Exp2", example=lambda x: ops.exp2(x), shape=(4,), nodes="Pow")
def exp2(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.Pow(2.0, as_float(cx, x))


@lowers("Log2", example=lambda x: ops.log2(ops.sigmoid(x)), shape=(4,), nodes="Sigmoid Log Mul")
def log2(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.Mul(cx.op.Log(as_float(cx, x)), 1 / math.log(2))


@lowers("Log10", example=lambda x: ops.log10(ops.sigmoid(x)), shape=(4,), nodes="Sigmoid Log Mul")
def log10(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.Mul(cx.op.Log(as_float(cx, x)), 1 / math.log(10))


@lowers("Deg2rad", example=lambda x: ops.deg2rad(x), shape=(4,), nodes="Mul")
def deg2rad(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.Mul(as_float(cx, x), math.pi / 180)


@lowers("Rad2deg", example=lambda x: ops.rad2deg(x), shape=(4,), nodes="Mul")
def rad2deg(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.Mul(as_float(cx, x), 180 / math.pi)


@lowers(
    "Logaddexp",
    example=lambda x: ops.logaddexp(x, 0.0),
    shape=(4,),
    nodes="Max Equal Sub Abs Neg Exp Add Log Add Where",
)
def logaddexp(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    """max + log(1 + exp(-|difference|)); the difference of equal numbers is 0, also of infinite ones."""
    a, b = as_float(cx, x1), as_float(cx, x2)
    more = cx.op.Log(cx.op.Add(cx.op.Exp(cx.op.Neg(cx.op.Abs(cx.op.Sub(a, b)))), 1.0))
    return cx.op.Add(cx.op.Max(a, b), cx.op.Where(cx.op.Equal(a, b), math.log(2), more))


@lowers(
    "Arctan2",
    example=lambda x: ops.arctan2(x, 0.5),
    shape=(4,),
    nodes="Abs Abs Max Min Equal Where Div Atan Greater Sub Where Less Sub Where Less Neg Where",
)
def arctan2(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    """The angle in the first octant, mirrored where it belongs."""
    y, x = as_float(cx, x1), as_float(cx, x2)
    up, right = cx.op.Abs(y), cx.op.Abs(x)
    large, small = cx.op.Max(up, right), cx.op.Min(up, right)
    angle = cx.op.Atan(cx.op.Div(small, cx.op.Where(cx.op.Equal(large, 0.0), 1.0, large)))
    angle = cx.op.Where(cx.op.Greater(up, right), cx.op.Sub(math.pi / 2, angle), angle)
    angle = cx.op.Where(cx.op.Less(x, 0.0), cx.op.Sub(math.pi, angle), angle)
    return cx.op.Where(cx.op.Less(y, 0.0), cx.op.Neg(angle), angle)


# -- questions about floats -------------------------------------------------------------------------------


def _truth(x: Any) -> Any:
    return ops.cast(x, "float32")


@lowers("Isnan", example=lambda x: _truth(ops.isnan(x)), shape=(4,), nodes="IsNaN Cast")
def isnan(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.IsNaN(as_float(cx, x))


@lowers("Isinf", example=lambda x: _truth(ops.isinf(x)), shape=(4,), nodes="IsInf Cast")
def isinf(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return cx.op.IsInf(as_float(cx, x))


@lowers("Isfinite", example=lambda x: _truth(ops.isfinite(x)), shape=(4,), nodes="IsNaN IsInf Or Not Cast")
def isfinite(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    x = as_float(cx, x)
    return cx.op.Not(cx.op.Or(cx.op.IsNaN(x), cx.op.IsInf(x)))


@lowers("NanToNum", example=lambda x: ops.nan_to_num(x), shape=(4,), nodes="IsNaN Where Clip")
def nan_to_num(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    if not is_float(x):
        return x
    x = cx.op.Where(cx.op.IsNaN(x), operand(cx, operation.nan, "float32"), x)
    if operation.posinf is None and operation.neginf is None:
        largest = float(np.finfo("float32").max)
        return cx.op.Clip(x, -largest, largest)
    bounds = []
    for bound, default in ((operation.posinf, "max"), (operation.neginf, "min")):
        bounds.append(float(getattr(np.finfo("float32"), default)) if bound is None else float(bound))
    x = cx.op.Where(cx.op.IsInf(x, detect_negative=0), bounds[0], x)
    return cx.op.Where(cx.op.IsInf(x, detect_positive=0), bounds[1], x)
