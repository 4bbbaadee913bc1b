"""Models that Keras quantized to int8: the file has int8 weights, and its outputs equal Keras."""

from __future__ import annotations

import keras
import numpy as np
import onnx
import pytest
from keras import layers

import keras_tx
from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx, tolerances
from tests.drawing import draw, redraw
from tests.export.exporting import exported, nodes_of, outputs_of, run

# model.quantize warns for every layer that it cannot quantize.
pytestmark = pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method implemented:UserWarning")


def dense(x):
    return layers.Dense(6, activation="relu")(x)


def heads(x):
    x = layers.EinsumDense("abc,cde->abde", (None, 2, 4), bias_axes="de")(x)
    return layers.EinsumDense("abcd,cde->abe", (None, 5), bias_axes="e")(x)


def embedding(x):
    return layers.Embedding(9, 5)(keras.ops.cast(keras.ops.clip(x * 3 + 4, 0, 8), "int32"))


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("body", [dense, heads, embedding], ids=lambda body: body.__name__)
def test_equals_keras(body, opset: int, tmp_path):
    x = keras.Input((None, 8), name="x")
    model = redraw(keras.Model(x, body(x)))
    model.quantize("int8")
    folder = exported(model, tmp_path / "out", opset=opset)
    for batch, length in ((1, 3), (4, 7)):
        tokens = draw(batch, length, 8)
        for got, expected in zip(run(folder, tokens), outputs_of(model, tokens), strict=True):
            assert tolerances.difference(expected, got) < 1e-6
    kinds = {tensor.data_type for tensor in onnx.load(folder / "onnx" / "model.onnx").graph.initializer}
    assert onnx.TensorProto.INT8 in kinds


def test_products_are_of_integers(tmp_path):
    x = keras.Input((None, 8), name="x")
    model = redraw(keras.Model(x, heads(x)))
    model.quantize("int8")
    nodes = nodes_of(exported(model, tmp_path / "out"))
    assert (nodes["MatMulInteger"], nodes["MatMul"]) == (2, 0)


def test_transformer(tmp_path):
    model = redraw(keras_tx.vit("Mu/2", image_size=8, num_classes=3))
    model.quantize("int8")
    report = export_onnx(model, tmp_path / "out")
    assert report.manifest.tiers["block_0/attention"] == "registered"
    assert report.nodes["MatMulInteger"] == 7
    assert report.manifest.parity.tolerance == tolerances.INT8
    assert "int8" in str(report)
    images = draw(2, 8, 8, 3)
    (got,) = run(tmp_path / "out", images.transpose(0, 3, 1, 2))
    assert tolerances.difference(*outputs_of(model, images), got) < tolerances.INT8


def test_weight_only_quantization(tmp_path):
    x = keras.Input((8,), name="x")
    model = redraw(keras.Model(x, dense(x)))
    config = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    model.quantize(config=config)
    folder = exported(model, tmp_path / "out")
    tokens = draw(3, 8)
    assert tolerances.difference(*outputs_of(model, tokens), *run(folder, tokens)) < 1e-5


def test_lora_raises(tmp_path):
    x = keras.Input((8,), name="x")
    layer = layers.Dense(6, name="answer")
    model = keras.Model(x, layer(x))
    model.quantize("int8")
    layer.enable_lora(2)
    with pytest.raises(ExportError, match="'answer' .*LoRA"):
        export_onnx(model, tmp_path / "out")


def test_embedding_accepts_any_integer_dtype(tmp_path):
    ids = keras.Input((None,), name="ids", dtype="int32")
    model = redraw(keras.Model(ids, layers.Embedding(9, 5)(ids)))
    model.quantize("int8")
    folder = exported(model, tmp_path / "out")
    indices = np.array([[0, 8, 3]])
    assert tolerances.difference(*outputs_of(model, indices), *run(folder, indices)) < 1e-6
