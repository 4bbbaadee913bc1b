"""Attention weights that are computed layer by layer need the memory of a few layers."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import InputError
from keras_tx.inspect import folder as folder_reader
from keras_tx.inspect import inspect, inspector
from keras_tx_onnx import export_onnx
from tests.memory import begin_peak, peak, resident

DEPTH = 16
LAYER = 4 * 2 * 1025 * 1025 * 4  # bytes of the weights: batch, heads, queries, keys, float32
IMAGES = np.zeros((4, 64, 64, 3), "uint8")


@pytest.mark.thorough
@pytest.mark.parametrize("source", ["keras", "folder"])
def test_layers_are_computed_one_after_the_other(source, tmp_path, monkeypatch):
    if not resident():
        pytest.skip("The resident memory can be read on Linux only.")
    monkeypatch.setattr(folder_reader, "RUN_BYTES", LAYER)
    monkeypatch.setattr(inspector, "MAX_BYTES", DEPTH * LAYER - 1)
    model: Any = keras_tx.vit("Mu/2", image_size=64, depth=DEPTH, width=8, mlp_dim=8)
    if source == "folder":
        export_onnx(model, tmp_path / "folder", verify=False)
        model = tmp_path / "folder"
    inspected = inspect(model)
    next(inspected.attention_layers(IMAGES[:1]))  # what the libraries allocate once
    gc.collect()
    before = resident()
    begin_peak()
    count = 0
    for weights in inspected.attention_layers(IMAGES):
        assert weights.nbytes == LAYER
        count += 1
        del weights
    assert count == DEPTH
    assert peak() - before < 6 * LAYER
    begin_peak()
    with pytest.raises(InputError, match=r"\(4, 2, 1025, 1025\) of 16 layers"):
        inspected.attention(IMAGES)
    assert peak() - before < 6 * LAYER


@pytest.mark.slow
@pytest.mark.parametrize("source", ["keras", "folder"])
def test_maps_of_eight_large_images_need_less_than_a_gigabyte(source, tmp_path):
    """The weights of a ViT-B/16 at 384 have 122 MiB per layer, and 1.4 GiB together."""
    if not resident():
        pytest.skip("The resident memory can be read on Linux only.")
    model: Any = keras_tx.vit("B/16", image_size=384)
    if source == "folder":
        export_onnx(model, tmp_path / "folder", verify=False)
        model = tmp_path / "folder"
    inspected = inspect(model)
    images = np.zeros((8, 384, 384, 3), "uint8")
    inspected.class_token_maps(images[:1], layers=None)  # what the libraries allocate once
    gc.collect()
    before = resident()
    begin_peak()
    maps = inspected.class_token_maps(images, layers=None)
    assert peak() - before < 10**9
    assert len(maps) == 12 and maps[0].shape == (8, 12, 24, 24)
    with pytest.raises(InputError, match=r"\(8, 12, 577, 577\) of 12 layers have 1.4 GiB"):
        inspected.attention(images)
