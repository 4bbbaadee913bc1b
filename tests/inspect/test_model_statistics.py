"""Distances, entropies, filters and positions of an Inspector, of a Keras model and of its folder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError, FolderError, InputError
from keras_tx.inspect import (
    Inspector,
    entropy_in_nats,
    inspect,
    mean_attention_distance,
    position_similarity,
    principal_filters,
)
from keras_tx_onnx import export_onnx
from tests.drawing import as_numpy, redraw
from tests.tolerances import HALF, assert_close

IMAGES = (np.random.default_rng(0).random((2, 9, 14, 3)) * 255).astype("uint8")


@pytest.fixture(scope="module")
def vit() -> Any:
    return redraw(
        keras_tx.vit(
            "Mu/2",
            image_size=(9, 14),
            patch_size=(2, 3),
            drop_remainder=True,
            depth=2,
            registers=2,
            num_classes=3,
        )
    )


@pytest.fixture(scope="module", params=["Keras", "folder", "fp16"])
def inspector(request, vit, tmp_path_factory) -> Inspector:
    if request.param == "Keras":
        return inspect(vit)
    folder = tmp_path_factory.mktemp("folders") / "vit"
    export_onnx(vit, folder, precision=[{"folder": "fp32"}.get(request.param, request.param)], verify=False)
    return inspect(folder)


def test_distances_and_entropies_of_all_layers(vit, inspector):
    weights = as_numpy(vit.with_outputs(attentions=True)(vit.processing(IMAGES)))["attentions"]
    tolerance = HALF["mixed_float16"]
    distances = [mean_attention_distance(layer, (4, 4), (2, 3), prefix_tokens=3) for layer in weights]
    assert_close(inspector.attention_distances(IMAGES), np.stack(distances), tolerance)
    assert_close(inspector.attention_distances(IMAGES, layers=[1]), np.stack(distances[1:]), tolerance)
    entropies = np.stack([entropy_in_nats(layer) for layer in weights])
    assert_close(inspector.attention_entropies(IMAGES), entropies, tolerance)
    assert inspector.attention_entropies(IMAGES, layers="block_1").shape == (1, 2)


def test_filters_and_positions(vit, inspector):
    dtype = "float16" if "fp16" in str(getattr(inspector.reader, "folder", "")) else "float32"
    kernel, table = (
        as_numpy(weight).astype(dtype)  # that of the folder is rounded
        for weight in (vit.get_layer("patch_embedding").kernel, vit.get_layer("positions").table)
    )
    for actual, expected in zip(inspector.principal_filters(5), principal_filters(kernel, 5), strict=True):
        assert_close(actual, expected)
    assert_close(inspector.position_similarity(), position_similarity(table, (4, 4), 1))
    assert_close(inspector.position_similarity(layer="positions"), inspector.position_similarity())


def test_layers_that_do_not_exist_raise(inspector):
    with pytest.raises((ConfigError, FolderError), match="'patches'"):
        inspector.principal_filters(layer="patches")
    with pytest.raises((ConfigError, FolderError), match="'places'"):
        inspector.position_similarity(layer="places")


TEXTS = {
    "gpt": (lambda: keras_tx.gpt("pico"), None),
    "bert": (lambda: keras_tx.bert("tiny", vocabulary_size=50, head=keras_tx.ClassifierHead(3)), None),
    "roberta": (
        lambda: keras_tx.bert(
            "tiny", vocabulary_size=50, max_length=12, segments=1, position_offset=2, pad_id=1
        ),
        None,
    ),
    "transformer": (lambda: keras_tx.transformer("tiny", vocabulary_size=50), "decoder_positions"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_models(name, tmp_path):
    build, layer = TEXTS[name]
    model = redraw(build())
    if name == "roberta":  # the position of padding, which no token has
        table = model.get_layer("positions").table
        table.assign(as_numpy(table) * (np.arange(14) != 1)[:, None])
    export_onnx(model, tmp_path / "folder", verify=False)
    one, other = inspect(model), inspect(tmp_path / "folder")
    ids = np.array([[5, 6, 7, 8, 9]])
    similarity = one.position_similarity(layer=layer)
    length = model.config.max_length
    assert similarity.shape == (length, length)
    assert_close(other.position_similarity(layer=layer), similarity)
    options = {"targets": ids[:, :2], "part": "cross"} if layer else {}
    assert_close(other.attention_entropies(ids, **options), one.attention_entropies(ids, **options))
    for inspector in (one, other):
        with pytest.raises(InputError, match="text model"):
            inspector.attention_distances(ids)
        with pytest.raises((ConfigError, FolderError), match=r"PatchEmbedding|patch_embedding"):
            inspector.principal_filters()
        entropies = inspector.attention_entropies(ids, **options)
        assert ((entropies >= 0) & (entropies <= np.log(5))).all()


def test_model_without_a_table_of_positions_raises(tmp_path):
    model = redraw(keras_tx.gpt("llama-tiny"))
    export_onnx(model, tmp_path / "folder", verify=False)
    with pytest.raises(ConfigError, match="no PositionalEmbedding"):
        inspect(model).position_similarity()
    with pytest.raises(FolderError, match="no table of the layer 'positions'"):
        inspect(tmp_path / "folder").position_similarity()
