"""Layers written with TensorFlow, for tests of the conversion by tf2onnx."""

from __future__ import annotations

import keras
import pytest
from keras import layers

from keras_tx_onnx import export_onnx
from tests.drawing import draw, redraw
from tests.export.exporting import outputs_of, run
from tests.tolerances import assert_close

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"
needs_tensorflow = pytest.mark.skipif(not ON_TENSORFLOW, reason="tf2onnx converts what TensorFlow traces")
if ON_TENSORFLOW:
    import tensorflow as tf

BY_TF2ONNX = "was converted by tf2onnx"
SIZES = ((1, 2), (3, 7))


class Raw(layers.Layer):
    """A layer written with TensorFlow."""

    def __init__(self, function, inner=None, **kwargs):
        super().__init__(**kwargs)
        self.function, self.inner = function, inner

    def build(self, shape):
        if self.inner is not None:
            self.inner.build(shape)

    def call(self, x):
        return self.function(x if self.inner is None else self.inner(tf.identity(x)))


def converted(model, folder, match=BY_TF2ONNX, **options):
    with pytest.warns(UserWarning, match=match):
        return export_onnx(model, folder, verify=False, **options)


def model_of(function, shape=(None, 16), inner=None, dtype="float32"):
    x = keras.Input(shape, name="x", dtype=dtype)
    return redraw(keras.Model(x, Raw(function, inner, name="odd")(x)))


def check(model, folder, *shapes, tolerance=None):
    for index, shape in enumerate(shapes):
        x = draw(*shape, seed=index)
        for got, expected in zip(run(folder, x), outputs_of(model, x), strict=True):
            assert_close(got, expected, **({} if tolerance is None else {"tolerance": tolerance}))
