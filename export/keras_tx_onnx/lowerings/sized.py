"""Ranges and fills that a layer makes from the size of a tensor."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from keras_tx_onnx.context import Context
from keras_tx_onnx.registry import lowers
from keras_tx_onnx.sized import Counted, Filled


@lowers(
    Counted,
    example=lambda x: x + Counted("float32").symbolic_call(x, 0, 5, 1),
    shape=(5,),
    nodes="Range Add",
    takes_sizes=True,
)
def counted(cx: Context, operation: Any, /, anchor: Any, start: Any, stop: Any, step: Any) -> ir.Value:
    floating = keras.backend.is_float_dtype(operation.dtype)

    def scalar(x: Any) -> Any:
        if isinstance(x, ir.Value):
            return cx.op.Cast(x, to=ir.DataType.FLOAT) if floating else x
        return np.float32(x) if floating else np.int64(x)

    return cx.op.Range(scalar(start), scalar(stop), scalar(step))


@lowers(
    Filled,
    example=lambda x: x + Filled((2, 5), 3.0, "float32").symbolic_call(x),
    shape=(2, 5),
    nodes="Expand Add",
    takes_sizes=True,
)
def filled(cx: Context, operation: Any, /, anchor: Any) -> ir.Value:
    kind = "float32" if keras.backend.is_float_dtype(operation.dtype) else "int64"
    fill = cx.constant(operation.fill, "bool" if operation.dtype == "bool" else kind)
    return cx.op.Expand(fill, cx.vector(operation.shape))
