"""keras-hub's ViT and DeiT: equal outputs after conversion in both directions."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx import ClassifierHead, DistilledClassifierHead, ImageTransform, from_checkpoint
from keras_tx.errors import ConfigError
from keras_tx.models.vit.keras_hub import to_keras_hub
from tests.drawing import as_numpy, draw, redraw
from tests.tolerances import assert_close

keras_hub = pytest.importorskip("keras_hub")

SIZES = {"image_shape": (8, 12, 3), "patch_size": 4, "num_layers": 2, "num_heads": 2, "hidden_dim": 8}


def vit(**options: Any) -> Any:
    return redraw(keras_hub.models.ViTBackbone(**{**SIZES, "mlp_dim": 12, **options}))


def deit(**options: Any) -> Any:
    return redraw(keras_hub.models.DeiTBackbone(**{**SIZES, "intermediate_dim": 12, **options}))


def classifier(backbone: Any, **options: Any) -> Any:
    kind = "DeiT" if "DeiT" in type(backbone).__name__ else "ViT"
    return redraw(getattr(keras_hub.models, f"{kind}ImageClassifier")(backbone, num_classes=3, **options))


THEIRS = {
    "backbone": vit,
    "backbone without class token": lambda: vit(use_class_token=False, use_patch_bias=False),
    "classifier": lambda: classifier(vit(layer_norm_epsilon=1e-3), dropout=0.1),
    "classifier with a dense layer": lambda: classifier(vit(), intermediate_dim=5),
    "classifier on the mean": lambda: classifier(vit(use_class_token=False), pooling="gap"),
    "rectangular patches": lambda: vit(patch_size=(4, 2)),
    "DeiT": deit,
    "DeiT classifier": lambda: classifier(deit()),
}


@pytest.mark.parametrize("name", THEIRS)
def test_there_and_back(name: str):
    theirs = THEIRS[name]()
    model = from_checkpoint(theirs)
    images = draw(2, 8, 12, 3)
    expected = as_numpy(theirs(images))
    assert_close(as_numpy(model(images)), expected)

    back = to_keras_hub(model)
    assert type(back) is type(theirs)
    np.testing.assert_array_equal(as_numpy(back(images)), expected)
    for mine, original in zip(back.weights, theirs.weights, strict=True):
        assert mine.path == original.path
        np.testing.assert_array_equal(as_numpy(mine), as_numpy(original))


def test_hidden_states():
    theirs = vit()
    model = from_checkpoint(theirs)
    images = draw(2, 8, 12, 3)
    x = theirs.get_layer("vit_patching_and_embedding")(images)
    blocks = [model.get_layer(f"block_{index}") for index in range(2)]
    parts = [blocks[0].input, *(block.output for block in blocks)]
    mine = as_numpy(keras.Model(model.input, parts)(images))
    assert_close(mine[0], as_numpy(x))
    for block, hidden in zip(theirs.get_layer("vit_encoder").encoder_layers, mine[1:], strict=True):
        x = block(x)
        assert_close(hidden, as_numpy(x))


@pytest.mark.parametrize(
    "options",
    [
        {"num_classes": 3},
        {"head": ClassifierHead(3, dropout=0.2), "pooler": "tanh", "pooler_dim": 6},
        {"num_classes": 3, "pooling": "average", "patch_bias": False},
        {"num_classes": 3, "distillation": True, "dropout": 0.1},
        {"pooling": "none"},
        {"pooling": "none", "distillation": True},
        {"num_classes": 3, "drop_remainder": True},
    ],
    ids=str,
)
def test_conversion_to_keras_hub(options: dict):
    model = redraw(keras_tx.vit("Mu/2", **{"image_size": (8, 12), **options}))
    theirs = to_keras_hub(model)
    images = draw(2, *model.config.size, 3)
    assert_close(as_numpy(theirs(images)), as_numpy(model(images)))
    again = from_checkpoint(theirs)
    for mine, copy in zip(model.weights, again.weights, strict=True):
        np.testing.assert_array_equal(as_numpy(mine), as_numpy(copy))


def test_a_preset(tmp_path):
    converter = keras_hub.layers.ViTImageConverter(
        image_size=(8, 12),
        scale=[1 / 255 / 0.4, 1 / 255 / 0.5, 1 / 255 / 0.6],
        offset=[-0.1 / 0.4, -0.2 / 0.5, -0.3 / 0.6],
        interpolation="bicubic",
        crop_to_aspect_ratio=False,
    )
    preprocessor = keras_hub.models.ViTImageClassifierPreprocessor(image_converter=converter)
    theirs = classifier(vit(), preprocessor=preprocessor)
    theirs.save_to_preset(str(tmp_path / "preset"))
    model = from_checkpoint(tmp_path / "preset")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 12, 3), "uint8")
    expected = theirs.predict(pixels, verbose=0)
    assert_close(as_numpy(model(model.processing(pixels))), expected)
    assert model.processing.resample == "bicubic"
    back = to_keras_hub(model)
    assert_close(back.predict(pixels, verbose=0), expected)


def test_an_image_converter_that_crops_warns():
    converter = keras_hub.layers.DeiTImageConverter(image_size=(8, 12), interpolation="area")
    preprocessor = keras_hub.models.DeiTImageClassifierPreprocessor(image_converter=converter)
    with pytest.warns(UserWarning, match="crop_to_aspect_ratio=True, interpolation='area'.*8 x 12"):
        model = from_checkpoint(classifier(deit(), preprocessor=preprocessor))
    # Without scale and offset the pixels stay 0..255.
    assert model.processing == ImageTransform((8, 12), mean=0.0, std=1 / 255)


def test_another_head_or_image_size():
    theirs = classifier(vit(image_shape=(8, 8, 3)))
    with pytest.warns(UserWarning, match=r"logits/kernel.*; .*predictions/kernel"):
        model = from_checkpoint(theirs, head=ClassifierHead(5))
    assert model.config.pooling == "token"
    with pytest.warns(UserWarning, match="predictions/kernel"):
        tokens = from_checkpoint(theirs, head=None)
    images = draw(2, 8, 8, 3)
    assert_close(as_numpy(tokens(images)), as_numpy(theirs.backbone(images)))
    wide, same = from_checkpoint(theirs, image_size=(8, 16)), from_checkpoint(theirs)
    expected = same.at_image_size((8, 16))
    np.testing.assert_array_equal(
        as_numpy(wide.get_layer("positions").table), as_numpy(expected.get_layer("positions").table)
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: vit(use_mha_bias=False), "use_mha_bias=False.*use_mha_bias=True"),
        (lambda: vit(use_mlp_bias=False), "use_mlp_bias=False"),
        (lambda: vit(data_format="channels_first", image_shape=(3, 8, 12)), "data_format='channels_first'"),
        (lambda: classifier(vit(), activation="softmax"), "activation='softmax'.*ClassifierHead"),
        (lambda: classifier(vit(), pooling="gap"), "pooling='gap' with use_class_token=True"),
        (lambda: classifier(deit(), pooling="gap"), "pooling='gap' with use_class_token=True"),
    ],
)
def test_unsupported_options_raise(make: Any, message: str):
    try:
        theirs = make()
    except Exception as error:  # convolutions of this kind do not run on every backend's CPU
        pytest.skip(str(error)[:80])
    with pytest.raises(ConfigError, match=message):
        from_checkpoint(theirs)


def test_a_distilled_head_raises():
    with pytest.raises(ConfigError, match="head=DistilledClassifierHead"):
        from_checkpoint(deit(), head=DistilledClassifierHead(3))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "pooling='token' with head=None"),
        ({"num_classes": 3, "pooling": "average", "class_token": True}, "pooling='average' with head"),
        ({"head": DistilledClassifierHead(3), "distillation": True}, "a DistilledClassifierHead"),
        ({"num_classes": 3, "positions": "learned-2d"}, "positions='learned-2d'"),
        ({"num_classes": 3, "registers": 2}, "registers=2"),
        ({"num_classes": 3, "mask_token": True}, "mask_token=True"),
        ({"num_classes": 3, "qkv_bias": False}, "qkv_bias=False"),
        ({"num_classes": 3, "pre_norm": True}, "pre_norm=True"),
        ({"num_classes": 3, "stem": "convolutions"}, "stem='convolutions'"),
        ({"num_classes": 3, "qk_norm": True}, "qk_norm=True"),
        ({"num_classes": 3, "pooled_norm": True}, "pooled_norm=True"),
        ({"num_classes": 3, "activation": "relu"}, "activation='relu'"),
        ({"num_classes": 3, "layer_scale": 0.1}, "layer_scale=0.1"),
        (
            {"num_classes": 3, "image_size": 9, "drop_remainder": True},
            "drop_remainder=True with image_size=9",
        ),
        (
            {"num_classes": 3, "distillation": True, "pooler": "tanh"},
            "pooler='tanh' with a distillation token",
        ),
        (
            {"num_classes": 3, "distillation": True, "patch_bias": False},
            "patch_bias=False with a distillation",
        ),
    ],
    ids=str,
)
def test_options_that_keras_hub_lacks_raise(options: dict, reason: str):
    model = keras_tx.vit("Mu/2", **{"image_size": 8, **options})
    with pytest.raises(ConfigError, match=reason):
        to_keras_hub(model)
