"""Normalizations among the operations of keras.ops, with statistics and scales that come from anywhere."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.nodes.arguments import as_float, axes_of, rank_of, reduce, refuse, sizes_of
from keras_tx_onnx.lowerings.operations.reductions import norm_of
from keras_tx_onnx.reading.registry import lowers


def _epsilon(operation: Any) -> float:
    return float(keras.config.epsilon() if operation.epsilon is None else operation.epsilon)


def _scale_of_node(x: Any, scale: Any, axes: list[int]) -> Any:
    """The scale for a node that normalizes the last axes; None where there is no such node."""
    rank, sizes = rank_of(x), [sizes_of(x)[axis] for axis in axes]
    if axes != list(range(rank - len(axes), rank)):
        return None
    if scale is None:
        return None if None in sizes else np.ones(sizes, "float32")
    return scale if list(sizes_of(scale)) == sizes else None


def _along(cx: GraphContext, x: Any, like: Any, axes: list[int]) -> ir.Value:
    """Reshaped to broadcast; a value of the full rank is unchanged."""
    value, rank = as_float(cx, x), rank_of(like)
    if rank_of(x) == rank or axes == [rank - 1]:
        return value
    shape = [1] * rank
    for axis, size in zip(axes, sizes_of(x), strict=True):
        shape[axis] = -1 if size is None else size
    return cx.op.Reshape(value, shape)


@lowers(
    "LayerNorm",
    example=lambda x: ops.layer_normalization(x, gamma=np.arange(3.0), beta=np.ones(3)),
    shape=(4, 3),
    nodes="LayerNormalization",
)
def layer_normalization(
    cx: GraphContext, operation: Any, /, x: Any, gamma: Any = None, beta: Any = None
) -> ir.Value:
    axes = sorted(axes_of(operation.axis, rank_of(x)))
    value, epsilon = as_float(cx, x), _epsilon(operation)
    scale = _scale_of_node(x, gamma, axes)
    shift_fits = beta is None or list(sizes_of(beta)) == [sizes_of(x)[axis] for axis in axes]
    if scale is not None and shift_fits and not operation.rms_scaling:
        shift = None if beta is None else as_float(cx, beta)
        return cx.op.LayerNormalization(value, as_float(cx, scale), shift, axis=-len(axes), epsilon=epsilon)
    centred = cx.op.Sub(value, reduce(cx, "ReduceMean", value, axes, keepdims=True))
    variance = reduce(cx, "ReduceMean", cx.op.Mul(centred, centred), axes, keepdims=True)
    deviation = cx.op.Sqrt(cx.op.Add(variance, epsilon))
    # rms_scaling, deprecated, leaves out the mean and the shift.
    result = cx.op.Div(value if operation.rms_scaling else centred, deviation)
    if gamma is not None:
        result = cx.op.Mul(result, _along(cx, gamma, x, axes))
    if beta is not None and not operation.rms_scaling:
        result = cx.op.Add(result, _along(cx, beta, x, axes))
    return result


@lowers(
    "RMSNorm",
    example=lambda x: ops.rms_normalization(x, scale=np.arange(3.0)),
    shape=(4, 3),
    nodes="RMSNormalization",
)
def rms_normalization(cx: GraphContext, operation: Any, /, x: Any, scale: Any = None) -> ir.Value:
    axes = sorted(axes_of(operation.axis, rank_of(x)))
    value, epsilon = as_float(cx, x), _epsilon(operation)
    of_node = _scale_of_node(x, scale, axes)
    if of_node is not None and cx.opset >= 23:
        return cx.op.RMSNormalization(value, as_float(cx, of_node), axis=-len(axes), epsilon=epsilon)
    square = reduce(cx, "ReduceMean", cx.op.Mul(value, value), axes, keepdims=True)
    result = cx.op.Div(value, cx.op.Sqrt(cx.op.Add(square, epsilon)))
    # Keras multiplies by the scale as it is: it broadcasts over the last axes, regardless of `axis`.
    return result if scale is None else cx.op.Mul(result, as_float(cx, scale))


def _batch_example(x: Any) -> Any:
    return ops.batch_normalization(x, np.arange(3.0), np.arange(1.0, 4.0), -1, np.ones(3), np.arange(3.0))


@lowers("BatchNorm", example=_batch_example, shape=(4, 3), nodes="Sub Add Sqrt Div Mul Add")
def batch_normalization(
    cx: GraphContext,
    operation: Any,
    /,
    x: Any,
    mean: Any,
    variance: Any,
    offset: Any = None,
    scale: Any = None,
) -> ir.Value:
    axes = axes_of(operation.axis, rank_of(x))

    def along(statistic: Any) -> ir.Value:
        return _along(cx, statistic, x, axes)

    deviation = cx.op.Sqrt(cx.op.Add(along(variance), float(operation.epsilon)))
    result = cx.op.Div(cx.op.Sub(as_float(cx, x), along(mean)), deviation)
    if scale is not None:
        result = cx.op.Mul(result, along(scale))
    return result if offset is None else cx.op.Add(result, along(offset))


@lowers(
    "Normalize",
    example=lambda x: ops.normalize(x, axis=1),
    shape=(4, 3),
    nodes="ReduceL2 Max Div",
)
def normalize(cx: GraphContext, operation: Any, /, x: Any) -> ir.Value:
    if rank_of(x) == 0:
        raise refuse(cx, operation, "x of rank", 0)
    value, axes = as_float(cx, x), axes_of(operation.axis, rank_of(x))
    if operation.order == 2:
        norm = reduce(cx, "ReduceL2", value, axes, keepdims=True)
    else:
        norm = norm_of(cx, operation, value, operation.order, axes, keepdims=True)
    return cx.op.Div(value, cx.op.Max(norm, _epsilon(operation)))
