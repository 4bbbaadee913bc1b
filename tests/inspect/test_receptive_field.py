"""Effective receptive fields: of convolutions that are known, of ViTs and of Keras's CNNs."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import keras_tx
from keras_tx.errors import ConfigError
from keras_tx.inspect.gradients import gradients
from keras_tx.inspect.receptive_field import central_square, effective_receptive_field, field_center
from tests.drawing import draw, redraw
from tests.tolerances import assert_close


def convolutions(count: int) -> keras.Model:
    layers = [
        keras.layers.Conv2D(1, 3, padding="same", use_bias=False, kernel_initializer="ones", name=f"c{index}")
        for index in range(count)
    ]
    return keras.Sequential([keras.Input((15, 15, 1)), *layers, keras.layers.GlobalAveragePooling2D()])


def test_convolutions_of_ones_have_a_binomial_field():
    model = convolutions(3)
    profile = np.convolve(np.convolve([1, 1, 1], [1, 1, 1]), [1, 1, 1])
    expected = np.zeros((15, 15))
    expected[4:11, 4:11] = np.outer(profile, profile)
    images = draw(3, 15, 15, 1)
    assert_close(effective_receptive_field(model, images, "c2", batch_size=2), expected)
    moved = effective_receptive_field(model, images, "c2", position=(3, 11))
    assert_close(moved, np.roll(expected, (-4, 4), axis=(0, 1)))
    assert central_square(expected, 1.0) == 7
    share = expected[5:10, 5:10].sum() / expected.sum()
    assert central_square(expected, share) == 5
    assert central_square(expected, share + 1e-6) == 7
    with pytest.raises(ConfigError, match=r"share=0 "):
        central_square(expected, 0)
    with pytest.raises(ConfigError, match=r"\(3, 3\).* not all 0"):
        central_square(np.zeros((3, 3)))


def test_field_of_a_vit_covers_the_image_after_one_block():
    model = redraw(keras_tx.vit("Mu/2", image_size=(8, 12), depth=1, num_classes=3))
    images = draw(2, 8, 12, 3)
    patch = effective_receptive_field(model, images, "patch_embedding", grid=(4, 6))
    assert (patch > 0).sum() == 4  # one patch
    assert patch[4:6, 6:8].all()  # the center of 4 x 6
    assert effective_receptive_field(model, images, "block_0").all()
    part = keras.Model(model.input, model.get_layer("block_0").output[:, 1 + 2 * 6 + 3])
    _, (gradient,) = gradients(lambda x: keras.ops.sum(part(x), axis=1), [images])
    expected = abs(gradient).sum(axis=3).mean(axis=0)
    assert_close(effective_receptive_field(model, images, "block_0"), expected)
    moved = effective_receptive_field(model, images, "block_0/attention_norm", position=(1, 5))
    assert moved[2:4, 10:12].all()
    assert (moved > 0).sum() == 4


def test_field_of_a_cnn_of_keras():
    model = redraw(keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None))
    field = effective_receptive_field(model, draw(1, 32, 32, 3), "block_1_expand")
    for axis in (0, 1):  # a convolution of 3 with stride 2, and one of 3: 7 pixels around those of position 8
        reached = np.flatnonzero(field.any(axis=axis))
        assert np.ptp(reached) + 1 in (6, 7)
        assert reached.min() <= 16 <= reached.max()
    with pytest.raises(ConfigError, match=r"shape \(1, 1000\)"):
        effective_receptive_field(model, draw(1, 32, 32, 3), "predictions")
    with pytest.raises(ConfigError, match=r"position=\(16, 16\) is out of range.*16 rows"):
        effective_receptive_field(model, draw(1, 32, 32, 3), "block_1_expand", position=(16, 16))


def test_wrong_arguments_raise():
    tokens = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Reshape((16, 1), name="tokens")])
    images = draw(1, 4, 4, 1)
    with pytest.raises(ConfigError, match=r"Pass grid="):
        effective_receptive_field(tokens, images, "tokens")
    with pytest.raises(ConfigError, match=r"grid=\(5, 4\) has 20 patches, but the layer has 16"):
        effective_receptive_field(tokens, images, "tokens", grid=(5, 4))
    with pytest.raises(ConfigError, match="uint8"):
        effective_receptive_field(tokens, images.astype("uint8"), "tokens", grid=(4, 4))


def test_center_of_a_field_is_not_moved_by_what_is_far_from_it():
    field = np.zeros((20, 20))
    field[12:15, 4:7] = 1
    field[:, 19] = 0.1
    assert field_center(field) == (13, 5)
    assert central_square(field, 0.8) == 3
    assert central_square(field, 0.8, center=(13, 4)) == 5
