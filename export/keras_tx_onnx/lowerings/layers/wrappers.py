"""Layers around a function, a layer or several."""

from __future__ import annotations

from typing import Any

import keras
import onnx_ir as ir
from keras import layers

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext, shape_of
from keras_tx_onnx.lowerings.layers.dense import dense
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.keras_masks import MASK
from keras_tx_onnx.reading.registry import lowers, opens

opens(layers.Lambda, example=lambda x: layers.Lambda(lambda y: 2 * y)(x), shape=(None, 4), nodes="Mul")
opens(
    layers.SpectralNormalization,
    example=lambda x: layers.SpectralNormalization(layers.Dense(3))(x),
    shape=(None, 4),
    nodes="MatMul Add",
)
opens(
    layers.Pipeline,
    example=lambda x: layers.Pipeline([layers.Rescaling(0.5), layers.ReLU()])(x),
    shape=(5, 6, 3),
    nodes="Mul Add Relu",
)


@lowers(
    layers.TimeDistributed,
    example=lambda x: layers.TimeDistributed(layers.Conv1D(2, 3))(x),
    shape=(None, 5, 4),
    nodes="Shape Reshape Transpose Conv Transpose Concat Reshape",
)
def time_distributed(cx: GraphContext, layer: Any, /, inputs: ir.Value, mask: ir.Value | None = None) -> Any:
    """The layer inside works on (batch * time, ...)."""
    inner = layer.layer
    if type(inner) is layers.Dense:
        return dense(cx, inner, inputs)
    x = _merged(cx, inputs)
    options = {}
    if mask is not None and functional_graph.is_function(inner):
        x.meta[MASK] = _merged(cx, mask)
    elif mask is not None and inner._call_has_mask_arg:
        if len(shape_of(mask)) < 3:
            raise ExportError(
                f"Layer {cx.scope!r} passes {inner.name!r} a mask with one number for each time step, which "
                "it does not support. Remove the mask, or use the layer without TimeDistributed."
            )
        options["mask"] = _merged(cx, mask)
    y = lower_inner(cx, inner, x, **options)
    sizes = cx.op.Shape(inputs, start=0, end=2)
    rest = shape_of(y)[1:]
    rest = cx.op.Shape(y, start=1) if None in rest else list(rest)
    return cx.op.Reshape(y, cx.op.Concat(sizes, rest, axis=0))


def _merged(cx: GraphContext, x: ir.Value) -> ir.Value:
    shape = shape_of(x)
    if None in shape[2:]:
        merged = cx.op.Reshape(x, cx.op.Concat([-1], cx.op.Shape(x, start=2), axis=0))
    else:
        merged = cx.op.Reshape(x, [-1, *shape[2:]])
    merged.meta[KERAS_TENSOR] = keras.KerasTensor((None, *shape[2:]), x.meta[KERAS_TENSOR].dtype)
    return merged


def lower_inner(cx: GraphContext, layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Lowers the call of a layer that another one holds."""
    assert cx.lower_call_of is not None
    return cx.lower_call_of(cx, lambda *args, **kwargs: layer(*args, **kwargs), *args, **kwargs)
