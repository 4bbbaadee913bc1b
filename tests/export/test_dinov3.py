"""An exported ViT with rotary positions, as DINOv3, equals Keras's at several image sizes and precisions."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import onnx
import pytest

import keras_tx
from keras_tx.runtime import load
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, redraw
from tests.tolerances import ANOTHER_BRANCH, FP32, HALF, assert_close

OPTIONS = {
    "image_size": 16,
    "patch_size": 4,
    "depth": 2,
    "positions": "rotary",
    "registers": 3,
    "mask_token": True,
    "key_bias": False,
    "layer_scale": 0.5,
}


def pictures(model: Any) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (3, *model.config.size, 3), "uint8")


def features(folder: Any, images: np.ndarray, precision: str = "fp32") -> np.ndarray:
    with load(folder, precision=precision, provider="cpu") as runtime:
        return runtime(list(images))


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("size", [16, (8, 20)])
def test_image_sizes_and_opsets(size: Any, opset: int, tmp_path):
    model = redraw(keras_tx.vit("Mu/2", **OPTIONS)).at_image_size(size)
    export_onnx(model, tmp_path / "x", opset=opset)
    images = pictures(model)
    assert_close(features(tmp_path / "x", images), as_numpy(model(model.processing(images))))
    counts = collections.Counter(
        node.op_type for node in onnx.load(tmp_path / "x/onnx/model.onnx").graph.node
    )
    assert (counts["RotaryEmbedding"], counts["Cos"], counts["Sin"]) == (4 if opset == 23 else 0, 0, 0)


def test_precisions(tmp_path):
    sizes = {"width": 64, "mlp_dim": 96, "num_heads": 4, "activation": "swiglu"}
    model = redraw(keras_tx.vit("Mu/2", **OPTIONS, **sizes))
    export_onnx(model, tmp_path / "x", precision=["fp32", "fp16", "int8", "int4"])
    images = pictures(model)
    expected = as_numpy(model(model.processing(images)))
    for precision, tolerance in (
        ("fp32", FP32),
        ("fp16", HALF["mixed_float16"]),
        ("int8", ANOTHER_BRANCH),
        ("int4", ANOTHER_BRANCH),
    ):
        assert_close(features(tmp_path / "x", images, precision), expected, tolerance)


def test_a_published_checkpoint_has_a_model_type(tmp_path):
    import json

    for options, expected in (({}, "dinov3_vit"), ({"num_classes": 3}, None)):
        report = export_onnx(keras_tx.vit("Mu/2", **OPTIONS, **options), tmp_path / str(expected))
        config = json.loads((tmp_path / str(expected) / "config.json").read_text())
        assert config.get("model_type") == expected
        assert ("a ClassifierHead with positions='rotary'" in str(report)) == (expected is None)
