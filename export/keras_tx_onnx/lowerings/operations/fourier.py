"""Fourier transforms of keras.ops as products with matrices of cosines and sines, at any length."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.nodes.arguments import as_float, length_of, rank_of, refuse, sizes_of
from keras_tx_onnx.reading.registry import lowers

Complex = tuple[ir.Value, ir.Value | None]  # the imaginary part is None where it is zero


def waves(cx: GraphContext, size: Any) -> tuple[ir.Value, ir.Value]:
    """Cosine and sine (size, size) of the angle of row times column."""
    if not isinstance(size, ir.Value):
        steps = np.arange(size)
        angle = np.outer(steps, steps) % size * (2 * np.pi / size)
        return cx.constant(np.cos(angle)), cx.constant(np.sin(angle))
    steps = cx.op.Range(np.int64(0), size, np.int64(1))
    turns = cx.op.Mod(cx.op.Mul(cx.op.Unsqueeze(steps, [1]), steps), size)  # whole turns lose no digits here
    part = cx.op.Div(2 * math.pi, cx.op.Cast(size, to=ir.DataType.FLOAT))
    angle = cx.op.Mul(cx.op.Cast(turns, to=ir.DataType.FLOAT), part)
    return cx.op.Cos(angle), cx.op.Sin(angle)


def _last(cx: GraphContext, x: Complex, size: Any, sign: int = 1) -> Complex:
    """Along the last axis: (real + i imaginary) (cosine - i sine)."""
    (real, imaginary), (cosine, sine) = x, waves(cx, size)
    if sign < 0:
        sine = cx.op.Neg(sine)
    if imaginary is None:
        return cx.op.MatMul(real, cosine), cx.op.Neg(cx.op.MatMul(real, sine))
    return (
        cx.op.Add(cx.op.MatMul(real, cosine), cx.op.MatMul(imaginary, sine)),
        cx.op.Sub(cx.op.MatMul(imaginary, cosine), cx.op.MatMul(real, sine)),
    )


def _rows(cx: GraphContext, x: Complex, size: Any, sign: int = 1) -> Complex:
    """The same along the axis before the last, from the left."""
    (real, imaginary), (cosine, sine) = x, waves(cx, size)
    assert imaginary is not None
    if sign < 0:
        sine = cx.op.Neg(sine)
    return (
        cx.op.Add(cx.op.MatMul(cosine, real), cx.op.MatMul(sine, imaginary)),
        cx.op.Sub(cx.op.MatMul(cosine, imaginary), cx.op.MatMul(sine, real)),
    )


def _parts(cx: GraphContext, x: Any) -> Complex:
    real, imaginary = x
    return as_float(cx, real), None if _is_zero(imaginary) else as_float(cx, imaginary)


def _is_zero(x: Any) -> bool:
    """Whether a value is zeros in any shape, as zeros_like makes them."""
    if not isinstance(x, ir.Value):
        return not np.any(ops.convert_to_numpy(x))
    node = x.producer()
    source = x if node is None else node.inputs[0] if node.op_type == "Expand" else None
    return source is not None and source.const_value is not None and not source.const_value.numpy().any()


@lowers(
    "FFT",
    example=lambda x: ops.fft((x, x * 2))[0],
    shape=(4, 6),
    nodes="Mul MatMul MatMul Add",
)
def fft(cx: GraphContext, operation: Any, /, x: Any) -> Complex:
    return _last(cx, _parts(cx, x), length_of(cx, x[0], -1))


@lowers(
    "FFT2",
    example=lambda x: ops.fft2((x, ops.zeros_like(x)))[0],
    shape=(4, 6),
    nodes="MatMul MatMul Neg MatMul MatMul Add",
)
def fft2(cx: GraphContext, operation: Any, /, x: Any) -> Complex:
    real = x[0]
    return _rows(cx, _last(cx, _parts(cx, x), length_of(cx, real, -1)), length_of(cx, real, -2))


@lowers(
    "IFFT2",
    example=lambda x: ops.ifft2((x, x * 2))[0],
    shape=(4, 6),
    nodes="Mul Neg MatMul MatMul Add MatMul MatMul Sub Neg MatMul MatMul Add Mul Div",
)
def ifft2(cx: GraphContext, operation: Any, /, x: Any) -> Complex:
    sizes = [length_of(cx, x[0], axis) for axis in (-1, -2)]
    result = _rows(cx, _last(cx, _parts(cx, x), sizes[0], -1), sizes[1], -1)
    count = cx.op.Mul(
        *(cx.op.Cast(n, to=ir.DataType.FLOAT) if isinstance(n, ir.Value) else float(n) for n in sizes)
    )
    return cx.op.Div(result[0], count), cx.op.Div(result[1], count)


@lowers("RFFT", example=lambda x: ops.rfft(x)[0], shape=(4, 6), nodes="MatMul")
def rfft(cx: GraphContext, operation: Any, /, x: Any) -> Complex:
    """The first half of the transform of numbers without imaginary parts."""
    size = sizes_of(x)[-1]
    if size is None or operation.fft_length not in (None, size) or rank_of(x) < 1:
        raise refuse(cx, operation, "fft_length", operation.fft_length, "Use the size of the axis.")
    steps = np.arange(size)
    angle = np.outer(steps, np.arange(size // 2 + 1)) % size * (2 * np.pi / size)
    value = as_float(cx, x)
    return cx.op.MatMul(value, np.cos(angle)), cx.op.MatMul(value, -np.sin(angle))
