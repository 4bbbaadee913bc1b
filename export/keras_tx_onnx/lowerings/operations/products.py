"""Products of keras.ops that sum over axes: of matrices and vectors, and in Einstein's notation."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.nodes.arguments import (
    operand,
    rank_of,
    result_type,
)
from keras_tx_onnx.reading.registry import lowers


def _factors(cx: GraphContext, *xs: Any) -> list[ir.Value]:
    """As floats or integers: no node multiplies matrices of booleans."""
    dtype = result_type(*xs)
    return [operand(cx, x, "int32" if dtype == "bool" else dtype) for x in xs]


def _result(cx: GraphContext, x: ir.Value, *factors: Any) -> ir.Value:
    return cx.op.Cast(x, to=ir.DataType.BOOL) if result_type(*factors) == "bool" else x


@lowers(
    "Matmul",
    example=lambda x: ops.matmul(x, ops.transpose(x, (0, 2, 1))),
    shape=(4, 3),
    nodes="Transpose MatMul",
)
def matmul(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    return _result(cx, cx.op.MatMul(*_factors(cx, x1, x2)), x1, x2)


@lowers("Dot", example=lambda x: ops.dot(x, np.ones((3, 2))), shape=(4, 3), nodes="MatMul")
def dot(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    """The last axis of the first with the one before the last of the second, or its only one."""
    ranks = rank_of(x1), rank_of(x2)
    a, b = _factors(cx, x1, x2)
    if 0 in ranks:
        return _result(cx, cx.op.Mul(a, b), x1, x2)
    if ranks[1] <= 2:
        return _result(cx, cx.op.MatMul(a, b), x1, x2)
    return _result(cx, _contracted(cx, a, b, ranks, [ranks[0] - 1], [ranks[1] - 2]), x1, x2)


def _contracted(
    cx: GraphContext, a: ir.Value, b: ir.Value, ranks: tuple[int, int], first: list[int], second: list[int]
) -> ir.Value:
    """Summed over pairs of axes; the other axes of the first precede those of the second."""
    left = [chr(ord("a") + axis) for axis in range(ranks[0])]
    right = [chr(ord("a") + ranks[0] + axis) for axis in range(ranks[1])]
    for one, other in zip(first, second, strict=True):
        right[other] = left[one]
    free = [x for i, x in enumerate(left) if i not in first]
    free += [x for i, x in enumerate(right) if i not in second]
    return product(cx, "".join(left), "".join(right), "".join(free), a, b)


@lowers(
    "Tensordot",
    example=lambda x: ops.tensordot(x, np.ones((4, 3, 2), "float32"), axes=2),
    shape=(4, 3),
    nodes="Einsum",
)
def tensordot(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    ranks, axes = (rank_of(x1), rank_of(x2)), operation.axes
    if isinstance(axes, int):
        first, second = list(range(ranks[0] - axes, ranks[0])), list(range(axes))
    else:
        first, second = (
            [axis % rank for axis in ([part] if isinstance(part, int) else part)]
            for part, rank in zip(axes, ranks, strict=True)
        )
    a, b = _factors(cx, x1, x2)
    return _result(cx, _contracted(cx, a, b, ranks, first, second), x1, x2)


@lowers("Inner", example=lambda x: ops.inner(x, np.ones((2, 3))), shape=(4, 3), nodes="Transpose MatMul")
def inner(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    ranks = rank_of(x1), rank_of(x2)
    a, b = _factors(cx, x1, x2)
    if 0 in ranks:
        return _result(cx, cx.op.Mul(a, b), x1, x2)
    return _result(cx, _contracted(cx, a, b, ranks, [ranks[0] - 1], [ranks[1] - 1]), x1, x2)


@lowers(
    "Vdot", example=lambda x: ops.vdot(x[0], x[1]), shape=(4,), nodes="Gather Gather Reshape Reshape MatMul"
)
def vdot(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    a, b = (cx.op.Reshape(x, [-1]) for x in _factors(cx, x1, x2))
    return _result(cx, cx.op.MatMul(a, b), x1, x2)


@lowers("Outer", example=lambda x: ops.outer(x, np.ones(2)), shape=(4,), nodes="Reshape Reshape Mul")
def outer(cx: GraphContext, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    a, b = _factors(cx, x1, x2)
    return _result(cx, cx.op.Mul(cx.op.Reshape(a, [-1, 1]), cx.op.Reshape(b, [1, -1])), x1, x2)


@lowers(
    "Einsum",
    example=lambda x: ops.einsum("btd,bsd->bts", x, x),
    shape=(4, 3),
    nodes="Transpose MatMul",
)
def einsum(cx: GraphContext, operation: Any, /, *args: Any, **kwargs: Any) -> ir.Value:
    equation = operation.subscripts.replace(" ", "")
    xs = _factors(cx, *args)
    left, arrow, output = equation.partition("->")
    terms = left.split(",")
    if arrow and len(terms) == 2 and "." not in equation:
        return _result(cx, product(cx, terms[0], terms[1], output, xs[0], xs[1]), *args)
    return _result(cx, cx.op.Einsum(*xs, equation=equation), *args)


@dataclasses.dataclass(frozen=True)
class _Order:
    """The order of axes of the inputs of a MatMul, and of its result."""

    first: str
    second: str
    result: str


def product(cx: GraphContext, first: str, second: str, output: str, a: ir.Value, b: ir.Value) -> ir.Value:
    """A product in Einstein's notation: a MatMul of transposed inputs where possible, otherwise an Einsum."""
    order = _as_matrices(first, second, output)
    if order is None:
        return cx.op.Einsum(a, b, equation=f"{first},{second}->{output}")
    result = cx.op.MatMul(_transposed(cx, a, first, order.first), _transposed(cx, b, second, order.second))
    return _transposed(cx, result, order.result, output)


def _transposed(cx: GraphContext, x: ir.Value, axes: str, order: str) -> ir.Value:
    return x if axes == order else cx.op.Transpose(x, perm=[axes.index(axis) for axis in order])


def _as_matrices(first: str, second: str, output: str) -> _Order | None:
    a, b, c = set(first), set(second), set(output)
    if len(a) < len(first) or len(b) < len(second) or not c <= a | b:
        return None
    summed = _letters(first, (a & b) - c)
    batch, rows, columns = (_letters(output, axes) for axes in (a & b, a - b, b - a))
    if len(summed) != 1 or not (a ^ b) <= c or not rows or len(columns) > 1:
        return None
    if batch and (len(rows), len(columns)) != (1, 1):
        return None
    return _Order(batch + rows + summed, batch + summed + columns, batch + rows + columns)


def _letters(text: str, axes: set[str]) -> str:
    return "".join(x for x in text if x in axes)
