"""Dense layers, also quantized ones, and the layers that are identities at inference."""

from __future__ import annotations

import math
from typing import Any

import keras
import onnx_ir as ir
from keras import layers

from keras_tx.errors import ExportError
from keras_tx.layers.low_rank import LowRankDense, LowRankEinsumDense
from keras_tx_onnx.graph.builder import GraphContext, shape_of
from keras_tx_onnx.lowerings.activations import activate
from keras_tx_onnx.lowerings.nodes.arguments import reduced
from keras_tx_onnx.reading.registry import lowers


@lowers(
    LowRankDense,
    example=lambda x: LowRankDense(4, activation="gelu", adapter={"rank": 2, "alpha": 2.0})(x),
    shape=(5, 8),
    nodes="MatMul Add Gelu",
)
@lowers(
    layers.Dense,
    example=lambda x: layers.Dense(4, activation="gelu")(x),
    shape=(5, 8),
    nodes="MatMul Add Gelu",
)
def dense(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return activate(cx, layer.activation, project(cx, layer, inputs))


def project(cx: GraphContext, layer: Any, x: ir.Value) -> ir.Value:
    """A dense layer without its activation."""
    x = _times(cx, layer, cx.floating(x), tuple(layer.kernel.shape))
    return x if layer.bias is None else cx.op.Add(x, cx.weight(layer.bias))


@lowers(
    LowRankEinsumDense,
    example=lambda x: LowRankEinsumDense(
        "abc,cd->abd", (None, 4), bias_axes="d", adapter={"rank": 2, "alpha": 2.0}
    )(x),
    shape=(5, 8),
    nodes="MatMul Add",
)
@lowers(
    layers.EinsumDense,
    example=lambda x: layers.EinsumDense("abc,cd->abd", (None, 4), bias_axes="d")(x),
    shape=(5, 8),
    nodes="MatMul Add",
)
def einsum_dense(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    x = _product(cx, layer, inputs)
    if layer.bias is not None:
        x = cx.op.Add(x, cx.weight(layer.bias))
    return activate(cx, layer.activation, x)


def _times(cx: GraphContext, layer: Any, x: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """x times the kernel of a dense layer as a matrix of this shape."""
    kernel = cx.weight(layer.kernel, shape=shape)
    if is_quantized(layer):
        return int8_product(cx, layer, x, kernel, flat_scale(cx, layer.kernel_scale))
    return cx.op.MatMul(x, kernel)


def _product(cx: GraphContext, layer: Any, x: ir.Value) -> ir.Value:
    """A MatMul where the summed axes are the last of x and the first of the kernel, else an Einsum."""
    equation = layer.equation.replace(" ", "")
    left, _, result = equation.partition("->")
    inputs, _, kernel = left.partition(",")
    inputs, kernel, result = (part.replace("...", "…") for part in (inputs, kernel, result))
    summed = "".join(axis for axis in inputs if axis in kernel and axis not in result)
    columns = kernel.removeprefix(summed)
    free = inputs.removesuffix(summed)
    plain = summed and kernel == summed + columns and inputs == free + summed and result == free + columns
    if not plain or set(free) & set(columns):
        if is_quantized(layer):
            raise ExportError(
                f"Layer {cx.scope!r} is quantized in Keras and has equation={equation!r}, which is no "
                "plain product. Export the model before quantization."
            )
        return cx.op.Einsum(x, cx.weight(layer.kernel), equation=equation)
    shape = tuple(layer.kernel.shape)
    inner, outer = shape[: len(summed)], shape[len(summed) :]
    same = [0] * (len(shape_of(x)) - len(inner))  # in a Reshape: the size of the same axis before
    width = math.prod(inner)
    if len(inner) > 1:
        x = cx.op.Reshape(x, [*same, width])
    x = _times(cx, layer, x, (width, math.prod(outer)))
    return cx.op.Reshape(x, [*same, *outer]) if len(outer) != 1 else x


@lowers(layers.Identity, example=lambda x: layers.Identity()(x), shape=(4,), nodes="")
@lowers(layers.Dropout, example=lambda x: layers.Dropout(0.5)(x), shape=(4,), nodes="")
@lowers(layers.AlphaDropout, example=lambda x: layers.AlphaDropout(0.5)(x), shape=(4,), nodes="")
@lowers(layers.GaussianDropout, example=lambda x: layers.GaussianDropout(0.5)(x), shape=(4,), nodes="")
@lowers(layers.GaussianNoise, example=lambda x: layers.GaussianNoise(0.5)(x), shape=(4,), nodes="")
@lowers(layers.SpatialDropout1D, example=lambda x: layers.SpatialDropout1D(0.5)(x), shape=(4, 3), nodes="")
@lowers(layers.SpatialDropout2D, example=lambda x: layers.SpatialDropout2D(0.5)(x), shape=(4, 5, 3), nodes="")
@lowers(
    layers.SpatialDropout3D, example=lambda x: layers.SpatialDropout3D(0.5)(x), shape=(4, 5, 2, 3), nodes=""
)
@lowers(
    layers.ActivityRegularization,
    example=lambda x: layers.ActivityRegularization(0.1)(x),
    shape=(4,),
    nodes="",
)
def nothing_at_inference(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return inputs


# -- layers that Keras quantized to int8: weights and products stay int8 --------------------------------


def int8_product(cx: GraphContext, layer: Any, x: ir.Value, kernel: ir.Value, scale: ir.Value) -> ir.Value:
    """x times an int8 kernel (inner, outer) with a scale for each column, (outer,).

    The layer's quantizer rounds each row of x to a separate range. That row is shifted by 128, because
    onnxruntime is fast on unsigned by signed products, and very slow on signed by signed.
    """
    quantizer = check_int8(cx, layer).inputs_quantizer
    if quantizer is None:
        return cx.op.Div(cx.op.MatMul(x, cx.op.Cast(kernel, to=ir.DataType.FLOAT)), scale)
    if type(quantizer) is not keras.quantizers.AbsMaxQuantizer:
        raise ExportError(
            f"Layer {cx.scope!r} has inputs_quantizer={type(quantizer).__name__}, expected AbsMaxQuantizer."
        )
    low, high = quantizer.value_range
    largest = reduced(cx, "ReduceMax", cx.op.Abs(x), [-1], keepdims=True)
    steps = cx.op.Div(float(high), cx.op.Add(largest, float(quantizer.epsilon)))
    rounded = cx.op.Clip(cx.op.Round(cx.op.Mul(x, steps)), float(low), float(high))
    unsigned = cx.op.Cast(cx.op.Add(rounded, 128.0), to=ir.DataType.UINT8)
    whole = cx.op.MatMulInteger(unsigned, kernel, cx.constant(128, "uint8"))
    return cx.op.Div(cx.op.Cast(whole, to=ir.DataType.FLOAT), cx.op.Mul(steps, scale))


def int8_rows(cx: GraphContext, layer: Any, ids: ir.Value) -> ir.Value:
    """Rows of an int8 table with a scale for each row."""
    check_int8(cx, layer)
    rows = cx.op.Cast(cx.op.Gather(cx.weight(layer.embeddings), ids, axis=0), to=ir.DataType.FLOAT)
    scales = cx.op.Gather(cx.weight(layer.embeddings_scale), ids, axis=0)
    return cx.op.Div(rows, cx.op.Unsqueeze(scales, [-1]))


def int8_logits(cx: GraphContext, layer: Any, x: ir.Value) -> ir.Value:
    """The logits of ReversibleEmbedding; a tied table is transposed in the graph, and stored once."""
    if not layer.tie_weights:
        kernel = cx.weight(layer.reverse_embeddings)
        return int8_product(cx, layer, x, kernel, flat_scale(cx, layer.reverse_embeddings_scale))
    kernel = cx.op.Transpose(cx.weight(layer.embeddings), perm=[1, 0])
    return int8_product(cx, layer, x, kernel, flat_scale(cx, layer.embeddings_scale))


def flat_scale(cx: GraphContext, variable: Any) -> ir.Value:
    """The scale of a kernel, one number for each of its columns."""
    return cx.weight(variable, shape=(math.prod(variable.shape),))


def is_quantized(layer: Any) -> bool:
    return getattr(layer, "quantization_mode", None) is not None


def check_int8(cx: GraphContext, layer: Any) -> Any:
    """The layer; raises an ExportError if its quantization is not supported."""
    if layer.quantization_mode != "int8":
        raise ExportError(
            f"Layer {cx.scope!r} has quantization_mode={layer.quantization_mode!r}. Only int8 is "
            "supported: export the model before quantization."
        )
    if getattr(layer, "lora_enabled", False):
        raise ExportError(
            f"Layer {cx.scope!r} is quantized and has LoRA weights, which is not supported. Merge them "
            "before quantizing."
        )
    return layer
