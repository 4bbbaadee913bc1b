"""Operations added to tf2onnx, which lacks them or converts them wrongly, equal TensorFlow."""

from __future__ import annotations

import pytest

from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx
from keras_tx_onnx.conversion import tf2onnx_operations
from tests.export.raw import ON_TENSORFLOW, SIZES, check, converted, model_of, needs_tensorflow

if ON_TENSORFLOW:
    import tensorflow as tf


def _places(x):
    return tf.cast(x * 9, tf.int32)


MISSING = {
    "Bucketize": lambda x: tf.raw_ops.Bucketize(input=x, boundaries=[-1.0, 0.0, 1.0]),
    "Cross": lambda x: tf.linalg.cross(x[..., :3], x[..., 3:6]),
    "Erfc": lambda x: tf.math.erfc(x),
    "EuclideanNorm": lambda x: tf.math.reduce_euclidean_norm(x, axis=[1, 2], keepdims=True),
    "Expm1": lambda x: tf.math.expm1(x) / x,
    "FloorDiv": lambda x: _places(x) // 4 + _places(x) // -4,
    "FloorMod": lambda x: _places(x) % 4 + _places(x) % -4,
    "L2Loss": lambda x: tf.nn.l2_loss(x) + x,
    "Log1p": lambda x: tf.math.log1p(tf.abs(x) * 1e-6) * 1e6,
    "LowerBound": lambda x: tf.searchsorted(tf.sort(x[:, 0]), x[:, 1]),
    "MulNoNan": lambda x: tf.math.multiply_no_nan(1 / tf.nn.relu(x), tf.nn.relu(x)),
    "ScatterNd": lambda x: tf.scatter_nd([[0], [2], [2]], x[0, 0, :3], [4]),
    "UpperBound": lambda x: tf.searchsorted(tf.sort(x[:, 0]), x[:, 0], side="right"),
    "Xdivy": lambda x: tf.math.xdivy(tf.nn.relu(x), tf.nn.relu(x)),
    "Xlog1py": lambda x: tf.math.xlog1py(tf.nn.relu(x), tf.nn.relu(x) - 1),
    "Xlogy": lambda x: tf.math.xlogy(tf.nn.relu(x), tf.nn.relu(x)),
}


def test_every_added_operation_is_tested():
    assert {*MISSING, "ExtractImagePatches"} == tf2onnx_operations.WRITTEN.keys()
    assert WRONG.keys() == tf2onnx_operations.WRONG.keys()


@needs_tensorflow
@pytest.mark.parametrize("name", MISSING)
def test_operation_that_is_missing_in_tf2onnx(name: str, tmp_path):
    model = model_of(MISSING[name])
    converted(model, tmp_path / "out", opset=17 if len(name) % 2 else 23)
    check(model, tmp_path / "out", *((b, n, 16) for b, n in SIZES))


WRONG = {
    "AdjustSaturation": lambda x: tf.image.adjust_saturation(tf.sigmoid(x), 0.5),
    "ResizeArea": lambda x: tf.image.resize(x, (5, 7), method="area"),
    "ResizeBicubic": lambda x: tf.image.resize(x, (5, 7), method="bicubic"),
}


@needs_tensorflow
@pytest.mark.parametrize("name", WRONG)
def test_wrong_conversions_of_tf2onnx_raise(name: str, tmp_path):
    with pytest.raises(ExportError, match=f"tf2onnx would write {name} wrongly"):
        export_onnx(model_of(WRONG[name], (None, None, 3)), tmp_path / "out", verify=False)


@needs_tensorflow
@pytest.mark.parametrize(("padding", "stride", "rate"), [("VALID", 2, 1), ("SAME", 1, 2), ("SAME", 2, 1)])
def test_image_patches(padding: str, stride: int, rate: int, tmp_path):
    steps, rates = [1, stride, stride, 1], [1, rate, rate, 1]
    model = model_of(
        lambda x: tf.image.extract_patches(x, [1, 3, 2, 1], steps, rates, padding), (None, None, 3)
    )
    converted(model, tmp_path / "out")
    check(model, tmp_path / "out", (1, 8, 8, 3), (2, 9, 7, 3))
