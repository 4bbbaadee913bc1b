"""Interpolation of images between fixed sizes, as two products with the weights of the pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from keras import ops

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.reading.keras_patches import untraced


def interpolated(
    cx: GraphContext,
    x: ir.Value,
    sizes: Sequence[Any],
    targets: Sequence[Any],
    interpolation: str,
    antialias: bool,
) -> ir.Value:
    """Images (batch, channels, height, width) of these sizes in other sizes, as the backend computes them."""
    if not all(isinstance(n, int) for n in (*sizes, *targets)):
        raise ExportError(
            f"{cx.scope!r} has interpolation={interpolation!r} and antialias={antialias}, which require "
            "fixed sizes. Pass height and width to keras.Input, or use bilinear interpolation without "
            "antialias."
        )
    rows, columns = (
        _weights(size, target, interpolation, antialias) for size, target in zip(sizes, targets, strict=True)
    )
    return cx.op.MatMul(cx.op.MatMul(rows, x), np.ascontiguousarray(columns.T))


def _weights(size: int, target: int, interpolation: str, antialias: bool) -> np.ndarray:
    """The weight of each of `size` pixels in each of `target` pixels: the resized unit matrix."""
    unit = np.eye(size, dtype="float32")[None, :, None]  # (1, height, width 1, channels)
    with untraced():
        resized = ops.image.resize(
            unit, (target, 1), interpolation=interpolation, antialias=antialias, data_format="channels_last"
        )
        return ops.convert_to_numpy(resized)[0, :, 0]
