"""int8 against fp32 on trained weights and real data: the demo's handwritten digits."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest

from keras_tx import demo
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx


@pytest.mark.slow
def test_the_digits_of_the_demo(tmp_path):
    keras.utils.set_random_seed(0)
    digits, model = demo.load_digits(), demo.small_vit()
    images, labels = demo.with_variations(digits.train_images, digits.train_labels, 0)
    demo.compile_for(model, 6 * math.ceil(len(images) / demo.BATCH))
    model.fit(model.processing(images), labels, batch_size=demo.BATCH, epochs=6, verbose=0)
    folder = tmp_path / "digits"
    export_onnx(model, folder, labels=demo.LABELS, precision=["fp32", "fp16", "int8", "int8-blocks", "int4"])
    said = {}
    for precision in ("fp32", "fp16", "int8", "int8-blocks", "int4"):
        with load(folder, provider="cpu", precision=precision) as classify:
            best = [found[0]["label"] for found in classify(digits.test_images, top_k=1)]
        said[precision] = np.array([demo.LABELS.index(label) for label in best])
    accuracy = {name: (found == digits.test_labels).mean() for name, found in said.items()}
    agreement = {name: (found == said["fp32"]).mean() for name, found in said.items()}
    assert accuracy["fp32"] > 0.95
    for precision in ("fp16", "int8", "int8-blocks"):
        assert agreement[precision] >= 0.99
        assert abs(accuracy[precision] - accuracy["fp32"]) <= 0.005
    assert agreement["int4"] >= 0.95
