"""Operations of TensorFlow that tf2onnx lacks or gets wrong, written for its own extension interface.

They are registered in a separate domain, so other conversions by tf2onnx are not affected.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from keras_tx_onnx.errors import NotLowered

DOMAIN = "keras_tx"


@functools.cache
def register() -> None:
    """Adds the handlers below to tf2onnx's registry, where they replace handlers of the same name."""
    import tf2onnx.tfonnx  # noqa: F401  fills the registry, so it is imported first
    from tf2onnx.handler import tf_op

    def add(name: str, handle: Callable[..., None]) -> None:
        tf_op.register_handler(handle, 1, [name], DOMAIN, {})

    for name, write in WRITTEN.items():
        add(name, functools.partial(_replace, write))
    for name, why in WRONG.items():
        add(name, functools.partial(_refuse, name, why))


class Writer:
    """`op.Sub(1, x)` adds a node to tf2onnx's graph, in the place of a TensorFlow one."""

    def __init__(self, ctx: Any, node: Any):
        self.ctx, self.node = ctx, node
        self.dtype = ctx.get_dtype(node.input[0])

    @property
    def is_floating(self) -> bool:
        return np.issubdtype(self.numpy_type, np.floating)

    @property
    def numpy_type(self) -> Any:
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(self.dtype))

    def const(self, value: Any, dtype: Any = None) -> str:
        from tf2onnx import utils

        array = np.array(value, dtype or self.numpy_type)
        return self.ctx.make_const(utils.make_name("number"), array).output[0]

    def __getattr__(self, op_type: str) -> Callable[..., str]:
        def add(*inputs: Any, **attributes: Any) -> str:
            names = [x if isinstance(x, str) else self.const(x) for x in inputs]
            return self.ctx.make_node(op_type, names, attr=attributes).output[0]

        return add


def _replace(write: Callable[..., str], ctx: Any, node: Any, **_: Any) -> None:
    inputs, output = list(node.input), node.output[0]
    shape, dtype = ctx.get_shape(output), ctx.get_dtype(output)
    last = write(Writer(ctx, node), *inputs)
    ctx.remove_node(node.name)
    ctx.make_node("Identity", [last], outputs=[output], name=node.name, shapes=[shape], dtypes=[dtype])


def _refuse(name: str, why: str, ctx: Any, node: Any, **_: Any) -> None:
    raise NotLowered(f"tf2onnx would write {name} wrongly: {why}.")


def erfc(op: Writer, x: str) -> str:
    return op.Sub(1, op.Erf(x))


def expm1(op: Writer, x: str) -> str:
    """tanh(x / 2) * (exp(x) + 1), which keeps its digits near 0."""
    return op.Mul(op.Tanh(op.Mul(x, 0.5)), op.Add(op.Exp(x), 1))


def log1p(op: Writer, x: str) -> str:
    """log(u) * x / (u - 1) with u = 1 + x, exact near 0 too; x itself where u is 1 or infinite."""
    u = op.Add(x, 1)
    gained = op.Sub(u, 1)
    same = op.Or(op.Equal(gained, 0), op.IsInf(u, detect_negative=0))
    return op.Where(same, x, op.Mul(op.Log(u), op.Div(x, op.Where(same, 1, gained))))


def xlogy(op: Writer, x: str, y: str) -> str:
    return _unless_zero(op, x, op.Mul(x, op.Log(y)))


def xlog1py(op: Writer, x: str, y: str) -> str:
    return _unless_zero(op, x, op.Mul(x, log1p(op, y)))


def xdivy(op: Writer, x: str, y: str) -> str:
    return _unless_zero(op, x, op.Div(x, y))


def mul_no_nan(op: Writer, x: str, y: str) -> str:
    return _unless_zero(op, y, op.Mul(x, y))


def _unless_zero(op: Writer, x: str, result: str) -> str:
    return op.Where(op.Equal(x, 0), 0, result)


def l2_loss(op: Writer, x: str) -> str:
    return op.Mul(op.ReduceSumSquare(x, keepdims=0), 0.5)


def euclidean_norm(op: Writer, x: str, axes: str) -> str:
    keep = op.node.get_attr_value("keep_dims", 0)
    axes = op.Cast(op.Reshape(axes, op.const([-1], "int64")), to=onnx.TensorProto.INT64)
    squares = op.ReduceSum(op.Mul(x, x), axes, keepdims=int(keep), noop_with_empty_axes=1)
    return op.Sqrt(squares)


