"""Attention weights and hidden states equal those of transformers, from Keras and from a folder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.inspect import Inspector, inspect
from keras_tx_onnx import export_onnx
from tests.drawing import redraw
from tests.tolerances import assert_close
from tests.weights.small_models import bert, load_in_transformers

pytestmark = pytest.mark.thorough

MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
IDS = np.where(MASK, np.random.default_rng(3).integers(4, 30, MASK.shape), 0)
TARGETS = np.array([[11, 12, 13], [14, 15, 16]])
TEXT = {"input_ids": IDS, "attention_mask": MASK}
MODELS: dict[str, Any] = {
    "vit": lambda: keras_tx.vit("Mu/2", image_size=8, depth=3, num_classes=3),
    "bert": lambda: bert(keras_tx.ClassifierHead(3), depth=3, segments=2),
    "gpt": lambda: keras_tx.gpt("pico", depth=3),
    "t5": lambda: keras_tx.t5("tiny"),
}


def of_transformers(model: Any, folder: Any, inputs: dict[str, np.ndarray]) -> Any:
    theirs = load_in_transformers(model, folder)
    import torch

    tensors = {key: torch.from_numpy(value) for key, value in inputs.items()}
    with torch.no_grad():
        return theirs(**tensors, output_hidden_states=True, output_attentions=True)


def assert_equal(inspected: Inspector, inputs: Any, expected: Any) -> None:
    names = {"encoder": "encoder_", "decoder": "decoder_", "cross": "cross_", None: ""}
    for part in inspected.parts or (None,):
        options = {"targets": TARGETS if part else None, "part": part}
        rows = MASK if inspected.kind == "text" and part in (None, "encoder") else np.ones((2, 1))
        weights = [x.numpy() * rows[:, None, :, None] for x in expected[f"{names[part]}attentions"]]
        for mine, theirs in zip(inspected.attention(inputs, **options), weights, strict=True):
            assert_close(mine, theirs.astype("float32"))
        if part != "cross":
            states = [x.numpy() * rows[:, :, None] for x in expected[f"{names[part]}hidden_states"]]
            for mine, theirs in zip(inspected.hidden_states(inputs, **options), states, strict=True):
                assert_close(mine, theirs.astype("float32"))


@pytest.mark.parametrize("name", MODELS)
def test_arrays_equal_those_of_transformers(name, tmp_path):
    model = redraw(MODELS[name]())
    images = (np.random.default_rng(0).random((2, 8, 8, 3)) * 255).astype("uint8")
    inputs, theirs = (images, {}) if name == "vit" else (TEXT, dict(TEXT))
    if name == "vit":
        theirs = {"pixel_values": model.processing(images).transpose(0, 3, 1, 2)}
    if name == "gpt":
        theirs["position_ids"] = np.maximum(MASK.cumsum(1) - 1, 0)
    if name == "t5":
        theirs["decoder_input_ids"] = np.insert(TARGETS, 0, model.start_id, axis=1)
    expected = of_transformers(model, tmp_path / "checkpoint", theirs)
    export_onnx(model, tmp_path / "folder", verify=False)
    assert_equal(inspect(model), inputs, expected)
    assert_equal(inspect(tmp_path / "folder"), inputs, expected)
