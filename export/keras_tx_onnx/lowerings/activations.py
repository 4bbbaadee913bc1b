"""Activations as nodes, for layers that carry one and for the operations of keras.ops."""

from __future__ import annotations

import math
from typing import Any

import keras
import onnx_ir as ir

from keras_tx.errors import ExportError
from keras_tx_onnx.context import Context


def gelu(cx: Context, x: ir.Value, approximate: bool) -> ir.Value:
    if cx.opset >= 20:
        return cx.op.Gelu(x, approximate="tanh" if approximate else "none")
    if approximate:
        cubic = cx.op.Mul(cx.op.Mul(cx.op.Mul(x, x), x), 0.044715)
        inner = cx.op.Tanh(cx.op.Mul(cx.op.Add(x, cubic), math.sqrt(2 / math.pi)))
    else:
        inner = cx.op.Erf(cx.op.Mul(x, math.sqrt(0.5)))
    return cx.op.Mul(cx.op.Mul(x, 0.5), cx.op.Add(inner, 1.0))


def silu(cx: Context, x: ir.Value) -> ir.Value:
    return cx.op.Mul(x, cx.op.Sigmoid(x))


def activate(cx: Context, activation: Any, x: ir.Value) -> ir.Value:
    """The activation of a Keras layer, which is one of keras.activations."""
    name = getattr(activation, "__name__", type(activation).__name__)
    if getattr(keras.activations, name, None) is not activation:
        raise ExportError(
            f"The activation {name!r} of layer {cx.scope!r} is not one of keras.activations. Put it into "
            "the graph "
            "with keras.ops, as an operation after the layer."
        )
    if name == "linear":
        return x
    if name == "gelu":
        return gelu(cx, x, approximate=False)
    if name == "silu":
        return silu(cx, x)
    if name == "softmax":
        return cx.op.Softmax(x, axis=-1)
    if name in SAME_NAME:
        return getattr(cx.op, SAME_NAME[name])(x)
    raise ExportError(
        f"The activation {name!r} of layer {cx.scope!r} has no ONNX lowering. Known: "
        f"{', '.join(sorted(['linear', 'gelu', 'silu', 'softmax', *SAME_NAME]))}."
    )


SAME_NAME = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "softplus": "Softplus",
    "softsign": "Softsign",
}