def cross(op: Writer, x: str, y: str) -> str:
    next_, other = op.const([1, 2, 0], "int64"), op.const([2, 0, 1], "int64")

    def at(x: str, places: str) -> str:
        return op.Gather(x, places, axis=-1)

    return op.Sub(op.Mul(at(x, next_), at(y, other)), op.Mul(at(x, other), at(y, next_)))


def bucketize(op: Writer, x: str) -> str:
    boundaries = op.const(op.node.get_attr_value("boundaries"), "float32")
    wide = op.Cast(op.Unsqueeze(x, op.const([-1], "int64")), to=onnx.TensorProto.FLOAT)
    reached = op.Cast(op.GreaterOrEqual(wide, boundaries), to=onnx.TensorProto.INT32)
    return op.ReduceSum(reached, op.const([-1], "int64"), keepdims=0)


def extract_image_patches(op: Writer, x: str) -> str:
    """A convolution whose kernels each pick one pixel. tf2onnx fails on more than one dynamic axis."""
    (_, height, width, _), strides, rates = (
        op.node.get_attr_value(name) for name in ("ksizes", "strides", "rates")
    )
    channels = (op.ctx.get_shape(x) or [-1])[-1]
    if channels < 1 or not op.is_floating:
        raise NotLowered("ExtractImagePatches is written for floats with a known number of channels.")
    count = height * width * channels
    kernel = np.eye(count).reshape(height, width, channels, count).transpose(3, 2, 0, 1)
    patches = op.Conv(
        op.Transpose(x, perm=[0, 3, 1, 2]),
        kernel,
        kernel_shape=[height, width],
        strides=strides[1:3],
        dilations=rates[1:3],
        auto_pad={"SAME": "SAME_UPPER", "VALID": "VALID"}[op.node.get_attr_str("padding")],
    )
    return op.Transpose(patches, perm=[0, 2, 3, 1])


def lower_bound(op: Writer, rows: str, x: str) -> str:
    return _smaller(op, rows, x, op.Less)


def upper_bound(op: Writer, rows: str, x: str) -> str:
    return _smaller(op, rows, x, op.LessOrEqual)


def _smaller(op: Writer, rows: str, x: str, compare: Callable[..., str]) -> str:
    """How many numbers of a row, (b, n), are smaller than each x, (b, m)."""
    last, middle = op.const([-1], "int64"), op.const([1], "int64")
    is_before = compare(op.Unsqueeze(rows, middle), op.Unsqueeze(x, last))  # (b, m, n)
    count = op.ReduceSum(op.Cast(is_before, to=onnx.TensorProto.INT64), last, keepdims=0)
    return op.Cast(count, to=op.ctx.get_dtype(op.node.output[0]))


def floor_mod(op: Writer, x: str, y: str) -> str:
    """The sign is the divisor's. tf2onnx divides integers as C does."""
    if op.is_floating:
        return op.Sub(x, op.Mul(op.Floor(op.Div(x, y)), y))
    return op.Mod(x, y)


def floor_div(op: Writer, x: str, y: str) -> str:
    if op.is_floating:
        return op.Floor(op.Div(x, y))
    return op.Div(op.Sub(x, op.Mod(x, y)), y)


def scatter_nd(op: Writer, indices: str, updates: str, shape: str) -> str:
    """Updates of one place are summed. tf2onnx keeps the last."""
    dtype = op.ctx.get_dtype(updates)
    zero = onnx.helper.make_tensor("value", dtype, [1], [0])
    empty = op.ConstantOfShape(op.Cast(shape, to=onnx.TensorProto.INT64), value=zero)
    return op.ScatterND(empty, op.Cast(indices, to=onnx.TensorProto.INT64), updates, reduction="add")


WRITTEN: dict[str, Callable[..., str]] = {
    "Bucketize": bucketize,
    "Cross": cross,
    "Erfc": erfc,
    "EuclideanNorm": euclidean_norm,
    "Expm1": expm1,
    "ExtractImagePatches": extract_image_patches,
    "FloorDiv": floor_div,
    "FloorMod": floor_mod,
    "L2Loss": l2_loss,
    "LowerBound": lower_bound,
    "Log1p": log1p,
    "MulNoNan": mul_no_nan,
    "ScatterNd": scatter_nd,
    "UpperBound": upper_bound,
    "Xdivy": xdivy,
    "Xlog1py": xlog1py,
    "Xlogy": xlogy,
}


WRONG = {
    "AdjustSaturation": "tf2onnx computes different colours",
    "ResizeArea": "tf2onnx would use the nearest pixel",
    "ResizeBicubic": "TensorFlow rounds the weights of the pixels, by a table",
}
