"""Operations of keras.ops that make a tensor in the form of another, or from numbers of the graph."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import layers, ops

from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.nodes.arguments import (
    as_float,
    as_index,
    dims,
    held_as,
    operand,
    rank_of,
    reduce,
    refuse,
    result_type,
    sizes_of,
)
from keras_tx_onnx.reading.registry import lowers


def _like(cx: GraphContext, operation: Any, x: Any, fill: Any) -> ir.Value:
    dtype = keras.backend.standardize_dtype(operation.dtype or result_type(x))
    return cx.op.Expand(operand(cx, fill, dtype), _shape(cx, x))


def _shape(cx: GraphContext, x: Any) -> Any:
    """A constant where the arguments are numbers."""
    sizes = sizes_of(x)
    return cx.op.Shape(x) if None in sizes else list(sizes)


@lowers("ZerosLike", example=lambda x: ops.zeros_like(x), shape=(4,), nodes="Shape Expand")
def zeros_like(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return _like(cx, operation, x, 0)


@lowers("OnesLike", example=lambda x: ops.ones_like(x), shape=(4,), nodes="Shape Expand")
def ones_like(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return _like(cx, operation, x, 1)


@lowers("FullLike", example=lambda x: ops.full_like(x, 2), shape=(4,), nodes="Shape Expand", takes_sizes=True)
def full_like(cx: GraphContext, operation: Any, /, x: Any, fill_value: Any) -> ir.Value:
    return _like(cx, operation, x, fill_value)


@lowers(
    "Arange",
    example=layers.Lambda(lambda x: x + ops.arange(5, dtype="float32")),
    shape=(5,),
    nodes="Range Add",
    takes_sizes=True,
)
def arange(cx: GraphContext, operation: Any, /, start: Any, stop: Any, step: Any) -> ir.Value:
    floating = keras.backend.is_float_dtype(operation.dtype)

    def scalar(x: Any) -> Any:
        if isinstance(x, ir.Value):
            return cx.op.Cast(x, to=ir.DataType.FLOAT) if floating else x
        return np.float32(x) if floating else np.int64(x)

    return cx.op.Range(scalar(start), scalar(stop), scalar(step))


@lowers(
    "Full",
    example=lambda x: ops.full((2, 3), ops.sum(x)),
    shape=(4,),
    nodes="ReduceSum Expand",
    takes_sizes=True,
)
def full(cx: GraphContext, operation: Any, /, fill_value: Any) -> ir.Value:
    dtype = keras.backend.standardize_dtype(operation.dtype)
    shape = (operation.shape,) if isinstance(operation.shape, int) else operation.shape
    return cx.op.Expand(operand(cx, fill_value, dtype), dims(cx, operation, "shape", shape))


@lowers(
    "Linspace",
    example=lambda x: ops.linspace(x, x + 1, 3),
    shape=(4,),
    nodes="Add Sub Mul Add",
)
def linspace(cx: GraphContext, operation: Any, /, start: Any, stop: Any) -> ir.Value:
    if operation.retstep or operation.axis != 0 or not isinstance(operation.num, int):
        raise refuse(cx, operation, "retstep, axis, num", (operation.retstep, operation.axis, operation.num))
    dtype = keras.backend.standardize_dtype(operation.dtype or keras.config.floatx())
    if not keras.backend.is_float_dtype(dtype):
        raise refuse(cx, operation, "dtype", dtype)
    a, b = as_float(cx, start), as_float(cx, stop)
    steps = operation.num - 1 if operation.endpoint else operation.num
    parts = np.arange(operation.num, dtype="float32") / np.float32(max(steps, 1))
    parts = parts.reshape(-1, *[1] * max(rank_of(start), rank_of(stop)))
    return cx.op.Add(a, cx.op.Mul(cx.op.Sub(b, a), parts))


@lowers(
    "OneHot",
    example=lambda x: ops.one_hot(ops.cast(x * 2, "int32"), 3),
    shape=(4,),
    nodes="Mul Cast Unsqueeze Equal Cast",
    takes_sizes=True,
)
def one_hot(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    """Compares with 0, 1, 2 ..., so that other indices become zeros; ONNX's OneHot wraps negative ones."""
    if operation.sparse:
        raise refuse(cx, operation, "sparse", True)
    dtype = keras.backend.standardize_dtype(operation.dtype or "float32")
    rank, count = rank_of(x), operation.num_classes
    axis = operation.axis % (rank + 1)
    classes = (
        cx.op.Range(np.int64(0), count, np.int64(1))
        if isinstance(count, ir.Value)
        else cx.constant(np.arange(int(count)))
    )
    if axis < rank:
        classes = cx.op.Unsqueeze(classes, list(range(1, rank + 1 - axis)))
    hot = cx.op.Equal(cx.op.Unsqueeze(as_index(cx, x), [axis]), classes)
    return hot if dtype == "bool" else cx.op.Cast(hot, to=held_as(dtype))


@lowers(
    "MultiHot",
    example=lambda x: ops.multi_hot(ops.cast(x * 2, "int32"), 3),
    shape=(4,),
    nodes="Mul Cast Unsqueeze Equal Cast ReduceMax",
)
def multi_hot(cx: GraphContext, operation: Any, /, inputs: Any) -> ir.Value:
    """Integers, as Keras's graph declares; called on data, Keras returns floats."""
    if operation.sparse or operation.axis != -1:
        raise refuse(cx, operation, "sparse and axis", (operation.sparse, operation.axis))
    hot = cx.op.Equal(cx.op.Unsqueeze(as_index(cx, inputs), [-1]), np.arange(operation.num_classes))
    hot = cx.op.Cast(hot, to=held_as(result_type(inputs)))
    return reduce(cx, "ReduceMax", hot, [1 if rank_of(inputs) > 1 else 0], keepdims=False)
