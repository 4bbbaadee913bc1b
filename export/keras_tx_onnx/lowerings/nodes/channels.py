"""Images as Keras and as ONNX have them: channels last or first, and padding to the same size."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import GraphContext, shape_of


def channels_are_last(layer: Any) -> bool:
    return layer.data_format == "channels_last"


def to_first(cx: GraphContext, x: ir.Value, rank: int) -> ir.Value:
    """(b, space ..., c) -> (b, c, space ...)."""
    return cx.op.Transpose(x, perm=[0, rank + 1, *range(1, rank + 1)])


def to_last(cx: GraphContext, x: ir.Value, rank: int) -> ir.Value:
    """(b, c, space ...) -> (b, space ..., c)."""
    return cx.op.Transpose(x, perm=[0, *range(2, rank + 2), 1])


def spatial(layer: Any, x: ir.Value) -> tuple[int | None, ...]:
    """Height, width ... of an image; None where dynamic."""
    return shape_of(x)[1:-1] if channels_are_last(layer) else shape_of(x)[2:]


def spatial_axes(layer: Any, rank: int) -> list[int]:
    return list(range(1, rank + 1)) if channels_are_last(layer) else list(range(2, rank + 2))


def same_pads(
    cx: GraphContext, sizes: tuple[int | None, ...], windows: list[int], strides: list[int]
) -> list[int] | None:
    """Keras's padding for "same": the starts, then the ends. An odd element is at the end.

    None for dynamic sizes, whose padding is auto_pad: SAME_UPPER. onnxruntime computes that wrongly if a
    window is smaller than its stride, which is refused.
    """
    begins, ends = [], []
    for size, window, stride in zip(sizes, windows, strides, strict=True):
        if stride == 1 or window == 1:
            total = window - 1
        elif size is None:
            _check_same_upper(cx, windows, strides)
            return None
        else:
            total = max((-(-size // stride) - 1) * stride + window - size, 0)
        begins.append(total // 2)
        ends.append(total - total // 2)
    return [*begins, *ends]


def _check_same_upper(cx: GraphContext, windows: list[int], strides: list[int]) -> None:
    for window, stride in zip(windows, strides, strict=True):
        if window < stride:
            raise ExportError(
                f"Layer {cx.scope!r} has padding='same' with a window of {window} and a stride of {stride}, "
                "and the size of its input is dynamic. Pass the size to keras.Input, or use padding='valid'."
            )
