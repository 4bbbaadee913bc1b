"""Products and lookups of layers that Keras quantized, with the integers and scales of Keras."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext
from keras_tx_onnx.lowerings.nodes.arguments import reduced
from keras_tx_onnx.lowerings.nodes.tied_projection import scores
from keras_tx_onnx.reading import quantized_layers
from keras_tx_onnx.reading.quantized_layers import mode_of

FLOAT8 = ir.DataType.FLOAT8E4M3FN
FLOAT8_FROM = 19  # the first opset with float8
LARGEST_FLOAT8 = 448.0


def check_supported(cx: GraphContext, layer: Any) -> None:
    """Raises an ExportError if the quantization of a layer is not supported."""
    mode = mode_of(layer)
    if mode is None:
        return
    if mode not in ("int8", "float8", *quantized_layers.INTEGER_MODES):
        raise ExportError(
            f"Layer {cx.scope!r} has quantization_mode={mode!r}, which is not supported. Export the model "
            "before quantization."
        )
    if getattr(layer, "lora_enabled", False):
        raise ExportError(
            f"Layer {cx.scope!r} is quantized and has LoRA weights, which is not supported. Merge them "
            "before quantizing."
        )
    if mode == "float8" and cx.opset < FLOAT8_FROM:
        raise ExportError(
            f"Layer {cx.scope!r} has quantization_mode='float8', which opset={cx.opset} does not have. Pass "
            f"opset={FLOAT8_FROM} or higher."
        )
    if quantized_layers.rounds_inputs(layer):
        _check_quantizer(cx, layer)


def _check_quantizer(cx: GraphContext, layer: Any) -> None:
    quantizer = layer.inputs_quantizer
    if type(quantizer) is not keras.quantizers.AbsMaxQuantizer:
        raise ExportError(
            f"Layer {cx.scope!r} has inputs_quantizer={type(quantizer).__name__}, expected AbsMaxQuantizer."
        )
    is_table = isinstance(layer, keras.layers.Embedding)
    if is_table and quantizer.axis not in (None, (-1,)):  # dense layers pass their own axis
        raise ExportError(
            f"Layer {cx.scope!r} has inputs_quantizer.axis={quantizer.axis}, expected (-1,), a range for "
            "each row."
        )


def quantized_product(cx: GraphContext, layer: Any, x: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """x times the kernel of a dense layer as a matrix of this shape, (inner, outer)."""
    mode = mode_of(layer)
    if mode == "int8":
        kernel = cx.weight(layer._kernel, shape=shape)
        return _int8_product(cx, layer, x, kernel, _flat_scale(cx, layer.kernel_scale))
    if mode == "float8":
        return cx.op.MatMul(_float8_inputs(cx, layer, x), _float8_kernel(cx, layer, shape))
    weight = quantized_layers.integer_kernel(layer)
    if (weight.columns, weight.rows) != shape:  # Keras divides the axes of the kernel in another way
        return cx.op.MatMul(x, cx.op.Reshape(float_kernel(cx, layer), list(shape)))
    kernel = cx.integer_weight(f"{layer.path}/kernel", weight)
    if mode == "awq":
        x = cx.op.Div(x, cx.weight(layer.awq_scales))
    return _times_integers(cx, layer, x, kernel)


def float_kernel(cx: GraphContext, layer: Any) -> ir.Value:
    """The kernel of a dense layer as floats, in its shape; an ExportError if the layer rounds its inputs."""
    mode = mode_of(layer)
    if mode is None:
        return cx.weight(layer.kernel)
    if quantized_layers.rounds_inputs(layer) or mode in ("int8", "float8"):
        raise ExportError(
            f"Layer {cx.scope!r} has quantization_mode={mode!r} and equation={layer.equation!r}, which "
            "cannot be written as a matrix product of the stored kernel. Export the model before "
            "quantization."
        )
    kernel = cx.integer_weight(f"{layer.path}/kernel", quantized_layers.integer_kernel(layer))
    if mode == "awq":
        kernel = cx.op.Div(kernel, cx.weight(layer.awq_scales, shape=(*layer.awq_scales.shape, 1)))
    return cx.op.Reshape(kernel, list(quantized_layers.kernel_shape(layer)))


def quantized_bias(cx: GraphContext, layer: Any) -> ir.Value:
    """The bias of a dense layer; in float8 mode Keras rounds it to bfloat16."""
    if mode_of(layer) != "float8":
        return cx.weight(layer.bias)
    bfloat16 = ir.DataType.BFLOAT16.numpy()
    return cx.made_of(
        layer.bias.path, [layer.bias], layer.bias.shape, lambda bias: bias.astype(bfloat16).astype("float32")
    )


def quantized_rows(cx: GraphContext, layer: Any, ids: ir.Value) -> ir.Value:
    """Rows of the table of an Embedding."""
    check_supported(cx, layer)
    if mode_of(layer) == "int4":
        return cx.op.Gather(_integer_table(cx, layer), ids, axis=0)
    rows = cx.op.Cast(cx.op.Gather(cx.weight(layer._embeddings), ids, axis=0), to=ir.DataType.FLOAT)
    scales = cx.op.Gather(cx.weight(layer.embeddings_scale), ids, axis=0)
    return cx.op.Div(rows, cx.op.Unsqueeze(scales, [-1]))


def quantized_logits(cx: GraphContext, layer: Any, x: ir.Value) -> ir.Value:
    """The logits of ReversibleEmbedding; a tied table is stored once."""
    check_supported(cx, layer)
    if mode_of(layer) == "int4":
        if layer.tie_weights:
            table = _integer_table(cx, layer)
            return _with_rounded_inputs(cx, layer, x, lambda rows: scores(cx, table, rows))
        weight = quantized_layers.integer_projection(layer)
        return _times_integers(cx, layer, x, cx.integer_weight(layer.reverse_embeddings.path, weight))
    if not layer.tie_weights:
        kernel = cx.weight(layer.reverse_embeddings)
        return _int8_product(cx, layer, x, kernel, _flat_scale(cx, layer.reverse_embeddings_scale))
    kernel = cx.op.Transpose(cx.weight(layer._embeddings), perm=[1, 0])
    return _int8_product(cx, layer, x, kernel, _flat_scale(cx, layer.embeddings_scale))


def _integer_table(cx: GraphContext, layer: Any) -> ir.Value:
    return cx.integer_weight(layer._embeddings.path, quantized_layers.integer_table(layer))


def _times_integers(cx: GraphContext, layer: Any, x: ir.Value, kernel: ir.Value) -> ir.Value:
    """x times an integer weight as a matrix (inner, outer)."""
    return _with_rounded_inputs(cx, layer, x, lambda rows: cx.op.MatMul(rows, kernel))


def _with_rounded_inputs(
    cx: GraphContext, layer: Any, x: ir.Value, times_kernel: Callable[[ir.Value], ir.Value]
) -> ir.Value:
    """The product of the kernel and x, which the layer may round to integers."""
    if not quantized_layers.rounds_inputs(layer):
        return times_kernel(x)
    rounded, steps = _rounded(cx, layer, x)
    if KERAS_TENSOR in x.meta:
        rounded.meta[KERAS_TENSOR] = x.meta[KERAS_TENSOR]
    return cx.op.Div(times_kernel(rounded), steps)


def _rounded(cx: GraphContext, layer: Any, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """x as whole numbers, each row in its own range, and how many steps 1 has in each row."""
    quantizer = layer.inputs_quantizer
    low, high = quantizer.value_range
    largest = reduced(cx, "ReduceMax", cx.op.Abs(x), [-1], keepdims=True)
    steps = cx.op.Div(float(high), cx.op.Add(largest, float(quantizer.epsilon)))
    return cx.op.Clip(cx.op.Round(cx.op.Mul(x, steps)), float(low), float(high)), steps


def _int8_product(cx: GraphContext, layer: Any, x: ir.Value, kernel: ir.Value, scale: ir.Value) -> ir.Value:
    """x times an int8 kernel (inner, outer) with a scale for each column, (outer,).

    The layer's quantizer rounds each row of x to a separate range. That row is shifted by 128, because
    onnxruntime is fast on unsigned by signed products, and very slow on signed by signed.
    """
    if not quantized_layers.rounds_inputs(layer):
        return cx.op.Div(cx.op.MatMul(x, cx.op.Cast(kernel, to=ir.DataType.FLOAT)), scale)
    rounded, steps = _rounded(cx, layer, x)
    unsigned = cx.op.Cast(cx.op.Add(rounded, 128.0), to=ir.DataType.UINT8)
    whole = cx.op.MatMulInteger(unsigned, kernel, cx.constant(128, "uint8"))
    return cx.op.Div(cx.op.Cast(whole, to=ir.DataType.FLOAT), cx.op.Mul(steps, scale))


def _flat_scale(cx: GraphContext, variable: Any) -> ir.Value:
    """The scale of a kernel, one number for each of its columns."""
    return cx.weight(variable, shape=(math.prod(variable.shape),))


def _float8_inputs(cx: GraphContext, layer: Any, x: ir.Value) -> ir.Value:
    """x rounded to float8 numbers times the scale of the layer's inputs.

    onnxruntime 1.31 fuses QuantizeLinear and DequantizeLinear into a product of integers, and refuses it.
    """
    scale = cx.weight(layer.inputs_scale)
    rounded = cx.op.Cast(cx.op.Clip(cx.op.Div(x, scale), -LARGEST_FLOAT8, LARGEST_FLOAT8), to=FLOAT8)
    return cx.op.Mul(cx.op.Cast(rounded, to=ir.DataType.FLOAT), scale)


def _float8_kernel(cx: GraphContext, layer: Any, shape: tuple[int, ...]) -> ir.Value:
    """The kernel, which the file stores as float8 numbers."""

    def rounded(kernel: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return np.clip(kernel.reshape(shape) / scale, -LARGEST_FLOAT8, LARGEST_FLOAT8)

    name, variables = f"{layer.path}/kernel", [layer._kernel, layer.kernel_scale]
    kernel = cx.made_of(name, variables, shape, rounded, FLOAT8)
    return cx.op.Mul(cx.op.Cast(kernel, to=ir.DataType.FLOAT), cx.weight(layer.kernel_scale))
