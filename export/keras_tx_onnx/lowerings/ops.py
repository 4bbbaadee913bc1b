"""Operations of keras.ops, by the name of their class."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx.errors import ExportError
from keras_tx_onnx.context import KERAS_TENSOR, Context, shape_of
from keras_tx_onnx.lowerings import activations
from keras_tx_onnx.registry import lowers


@lowers("Add", example=lambda x: ops.add(x, 1.0), shape=(4,), nodes="Add")
def add(cx: Context, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    return cx.op.Add(*_operands(cx, x1, x2))


@lowers("Subtract", example=lambda x: 1.0 - x, shape=(4,), nodes="Sub")
def subtract(cx: Context, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    return cx.op.Sub(*_operands(cx, x1, x2))


@lowers("Multiply", example=lambda x: x * x, shape=(4,), nodes="Mul")
def multiply(cx: Context, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    return cx.op.Mul(*_operands(cx, x1, x2))


@lowers("TrueDivide", example=lambda x: x / 2.0, shape=(4,), nodes="Div")
def true_divide(cx: Context, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    return cx.op.Div(*_operands(cx, x1, x2, floating=True))


@lowers("Divide", example=lambda x: ops.divide(x, 2.0), shape=(4,), nodes="Div")
def divide(cx: Context, operation: Any, /, x1: Any, x2: Any) -> ir.Value:
    return cx.op.Div(*_operands(cx, x1, x2, floating=True))


def _operands(cx: Context, *operands: Any, floating: bool = False) -> list[Any]:
    """Two operands as one type, promoted as Keras does it: a float makes both float."""
    floating = floating or any(_is_floating(x) for x in operands)
    kind = "float32" if floating else "int64"

    def promoted(x: Any) -> Any:
        if isinstance(x, ir.Value):
            return cx.floating(x) if floating else x
        if isinstance(x, keras.Variable):
            return x
        return np.asarray(x if isinstance(x, (bool, int, float)) else ops.convert_to_numpy(x), kind)

    return [promoted(x) for x in operands]


def _is_floating(x: Any) -> bool:
    if isinstance(x, ir.Value):
        return _is_float(x)
    if isinstance(x, (bool, int, float)):
        return isinstance(x, float)
    return keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype))


@lowers("Relu", example=lambda x: ops.relu(x), shape=(4,), nodes="Relu")
def relu(cx: Context, operation: Any, /, x: ir.Value) -> ir.Value:
    return cx.op.Relu(x)


@lowers("Sigmoid", example=lambda x: ops.sigmoid(x), shape=(4,), nodes="Sigmoid")
def sigmoid(cx: Context, operation: Any, /, x: ir.Value) -> ir.Value:
    return cx.op.Sigmoid(x)


@lowers("Tanh", example=lambda x: ops.tanh(x), shape=(4,), nodes="Tanh")
def tanh(cx: Context, operation: Any, /, x: ir.Value) -> ir.Value:
    return cx.op.Tanh(x)


@lowers("Silu", example=lambda x: ops.silu(x), shape=(4,), nodes="Sigmoid Mul")
def silu(cx: Context, operation: Any, /, x: ir.Value) -> ir.Value:
    return activations.silu(cx, x)


@lowers("Gelu", example=lambda x: ops.gelu(x), shape=(4,), nodes="Gelu")
def gelu(cx: Context, operation: Any, /, x: ir.Value) -> ir.Value:
    return activations.gelu(cx, x, operation.approximate)


@lowers("Softmax", example=lambda x: ops.softmax(x), shape=(4,), nodes="Softmax")
def softmax(cx: Context, operation: Any, /, x: ir.Value) -> ir.Value:
    if not isinstance(operation.axis, int):
        raise ExportError(
            f"The operation {cx.scope!r} has axis={operation.axis!r}; a softmax over one axis has a lowering."
        )
    return cx.op.Softmax(x, axis=operation.axis)


@lowers("Concatenate", example=lambda x: ops.concatenate([x, x], axis=1), shape=(4, 3), nodes="Concat")
def concatenate(cx: Context, operation: Any, /, xs: list[ir.Value]) -> ir.Value:
    return cx.op.Concat(*xs, axis=operation.axis)


@lowers("Transpose", example=lambda x: ops.transpose(x, (0, 2, 1)), shape=(4, 3), nodes="Transpose")
def transpose(cx: Context, operation: Any, /, x: ir.Value) -> ir.Value:
    axes = operation.axes or tuple(reversed(range(len(shape_of(x)))))
    return cx.op.Transpose(x, perm=[axis % len(shape_of(x)) for axis in axes])


@lowers("Cast", example=lambda x: ops.cast(x, "float32"), shape=(4,), nodes="")
def cast(cx: Context, operation: Any, /, x: ir.Value) -> ir.Value:
    """Between floating-point types nothing: the file computes in float32 under every policy."""
    if keras.backend.is_float_dtype(operation.dtype) and _is_float(x):
        return x
    raise ExportError(f"The operation {cx.scope!r} casts to {operation.dtype!r}, which has no lowering.")


def _is_float(x: ir.Value) -> bool:
    return keras.backend.is_float_dtype(x.meta[KERAS_TENSOR].dtype)


@lowers("GetItem", example=lambda x: x[:, -1, None, 1:3], shape=(4, 3), nodes="Slice Gather Unsqueeze")
def get_item(cx: Context, operation: Any, /, x: ir.Value, key: Any) -> ir.Value:
    """Slices first, then the indices, which remove their axis, then the new axes."""
    keys = list(key) if isinstance(key, (tuple, list)) else [key]
    if not all(k is None or k is Ellipsis or isinstance(k, (int, slice)) for k in keys):
        raise ExportError(
            f"The operation {cx.scope!r} indexes with {key!r}; integers and slices have a lowering."
        )
    used = sum(k is not None and k is not Ellipsis for k in keys)
    missing = [slice(None)] * (len(shape_of(x)) - used)
    at = keys.index(Ellipsis) if Ellipsis in keys else len(keys)
    keys = [*keys[:at], *missing, *keys[at + 1 :]]

    axes = [k for k in keys if k is not None]
    slices = [(axis, k) for axis, k in enumerate(axes) if isinstance(k, slice) and k != slice(None)]
    if slices:
        far = 2**62
        steps = [1 if k.step is None else k.step for _, k in slices]
        starts = [
            (far if step < 0 else 0) if k.start is None else k.start
            for (_, k), step in zip(slices, steps, strict=True)
        ]
        ends = [
            (-far if step < 0 else far) if k.stop is None else k.stop
            for (_, k), step in zip(slices, steps, strict=True)
        ]
        x = cx.op.Slice(x, starts, ends, [axis for axis, _ in slices], steps)
    for axis in reversed(range(len(axes))):
        if isinstance(axes[axis], int):
            x = cx.op.Gather(x, axes[axis], axis=axis)
    kept = [k for k in keys if not isinstance(k, int)]
    added = [axis for axis, k in enumerate(kept) if k is None]
    return cx.op.Unsqueeze(x, added) if added else x
