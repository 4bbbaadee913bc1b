"""Arguments of operations: values, arrays, variables and numbers, converted to the dtype of the graph.

Every float is float32 in the graph, and every integer int64; Keras's promotion rules apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext, shape_of

# Integers that may overflow in ordinary use: pixels, above all. In the graph they are int64 all the same.
NARROW = {
    "int8": ir.DataType.INT8,
    "int16": ir.DataType.INT16,
    "uint8": ir.DataType.UINT8,
    "uint16": ir.DataType.UINT16,
}
# These overflow in hashes of token ids, such as ids * 1000003 % buckets.
OVERFLOWING = {**NARROW, "int32": ir.DataType.INT32, "uint32": ir.DataType.UINT32}
FAR = 2**62  # beyond the end of every axis


def refuse(cx: GraphContext, operation: Any, argument: str, value: Any, instead: str = "") -> ExportError:
    """The error of an operation whose argument is not supported."""
    name = type(operation).__name__
    return ExportError(
        f"{argument}={value!r} is not supported in the operation {cx.scope!r} ({name})."
        + (f" {instead}" if instead else "")
    )


def dtype_of(x: Any) -> Any:
    """Keras's dtype of an operand; of a Python number its type, which promotes as a number does."""
    if isinstance(x, ir.Value):
        # A value without a Keras tensor is a size, which is a Python number in Keras.
        return x.meta[KERAS_TENSOR].dtype if KERAS_TENSOR in x.meta else int
    if isinstance(x, (bool, int, float)):
        return type(x)
    if not hasattr(x, "dtype"):
        x = ops.convert_to_tensor(x)
    return keras.backend.standardize_dtype(x.dtype)


def result_type(*operands: Any) -> str:
    return keras.backend.result_type(*map(dtype_of, operands))


def is_float(x: Any) -> bool:
    return keras.backend.is_float_dtype(result_type(x))


def spec_of(operation: Any, *args: Any) -> Any:
    """The results that Keras infers: a Keras tensor, or several."""
    known = [x.meta[KERAS_TENSOR] if isinstance(x, ir.Value) else x for x in args]
    return operation.compute_output_spec(*known)


def rank_of(x: Any) -> int:
    if isinstance(x, ir.Value):
        return len(shape_of(x)) if KERAS_TENSOR in x.meta else 0
    return len(x.shape) if hasattr(x, "shape") else np.ndim(as_array(x))


def sizes_of(x: Any) -> tuple[Any, ...]:
    return shape_of(x) if isinstance(x, ir.Value) else tuple(as_array(x).shape)


def held_as(dtype: str) -> ir.DataType:
    """The graph's type for a dtype of Keras."""
    if dtype == "bool":
        return ir.DataType.BOOL
    if keras.backend.is_float_dtype(dtype):
        return ir.DataType.FLOAT
    if "int" in dtype:
        return ir.DataType.INT64
    raise ExportError(f"dtype={dtype!r} is not supported in a graph. Use a float, integer or bool dtype.")


def operand(cx: GraphContext, x: Any, dtype: str) -> ir.Value:
    """An operand as the graph's type for `dtype`."""
    onnx_type = held_as(dtype)
    if isinstance(x, ir.Value):
        return x if held_as(result_type(x)) == onnx_type else cx.op.Cast(x, to=onnx_type)
    if isinstance(x, keras.KerasTensor):
        raise ExportError(
            f"A tensor was passed for a static argument of the operation {cx.scope!r}. Pass a number."
        )
    if onnx_type == ir.DataType.FLOAT and isinstance(x, keras.Variable) and is_float(x):
        return cx.weight(x)
    return cx.constant(as_array(x), onnx_type.numpy().name)


def operands(cx: GraphContext, *xs: Any) -> tuple[str, list[ir.Value]]:
    """The common dtype of operands, and each in it."""
    dtype = result_type(*xs)
    return dtype, [operand(cx, x, dtype) for x in xs]


def as_float(cx: GraphContext, x: Any) -> ir.Value:
    return operand(cx, x, "float32")


def as_index(cx: GraphContext, x: Any) -> ir.Value:
    return operand(cx, x, "int64")


def as_bool(cx: GraphContext, x: Any) -> ir.Value:
    return operand(cx, x, "bool")


def as_given(cx: GraphContext, x: Any) -> ir.Value:
    """An operand in its own dtype."""
    return operand(cx, x, result_type(x))


def as_array(x: Any) -> np.ndarray:
    if isinstance(x, (bool, int, float, list, tuple, np.ndarray, np.generic)):
        return np.asarray(x)
    return np.asarray(ops.convert_to_numpy(x))


def upper_bound(low: Any, high: Any) -> Any:
    """The upper bound of a Clip node, which wins if the bounds cross; in TensorFlow the lower one wins."""
    if keras.backend.backend() != "tensorflow" or any(
        bound is None or isinstance(bound, keras.KerasTensor) for bound in (low, high)
    ):
        return high
    lows, highs = as_array(low), as_array(high)
    return np.maximum(lows, highs) if (lows > highs).any() else high


def wrapped(cx: GraphContext, x: ir.Value, dtype: str) -> ir.Value:
    """A result in an integer type that overflows in Keras: 250 + 10 is 4 in uint8."""
    if dtype not in OVERFLOWING:
        return x
    return cx.op.Cast(cx.op.Cast(x, to=OVERFLOWING[dtype]), to=ir.DataType.INT64)


def axes_of(axis: Any, rank: int) -> list[int]:
    """The axes of an argument of Keras (a number, several, or None for all), counted from the front."""
    if axis is None:
        return list(range(rank))
    return [a % rank for a in (axis if isinstance(axis, (list, tuple)) else [axis])]


def reduced(cx: GraphContext, node: str, x: ir.Value, axes: Sequence[int], keepdims: bool) -> ir.Value:
    """`node` is one of ReduceMean, ReduceMax, ReduceMin, ReduceSum."""
    if node == "ReduceSum" or cx.opset >= 18:
        return getattr(cx.op, node)(x, list(axes), keepdims=int(keepdims))
    return getattr(cx.op, node)(x, axes=list(axes), keepdims=int(keepdims))


def reduce(cx: GraphContext, node: str, x: ir.Value, axes: Sequence[int], keepdims: bool) -> ir.Value:
    """Reduces, or returns x if `axes` is empty, which a node would read as all axes."""
    return reduced(cx, node, x, axes, keepdims) if axes else x


def dims(cx: GraphContext, operation: Any, argument: str, sizes: Any) -> ir.Value | list[int]:
    """Sizes as an input of a node: numbers, or a vector of numbers and scalars of the graph."""
    if isinstance(sizes, ir.Value):
        return sizes
    sizes = list(sizes) if isinstance(sizes, (list, tuple)) else as_array(sizes).reshape(-1).tolist()
    if all(isinstance(n, (int, np.integer)) for n in sizes):
        return [int(n) for n in sizes]
    if not all(isinstance(n, (int, np.integer, ir.Value)) for n in sizes):
        raise refuse(cx, operation, argument, sizes, "Pass integers.")
    return cx.vector(sizes)


def scalar(x: Any) -> Any:
    """An integer as a scalar input of a node."""
    return x if isinstance(x, ir.Value) else np.int64(x)


def length_of(cx: GraphContext, x: ir.Value, axis: int) -> Any:
    """The size of an axis: a number, or a scalar of the graph where it is not known."""
    size = shape_of(x)[axis]
    if size is not None:
        return size
    axis %= len(shape_of(x))
    return cx.op.Squeeze(cx.op.Shape(x, start=axis, end=axis + 1), [0])
