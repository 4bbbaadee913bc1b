"""The one function of keras.activations that is an operation of its own, and not one of keras.ops."""

from __future__ import annotations

from typing import Any

import keras
import onnx_ir as ir

from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.nodes import activations
from keras_tx_onnx.reading.registry import lowers


@lowers("ReLU", example=lambda x: keras.activations.relu(x, max_value=3.0), shape=(4,), nodes="Clip")
def relu(cx: GraphContext, operation: Any, /, x: ir.Value) -> ir.Value:
    return activations.relu(
        cx, cx.floating(x), operation.negative_slope, operation.max_value, operation.threshold
    )
