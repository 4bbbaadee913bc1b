"""Activations: of layers that have one, as layers, and as operations of keras.ops."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import layers, ops

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext, shape_of
from keras_tx_onnx.lowerings.nodes.arguments import as_float, as_given, is_float, reduced, refuse, upper_bound
from keras_tx_onnx.reading.registry import lowers


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
    if max_value is not None:
        max_value = float(upper_bound(0.0, max_value))
    if negative_slope and max_value is None and not threshold:
        return cx.op.LeakyRelu(x, alpha=float(negative_slope))
    if threshold:
        positive = cx.op.Where(cx.op.Greater(x, float(threshold)), x, 0.0)
        if max_value is not None:
            positive = cx.op.Clip(positive, 0.0, max_value)
    elif max_value is not None:
        positive = cx.op.Clip(x, 0.0, max_value)
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
    if alpha <= 0:  # ONNX and Keras define it differently
        raise ExportError(f"Layer {cx.scope!r} has celu with alpha={alpha}. celu requires alpha > 0.")
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
        raise ExportError(f"Layer {cx.scope!r} has {name} with axis={axis!r}. Pass one axis.")
    return axis


def sparsemax(cx: GraphContext, x: ir.Value, axis: int = -1) -> ir.Value:
    if axis >= 0:
        raise ExportError(
            f"Layer {cx.scope!r} has sparsemax with axis={axis}. Pass a negative axis, such as -1."
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
            f"Layer {cx.scope!r} has activation='glu', but Keras infers its output shape without halving an "
            "axis. Remove the activation, and apply keras.ops.glu to the output."
        )
    return write(cx, x, **options)


# -- layers ---------------------------------------------------------------------------------------------


@lowers(layers.Activation, example=lambda x: layers.Activation("tanh")(x), shape=(4,), nodes="Tanh")
def activation_layer(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return activate(cx, layer.activation, inputs)


@lowers(layers.ReLU, example=lambda x: layers.ReLU(6.0)(x), shape=(4,), nodes="Clip")
def relu_layer(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return relu(cx, inputs, layer.negative_slope, layer.max_value, layer.threshold)


@lowers(layers.LeakyReLU, example=lambda x: layers.LeakyReLU()(x), shape=(4,), nodes="LeakyRelu")
def leaky_relu_layer(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return leaky_relu(cx, inputs, layer.negative_slope)


@lowers(layers.PReLU, example=lambda x: layers.PReLU(shared_axes=[1])(x), shape=(4, 3), nodes="PRelu")
def prelu_layer(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return cx.op.PRelu(inputs, cx.weight(layer.alpha))


@lowers(layers.ELU, example=lambda x: layers.ELU(0.7)(x), shape=(4,), nodes="Elu")
def elu_layer(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return elu(cx, inputs, layer.alpha)


@lowers(layers.Softmax, example=lambda x: layers.Softmax()(x), shape=(4,), nodes="Softmax")
def softmax_layer(
    cx: GraphContext, layer: Any, /, inputs: ir.Value, mask: ir.Value | None = None
) -> ir.Value:
    """Masked entries are 0, also in a row without others."""
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
    if mask is not None:
        _check_broadcast(cx, mask, inputs)
    if mask is not None and mask.meta[KERAS_TENSOR].dtype != "bool":
        mask = cx.op.Greater(cx.floating(mask), 0.5)
    x = inputs if mask is None else cx.op.Where(mask, inputs, -1e9)
    if len(axes) == 1:
        x = cx.op.Softmax(x, axis=axes[0])
    else:
        axes = [axis % len(shape_of(inputs)) for axis in axes]
        x = cx.op.Exp(cx.op.Sub(x, reduced(cx, "ReduceMax", x, axes, keepdims=True)))
        x = cx.op.Div(x, reduced(cx, "ReduceSum", x, axes, keepdims=True))
    return x if mask is None else cx.op.Where(mask, x, 0.0)


def _check_broadcast(cx: GraphContext, mask: ir.Value, inputs: ir.Value) -> None:
    """Raises an ExportError for a mask that Keras refuses when the model is called."""
    shapes = mask.meta[KERAS_TENSOR].shape, inputs.meta[KERAS_TENSOR].shape
    pairs = zip(*(reversed(shape) for shape in shapes), strict=False)
    if len(shapes[0]) > len(shapes[1]) or any(
        size not in (None, 1) and whole not in (None, size) for size, whole in pairs
    ):
        raise ExportError(
            f"Layer {cx.scope!r} has a mask of shape {shapes[0]} for inputs of shape {shapes[1]}, and Keras "
            "refuses to call it. Pass a mask whose shape can be broadcast to that of the inputs."
        )


# -- operations of keras.ops ----------------------------------------------------------------------------


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
    extra = (0.1, -1.0) if name == "threshold" else ()

    @lowers(operation_name, example=lambda x: function(x, *extra), shape=(4,), nodes=nodes)
    def lower(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
        options = {setting: getattr(operation, setting) for setting in settings}
        return WRITTEN[name](cx, as_float(cx, x), **options)


for _operation, (_name, _settings, _nodes) in ACTIVATIONS.items():
    _register(_operation, _name, _settings, _nodes)


@lowers("Relu", example=lambda x: ops.relu(x), shape=(4,), nodes="Relu")
def relu_operation(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    if is_float(x):
        return cx.op.Relu(as_float(cx, x))
    return cx.op.Max(as_given(cx, x), np.int64(0))


def _over_an_axis(cx: GraphContext, operation: Any, x: Any, node: str) -> ir.Value:
    value, axis = as_float(cx, x), operation.axis
    if isinstance(axis, int):
        return getattr(cx.op, node)(value, axis=axis)
    if axis is not None:
        raise refuse(cx, operation, "axis", axis, "Pass one axis, or None.")
    flat = getattr(cx.op, node)(cx.op.Reshape(value, [-1]), axis=0)
    return cx.op.Reshape(flat, cx.op.Shape(value))


@lowers("Softmax", example=lambda x: ops.softmax(x), shape=(4,), nodes="Softmax")
def softmax_operation(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return _over_an_axis(cx, operation, x, "Softmax")


@lowers("LogSoftmax", example=lambda x: ops.log_softmax(x), shape=(4,), nodes="LogSoftmax")
def log_softmax_operation(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    return _over_an_axis(cx, operation, x, "LogSoftmax")


@lowers("ReLU", example=lambda x: keras.activations.relu(x, max_value=3.0), shape=(4,), nodes="Clip")
def relu_of_activations(cx: GraphContext, operation: Any, /, x: ir.Value) -> ir.Value:
    return relu(cx, cx.floating(x), operation.negative_slope, operation.max_value, operation.threshold)
