"""Reductions over axes, whose axes are an attribute in old opsets and an input in new ones."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from keras_tx_onnx.graph.builder import GraphContext


def reduced(cx: GraphContext, node: str, x: ir.Value, axes: Sequence[int], keepdims: bool) -> ir.Value:
    """`node` is one of ReduceMean, ReduceMax, ReduceMin, ReduceSum."""
    if node == "ReduceSum" or cx.opset >= 18:
        return getattr(cx.op, node)(x, list(axes), keepdims=int(keepdims))
    return getattr(cx.op, node)(x, axes=list(axes), keepdims=int(keepdims))
