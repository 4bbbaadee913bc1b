"""A backbone under the name keras_nlp, which is an alias of keras_hub: fit, export and run."""

from __future__ import annotations

import keras
import numpy as np
import onnxruntime
import pytest

from keras_tx import contract
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy

keras_nlp = pytest.importorskip("keras_nlp")


def test_a_backbone_is_trained_exported_and_run(tmp_path):
    backbone = keras_nlp.models.BertBackbone(
        vocabulary_size=50,
        num_layers=1,
        num_heads=2,
        hidden_dim=16,
        intermediate_dim=32,
        max_sequence_length=8,
    )
    classes = keras.layers.Dense(3, activation="softmax")(backbone.output["pooled_output"])
    model = keras.Model(backbone.input, classes)
    random = np.random.default_rng(0)
    inputs = {
        "token_ids": random.integers(1, 50, (6, 8)).astype("int32"),
        "segment_ids": np.zeros((6, 8), "int32"),
        "padding_mask": (np.arange(8) < random.integers(2, 9, (6, 1))).astype("int32"),
    }
    model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy", run_eagerly=True)
    before = as_numpy(model.weights[0]).copy()
    model.fit(inputs, np.arange(6) % 3, batch_size=3, verbose=0)
    assert np.abs(as_numpy(model.weights[0]) - before).max() > 0
    export_onnx(model, tmp_path / "model")
    session = onnxruntime.InferenceSession(tmp_path / "model" / contract.MODEL)
    feed = {
        one.name: inputs[one.name].astype("int64" if "int64" in one.type else "int32")
        for one in session.get_inputs()
    }
    (result,) = session.run(None, feed)
    expected = as_numpy(model({name: keras.ops.convert_to_tensor(x) for name, x in inputs.items()}))
    np.testing.assert_allclose(np.asarray(result), expected, atol=1e-5)
