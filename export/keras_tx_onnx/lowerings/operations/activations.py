"""Activations among the operations of keras.ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.nodes.activations import WRITTEN
from keras_tx_onnx.lowerings.operations.arguments import as_float, as_given, is_float, refuse
from keras_tx_onnx.reading.registry import lowers

# Operation: the function of keras.ops, the settings that the operation holds, the nodes.
ACTIVATIONS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "Relu6": ("relu6", (), "Clip"),
    "Sigmoid": ("sigmoid", (), "Sigmoid"),
    "Silu": ("silu", (), "Sigmoid Mul"),
    "Gelu": ("gelu", ("approximate",), "Gelu"),
    "Softplus": ("softplus", (), "Softplus"),
    "Softsign": ("softsign", (), "Softsign"),
    "SoftShrink": ("soft_shrink", ("threshold",), "Shrink"),
    "HardShrink": ("hard_shrink", ("threshold",), "Shrink"),
    "TanhShrink": ("tanh_shrink", (), "Tanh Sub"),
    "SparsePlus": ("sparse_plus", (), "Add Relu Less Mul Mul Where"),
    "SparseSigmoid": ("sparse_sigmoid", (), "Add Mul Clip"),
    "Squareplus": ("squareplus", ("b",), "Mul Add Sqrt Add Mul"),
    "LogSigmoid": ("log_sigmoid", (), "Neg Softplus Neg"),
    "LeakyRelu": ("leaky_relu", ("negative_slope",), "LeakyRelu"),
    "HardSigmoid": ("hard_sigmoid", (), "HardSigmoid"),
    "HardSilu": ("hard_silu", (), "HardSwish"),
    "HardTanh": ("hard_tanh", (), "Clip"),
    "Elu": ("elu", ("alpha",), "Elu"),
    "Selu": ("selu", (), "Selu"),
    "Celu": ("celu", ("alpha",), "Celu"),
    "Glu": ("glu", ("axis",), "Split Sigmoid Mul"),
    "Threshold": ("threshold", ("threshold", "default_value"), "Greater Where"),
    "Sparsemax": (
        "sparsemax",
        ("axis",),
        "Shape Gather Squeeze TopK CumSum Add Range Cast Sub Div Greater Cast ReduceSum Where ReduceSum "
        "Sub Div Sub Relu",
    ),
}


def _register(operation_name: str, name: str, settings: tuple[str, ...], nodes: str) -> None:
    function: Callable[..., Any] = getattr(ops, name)
    given = (0.1, -1.0) if name == "threshold" else ()

    @lowers(operation_name, example=lambda x: function(x, *given), shape=(4,), nodes=nodes)
    def lower(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
        options = {setting: getattr(operation, setting) for setting in settings}
        return WRITTEN[name](cx, as_float(cx, x), **options)


for _operation, (_name, _settings, _nodes) in ACTIVATIONS.items():
    _register(_operation, _name, _settings, _nodes)


@lowers("Relu", example=lambda x: ops.relu(x), shape=(4,), nodes="Relu")
def relu(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    if is_float(x):
        return cx.op.Relu(as_float(cx, x))
    return cx.op.Max(as_given(cx, x), np.int64(0))


def _over_an_axis(cx: GraphContext, operation: Any, x: Any, node: str) -> ir.Value:
    value, axis = as_float(cx, x), operation.axis
    if isinstance(axis, int):
        return getattr(cx.op, node)(value, axis=axis)
    if axis is not None:
        raise refuse(cx, operation, "axis", axis, "One axis has, and None for all.")
    flat = getattr(cx.op, node)(cx.op.Reshape(value, [-1]), axis=0)
    return cx.op.Reshape(flat, cx.op.Shape(value))


@lowers("Softmax", example=lambda x: ops.softmax(x), shape=(4,), nodes="Softmax")
def softmax(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return _over_an_axis(cx, operation, x, "Softmax")


@lowers("LogSoftmax", example=lambda x: ops.log_softmax(x), shape=(4,), nodes="LogSoftmax")
def log_softmax(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return _over_an_axis(cx, operation, x, "LogSoftmax")
