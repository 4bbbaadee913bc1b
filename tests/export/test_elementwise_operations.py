"""Arithmetic, comparison, functions and reductions: cases beyond their examples."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx
from keras_tx_onnx.reading import registry
from keras_tx_onnx.reading.functional_graph import operation_names
from tests.drawing import draw
from tests.export.comparing import equals_keras

NAN, INF = float("nan"), float("inf")
FLOATS = np.array([[-2.5, -1.0, -0.5], [0.0, 0.5, 3.0]], "float32")
WHOLE = np.array([[-7, -3, -1], [1, 2, 8]], "int32")
PIXELS = np.array([[0, 1, 4], [200, 250, 255]], "uint8")
TOKENS = np.array([[7, 2148, 30521], [101, 4295, 50256]], "int32")
TRUTH = np.array([[True, False, True], [False, False, True]])
EDGES = np.array([[0.0, 1e-6, -1e-6], [30.0, -30.0, 0.5]], "float32")
STRANGE = np.array([[NAN, INF, -INF], [1.0, -2.0, 0.0]], "float32")


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize(
    ("call", "inputs"),
    [
        (lambda x, y: x + y, (FLOATS, WHOLE)),
        (lambda x, y: y - x, (FLOATS, PIXELS)),
        (lambda x, y: x * y, (FLOATS, TRUTH)),
        (lambda x, y: x * y, (WHOLE, TRUTH)),
        (lambda x: x + 10, (PIXELS,)),
        (lambda x: x - 10, (PIXELS,)),
        (lambda x: x * 2, (PIXELS,)),
        (lambda x: x + 0.5, (PIXELS,)),
        (lambda x: x + 1, (FLOATS,)),
        (lambda x: x + True, (WHOLE,)),
        (lambda x: x / 2, (WHOLE,)),
        (lambda x: 3 / x, (WHOLE,)),
        (lambda x: x / x, (PIXELS[1:],)),
        (lambda x: x // 3, (WHOLE,)),
        (lambda x: x // -3, (WHOLE,)),
        (lambda x: x // 0.7, (FLOATS,)),
        (lambda x: x % 3, (WHOLE,)),
        (lambda x: x % -3, (WHOLE,)),
        (lambda x: x % 0.75, (FLOATS,)),
        (lambda x: x % -0.75, (FLOATS,)),
        (lambda x: x**2, (WHOLE,)),
        (lambda x: 2.0**x, (FLOATS,)),
        (lambda x, y: ops.maximum(x, y), (FLOATS, WHOLE)),
        (lambda x: ops.maximum(x, 100), (PIXELS,)),
        (lambda x: ops.minimum(x, 0.5), (WHOLE,)),
        (lambda x: ops.divide_no_nan(x, ops.relu(x)), (FLOATS,)),
        (lambda x: -x, (WHOLE,)),
        (lambda x: abs(x), (WHOLE,)),
        (lambda x: ops.sign(x), (WHOLE,)),
        (lambda x: ops.square(x), (WHOLE,)),
        (lambda x: x * 1000003 % 97, (TOKENS,)),
        (lambda x: (x * 2654435 + 2**31 - 1) // 5, (TOKENS,)),
        (lambda x: ops.square(x * 7) - x * 104729, (TOKENS,)),
        (lambda x: ops.sqrt(ops.abs(x)), (WHOLE,)),
        (lambda x: ops.floor(x), (WHOLE,)),
        (lambda x: ops.round(x), (FLOATS,)),
        (lambda x: ops.round(x * 1.234, 1), (FLOATS,)),
        (lambda x: ops.trunc(x), (FLOATS,)),
        (lambda x: ops.clip(x, 1, 100), (PIXELS,)),
        (lambda x: ops.clip(x, -1, 2), (WHOLE,)),
        (lambda x: ops.clip(x, np.array([0.0, -1.0, 0.0], "float32"), 1.0), (FLOATS,)),
        (lambda x: ops.clip(x, 2, -1), (WHOLE,)),
        (lambda x: ops.clip(x, 2.0, -1.0), (FLOATS,)),
        (lambda x: ops.clip(x, np.array([0.0, 2.0, 0.0], "float32"), 1.0), (FLOATS,)),
        (lambda x: keras.activations.relu(x, max_value=-1.0), (FLOATS,)),
        (lambda x: ops.cast(x, "uint8"), (WHOLE,)),
        (lambda x: ops.cast(x, "int32"), (FLOATS,)),
        (lambda x: ops.cast(x, "bool"), (FLOATS,)),
        (lambda x: ops.cast(x, "float32") / 3, (TRUTH,)),
        (lambda x: ops.cast(x, "int32") + x, (TRUTH,)),
        (lambda x: x > 0, (WHOLE,)),
        (lambda x: x >= 0.5, (WHOLE,)),
        (lambda x, y: x < y, (WHOLE, FLOATS)),
        (lambda x, y: ops.equal(x, y), (WHOLE, PIXELS)),
        (lambda x, y: x != y, (TRUTH, ~TRUTH)),
        (lambda x, y: x & y, (TRUTH, ~TRUTH)),
        (lambda x: ~x, (TRUTH,)),
        (lambda x: ops.logical_not(x), (FLOATS,)),
        (lambda x, y: ops.logical_xor(x, y), (WHOLE, TRUTH)),
        (lambda x: ops.where(x > 0, x, -1), (WHOLE,)),
        (lambda x: ops.where(x > 0, x, 0.5), (WHOLE,)),
        (lambda x, y: ops.where(x, y, ops.logical_not(y)), (TRUTH, ~TRUTH)),
        (lambda x, y: ops.where(x, y, 7), (WHOLE, FLOATS)),
        (lambda x: ops.bitwise_and(x, x + 6), (WHOLE,)),
        (lambda x: ops.bitwise_xor(x, x - 2), (WHOLE,)),
        (lambda x: ops.isclose(x, x + 1e-6), (EDGES,)),
        (lambda x: [ops.isnan(x), ops.isinf(x), ops.isfinite(x)], (STRANGE,)),
        (lambda x: ops.nan_to_num(x), (STRANGE,)),
        (lambda x: ops.nan_to_num(x, nan=1.0, posinf=5.0, neginf=-5.0), (STRANGE,)),
        (lambda x: [ops.exp(x), ops.sigmoid(x), ops.tanh(x), ops.erf(x)], (EDGES,)),
        (lambda x: [ops.sin(x), ops.cos(x)], (WHOLE,)),
        (lambda x: ops.log1p(ops.abs(x)), (EDGES,)),
        (lambda x: ops.expm1(x), (EDGES[:1],)),
        (lambda x: ops.arctan2(x, 1 - x), (FLOATS,)),
        (lambda x: ops.logaddexp(x, -x), (EDGES,)),
        (lambda x: [ops.hypot(x, 3 * x), ops.log2(ops.exp(x))], (FLOATS,)),
    ],
)
def test_elements(call, inputs, opset: int, tmp_path):
    equals_keras(call, tmp_path, *inputs, opset=opset)


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize(
    ("call", "inputs"),
    [
        (lambda x: [ops.sum(x), ops.mean(x), ops.max(x), ops.min(x)], (FLOATS,)),
        (lambda x: [ops.sum(x, -1, keepdims=True), ops.mean(x, (0, -1)), ops.prod(x, 0)], (FLOATS,)),
        (lambda x: [ops.sum(x, -1), ops.mean(x, -1), ops.max(x, -1), ops.prod(x, 1)], (WHOLE,)),
        (lambda x: [ops.sum(x, -1), ops.mean(x, -1), ops.max(x, -1)], (TRUTH,)),
        (lambda x: [ops.max(x, 1), ops.min(x, 1, keepdims=True)], (PIXELS,)),
        (lambda x: [ops.max(x, 1, initial=2.0), ops.min(x, 1, initial=-0.75)], (FLOATS,)),
        (lambda x: [ops.any(x, -1), ops.all(x, -1), ops.any(x), ops.all(x, keepdims=True)], (TRUTH,)),
        (lambda x: [ops.any(x, -1), ops.all(x, 0)], (WHOLE,)),
        (lambda x: [ops.var(x), ops.std(x, -1, keepdims=True)], (FLOATS,)),
        (lambda x: list(ops.moments(x, [0, 1])), (FLOATS,)),
        (lambda x: [ops.cumsum(x, 1), ops.cumsum(x, -1), ops.cumsum(x)], (FLOATS,)),
        (lambda x: ops.cumsum(x, -1), (WHOLE,)),
        (lambda x: [ops.prod(x, 1), ops.sum(x * 40000, -1), ops.cumsum(x * 40000, 1)], (TOKENS,)),
        (lambda x: ops.cumsum(x, -1), (TRUTH,)),
        (lambda x: [ops.argmax(x, -1), ops.argmin(x, 1), ops.argmax(x), ops.argmax(x, 0)], (WHOLE,)),
        (lambda x: [ops.argmax(x * 0, -1), ops.argmin(x * 0, -1)], (FLOATS,)),  # the first of equal ones
        (lambda x: [ops.logsumexp(x, -1), ops.logsumexp(x, axis=(0, 1), keepdims=True)], (EDGES,)),
        (lambda x: [ops.norm(x, axis=-1), ops.norm(x, ord=1, axis=1, keepdims=True)], (FLOATS,)),
        (lambda x: [ops.norm(x, ord="fro"), ops.norm(x, ord=np.inf, axis=-1)], (FLOATS,)),
        (lambda x: [ops.norm(x, ord=1, axis=(0, 1)), ops.norm(x, ord=3, axis=0)], (FLOATS,)),
        (lambda x: ops.count_nonzero(x, axis=-1), (WHOLE,)),
    ],
)
def test_reductions(call, inputs, opset: int, tmp_path):
    equals_keras(call, tmp_path, *inputs, opset=opset)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: ops.cast(x, "complex64"), "dtype='complex64'"),
        (lambda x: ops.clip(ops.cast(x, "int32"), 0.5, 2), "x_min=0.5"),
        (lambda x: ops.isclose(x, x, equal_nan=True), "equal_nan=True"),
        (lambda x: ops.softmax(x, axis=(0, 1)), r"axis=\(0, 1\)"),
        (lambda x: ops.norm(x, ord="nuc", axis=(0, 1)), "ord='nuc'"),
        (lambda x: ops.erfinv(x), "Erfinv"),
    ],
)
def test_unsupported_operations_raise(call, message: str, tmp_path):
    x = keras.Input((3,), name="x")
    with pytest.raises(ExportError, match=message):
        export_onnx(keras.Model(x, call(x)), tmp_path / "out", verify=False)


OPERANDS = st.sampled_from(["float32", "int32", "uint8", "bool", 2, 1.5, True])
SHAPES = st.sampled_from([(3,), (1,), (2, 3), (2, 1), (1, 1, 3)])


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([ops.add, ops.multiply, ops.maximum, ops.less, ops.equal, ops.divide]),
    st.sampled_from(["float32", "int32", "uint8", "bool"]),
    OPERANDS,
    SHAPES,
    SHAPES,
)
def test_dtypes_and_shapes_are_those_of_keras(tmp_path_factory, function, dtype, other, shape, other_shape):
    if dtype == "bool" and (other == "bool" or other is True):
        return  # TensorFlow does not compute with booleans
    x = (draw(2, *shape) * 3 + 4).astype(dtype)
    folder = tmp_path_factory.mktemp("ops")
    if not isinstance(other, str):
        equals_keras(lambda x: function(x, other), folder, x)
    else:
        y = (draw(2, *other_shape, seed=1) * 3 + 4).astype(other)
        try:
            np.broadcast_shapes(x.shape, y.shape)
        except ValueError:
            return
        equals_keras(function, folder, x, y)


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize(
    ("call", "inputs"),
    [
        (lambda x: [ops.isposinf(x), ops.isneginf(x)], (STRANGE,)),
        (
            lambda x: [ops.nansum(x[:, :1]), ops.nanmean(x[:, :1], axis=0), ops.nanprod(x[1:, :], 1)],
            (STRANGE,),
        ),
        (lambda x: ops.heaviside(x, 0.5 * x + 2), (FLOATS,)),
        (lambda x: [ops.fmod(x, x * 0 + 0.75), ops.cbrt(x), ops.sinc(x), ops.erfc(x)], (FLOATS,)),
        (lambda x: ops.isin(x, np.array([1, -3, 9], "int32"), invert=True), (WHOLE,)),
        (lambda x: ops.isin(x, np.array([[1, -3], [9, 8]], "int32")), (WHOLE,)),
        (lambda x: [ops.diff(x, 2), ops.diff(x)], (WHOLE,)),
        (lambda x: [ops.rot90(x, k) for k in (0, 1, 3, -1)], (FLOATS,)),
        (lambda x: [ops.fliplr(x), ops.flipud(x), *ops.hsplit(x, [1])], (FLOATS,)),
        (lambda x: ops.select([x > 2, x > 0], [x * 2, x + 1], -1), (WHOLE,)),
        (lambda x: ops.cross(x, x + np.array([1, 2, 3], "int32")), (WHOLE,)),
        (lambda x: [ops.cdist(x, x * 2), ops.logaddexp2(x, x + 1)], (FLOATS,)),
        (lambda x: [ops.diag(x[0]), ops.empty_like(x) * 0], (FLOATS,)),
    ],
)
def test_rare_operations(call, inputs, opset: int, tmp_path):
    equals_keras(call, tmp_path, *inputs, opset=opset)


def test_every_lowering_belongs_to_an_operation_of_keras():
    named = {lowering.target for lowering in registry.registered() if isinstance(lowering.target, str)}
    assert named - operation_names() == set()


def test_unknown_operation_raises():
    with pytest.raises(ValueError, match="keras.ops has no operation 'Sigmoyd'. Did you mean 'Sigmoid'"):
        registry.lowers("Sigmoyd", example=ops.sigmoid, shape=(4,), nodes="Sigmoid")(lambda cx, op, x: x)
