"""Layers that keras.applications brings with it, which have no public name."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from keras.src.applications.convnext import LayerScale, StochasticDepth
from keras.src.applications.inception_resnet_v2 import CustomScaleLayer

from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.reading.registry import lowers


@lowers(LayerScale, example=lambda x: LayerScale(0.5, 4)(x), shape=(4,), nodes="Mul")
def layer_scale(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return cx.op.Mul(inputs, cx.weight(layer.gamma))


@lowers(StochasticDepth, example=lambda x: StochasticDepth(0.5)(x), shape=(4,), nodes="")
def stochastic_depth(cx: GraphContext, layer: Any, /, inputs: ir.Value) -> ir.Value:
    return inputs


@lowers(CustomScaleLayer, example=lambda x: CustomScaleLayer(0.5)([x, x]), shape=(4,), nodes="Mul Add")
def scaled_residual(cx: GraphContext, layer: Any, /, inputs: list[ir.Value]) -> ir.Value:
    return cx.op.Add(inputs[0], cx.op.Mul(inputs[1], float(layer.scale)))
