"""Activations as nodes, for layers that carry one and for the operations of keras.ops."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import GraphContext


def gelu(cx: GraphContext, x: ir.Value, approximate: bool = False) -> ir.Value:
    if cx.opset >= 20:
        return cx.op.Gelu(x, approximate="tanh" if approximate else "none")
    if approximate:
        cubic = cx.op.Mul(cx.op.Mul(cx.op.Mul(x, x), x), 0.044715)
        inner = cx.op.Tanh(cx.op.Mul(cx.op.Add(x, cubic), math.sqrt(2 / math.pi)))
    else:
        inner = cx.op.Erf(cx.op.Mul(x, math.sqrt(0.5)))
    return cx.op.Mul(cx.op.Mul(x, 0.5), cx.op.Add(inner, 1.0))


def silu(cx: GraphContext, x: ir.Value) -> ir.Value:
    return cx.op.Mul(x, cx.op.Sigmoid(x))


def mish(cx: GraphContext, x: ir.Value) -> ir.Value:
    if cx.opset >= 18:
        return cx.op.Mish(x)
    return cx.op.Mul(x, cx.op.Tanh(cx.op.Softplus(x)))


def relu(
    cx: GraphContext,
    x: ir.Value,
    negative_slope: float = 0.0,
    max_value: float | None = None,
    threshold: float = 0.0,
) -> ir.Value:
    if negative_slope and max_value is None and not threshold:
        return cx.op.LeakyRelu(x, alpha=float(negative_slope))
    if threshold:
        positive = cx.op.Where(cx.op.Greater(x, float(threshold)), x, 0.0)
        if max_value is not None:
            positive = cx.op.Clip(positive, 0.0, float(max_value))
    elif max_value is not None:
        positive = cx.op.Clip(x, 0.0, float(max_value))
    else:
        positive = cx.op.Relu(x)
    if not negative_slope:
        return positive
    below = cx.op.Relu(cx.op.Sub(float(threshold), x))
    return cx.op.Sub(positive, cx.op.Mul(below, float(negative_slope)))


def leaky_relu(cx: GraphContext, x: ir.Value, negative_slope: float = 0.2) -> ir.Value:
    return cx.op.LeakyRelu(x, alpha=float(negative_slope))


def elu(cx: GraphContext, x: ir.Value, alpha: float = 1.0) -> ir.Value:
    return cx.op.Elu(x, alpha=float(alpha))


def celu(cx: GraphContext, x: ir.Value, alpha: float = 1.0) -> ir.Value:
    if alpha <= 0:  # Celu takes the smaller of 0 and what Keras adds, which below 0 is another one
        raise ExportError(f"Layer {cx.scope!r} has celu with alpha={alpha}; above 0 it has a lowering.")
    return cx.op.Celu(x, alpha=float(alpha))


def glu(cx: GraphContext, x: ir.Value, axis: int = -1) -> ir.Value:
    halves = {"num_outputs": 2} if cx.opset >= 18 else {}
    first, gate = cx.op.Split(x, outputs=2, axis=axis, **halves)
    return cx.op.Mul(first, cx.op.Sigmoid(gate))


def softmax(cx: GraphContext, x: ir.Value, axis: int = -1) -> ir.Value:
    return cx.op.Softmax(x, axis=_one(cx, "softmax", axis))


def log_softmax(cx: GraphContext, x: ir.Value, axis: int = -1) -> ir.Value:
    return cx.op.LogSoftmax(x, axis=_one(cx, "log_softmax", axis))


def _one(cx: GraphContext, name: str, axis: Any) -> int:
    if not isinstance(axis, int):
        raise ExportError(f"Layer {cx.scope!r} has {name} with axis={axis!r}; one axis has a lowering.")
    return axis


def sparsemax(cx: GraphContext, x: ir.Value, axis: int = -1) -> ir.Value:
    if axis >= 0:
        raise ExportError(
            f"Layer {cx.scope!r} has sparsemax over axis={axis}; count it from the end, axis=-1."
        )
    size = cx.op.Gather(cx.op.Shape(x), [axis], axis=0)
    ranked, _ = cx.op.TopK(x, size, outputs=2, axis=axis)
    sums = cx.op.CumSum(ranked, np.int64(axis))
    ranks = cx.op.Range(np.int64(1), cx.op.Add(cx.op.Squeeze(size, [0]), np.int64(1)), np.int64(1))
    ranks = cx.op.Cast(ranks, to=ir.DataType.FLOAT)
    if axis < -1:
        ranks = cx.op.Unsqueeze(ranks, list(range(1, -axis)))
    support = cx.op.Greater(ranked, cx.op.Div(cx.op.Sub(sums, 1.0), ranks))
    count = cx.op.ReduceSum(cx.op.Cast(support, to=ir.DataType.FLOAT), [axis])
    total = cx.op.ReduceSum(cx.op.Where(support, sums, 0.0), [axis])  # of the sums, as Keras has it
    return cx.op.Relu(cx.op.Sub(x, cx.op.Div(cx.op.Sub(total, 1.0), count)))


def squareplus(cx: GraphContext, x: ir.Value, b: float = 4) -> ir.Value:
    root = cx.op.Sqrt(cx.op.Add(cx.op.Mul(x, x), float(b)))
    return cx.op.Mul(cx.op.Add(x, root), 0.5)


def sparse_plus(cx: GraphContext, x: ir.Value) -> ir.Value:
    shifted = cx.op.Relu(cx.op.Add(x, 1.0))
    return cx.op.Where(cx.op.Less(x, 1.0), cx.op.Mul(cx.op.Mul(shifted, shifted), 0.25), x)


def sparse_sigmoid(cx: GraphContext, x: ir.Value) -> ir.Value:
    return cx.op.Clip(cx.op.Mul(cx.op.Add(x, 1.0), 0.5), 0.0, 1.0)


def soft_shrink(cx: GraphContext, x: ir.Value, threshold: float = 0.5) -> ir.Value:
    return cx.op.Shrink(x, bias=float(threshold), lambd=float(threshold))


def hard_shrink(cx: GraphContext, x: ir.Value, threshold: float = 0.5) -> ir.Value:
    return cx.op.Shrink(x, bias=0.0, lambd=float(threshold))


def threshold(cx: GraphContext, x: ir.Value, threshold: float, default_value: float) -> ir.Value:
    return cx.op.Where(cx.op.Greater(x, float(threshold)), x, float(default_value))


Write = Callable[..., ir.Value]

WRITTEN: dict[str, Write] = {
    "celu": celu,
    "elu": elu,
    "exponential": lambda cx, x: cx.op.Exp(x),
    "gelu": gelu,
    "glu": glu,
    "hard_shrink": hard_shrink,
    "hard_sigmoid": lambda cx, x: cx.op.HardSigmoid(x, alpha=1 / 6, beta=0.5),
    "hard_silu": lambda cx, x: cx.op.HardSwish(x),
    "hard_tanh": lambda cx, x: cx.op.Clip(x, -1.0, 1.0),
    "leaky_relu": leaky_relu,
    "linear": lambda cx, x: x,
    "log_sigmoid": lambda cx, x: cx.op.Neg(cx.op.Softplus(cx.op.Neg(x))),
    "log_softmax": log_softmax,
    "mish": mish,
    "relu": relu,
    "relu6": lambda cx, x: cx.op.Clip(x, 0.0, 6.0),
    "selu": lambda cx, x: cx.op.Selu(x),
    "sigmoid": lambda cx, x: cx.op.Sigmoid(x),
    "silu": silu,
    "soft_shrink": soft_shrink,
    "softmax": softmax,
    "softplus": lambda cx, x: cx.op.Softplus(x),
    "softsign": lambda cx, x: cx.op.Softsign(x),
    "sparse_plus": sparse_plus,
    "sparse_sigmoid": sparse_sigmoid,
    "sparsemax": sparsemax,
    "squareplus": squareplus,
    "tanh": lambda cx, x: cx.op.Tanh(x),
    "tanh_shrink": lambda cx, x: cx.op.Sub(x, cx.op.Tanh(x)),
    "threshold": threshold,
}

# By the function and not by its name: a user's own function may be called relu, too.
_BY_FUNCTION: dict[Any, Write] = {
    **{getattr(ops, name): write for name, write in WRITTEN.items() if hasattr(ops, name)},
    **{getattr(keras.activations, name): write for name, write in WRITTEN.items()},
    ops.exp: WRITTEN["exponential"],
    ops.gelu: functools.partial(gelu, approximate=True),  # the default differs from that of the activation
}


def activate(cx: GraphContext, activation: Any, x: ir.Value) -> ir.Value:
    """The activation of a layer: one of keras.activations, a functools.partial of one, or any function."""
    options: dict[str, Any] = {}
    function = activation
    if isinstance(activation, functools.partial) and not activation.args:
        function, options = activation.func, activation.keywords
    if function is None:
        return x
    write = _BY_FUNCTION.get(function)
    if write is None:
        return cx.opened(activation, x)
    if write is glu:
        raise ExportError(
            f"Layer {cx.scope!r} has the activation 'glu', which halves an axis, while Keras tells the "
            "layers behind it that nothing is halved. Apply keras.ops.glu to what the layer gives without it."
        )
    if write is glu:
        raise ExportError(
            f"Layer {cx.scope!r} has the activation 'glu', which halves an axis, while Keras tells the "
            "layers behind it that nothing is halved. Apply keras.ops.glu to what the layer gives without it."
        )
    return write(cx, x, **options)
