from __future__ import annotations

import itertools

import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.layers import PatchEmbedding
from tests.drawing import as_numpy, built, draw
from tests.tolerances import assert_close


def by_hand(x: np.ndarray, patch: tuple[int, ...], kernel: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Each patch in reading order, flattened, times the flattened kernel."""
    grid = [side // p for side, p in zip(x.shape[1:-1], patch, strict=True)]
    tokens = []
    for index in itertools.product(*map(range, grid)):
        window = tuple(slice(i * p, (i + 1) * p) for i, p in zip(index, patch, strict=True))
        flat = x[(slice(None), *window)].reshape(len(x), -1).astype("float64")
        tokens.append(flat @ kernel.reshape(flat.shape[1], -1).astype("float64"))
    return np.stack(tokens, axis=1) + (0 if bias is None else bias)


@pytest.mark.parametrize(
    "shape, patch_size, patch",
    [
        ((2, 8, 8, 3), 4, (4, 4)),
        ((2, 6, 12, 1), 3, (3, 3)),  # an image that is not square
        ((2, 8, 9, 4), (2, 3), (2, 3)),  # nor its patches
        ((2, 8, 6, 3), (8, 1), (8, 1)),  # columns
        ((2, 20, 3), 5, (5,)),  # a signal of three channels
        ((2, 20, 1), (4,), (4,)),
        ((1, 4, 4, 3), 4, (4, 4)),  # one patch
        ((2, 4, 6, 8, 3), (2, 3, 4), (2, 3, 4)),  # a video
        ((2, 4, 2, 6, 1), 2, (2, 2, 2)),
        ((2, 3, 4, 4, 3), (1, 4, 4), (1, 4, 4)),  # each image of a video is one patch
    ],
)
@pytest.mark.parametrize("use_bias", [True, False])
def test_equals_an_explicit_loop_over_patches(shape, patch_size, patch, use_bias):
    x = draw(*shape)
    layer = built(PatchEmbedding(7, patch_size, use_bias=use_bias), x)
    bias = as_numpy(layer.bias) if use_bias else None
    assert_close(as_numpy(layer(x)), by_hand(x, patch, as_numpy(layer.kernel), bias))


def test_vit_base_16_at_224():
    assert PatchEmbedding(768, 16)(np.zeros((2, 224, 224, 3), "float32")).shape == (2, 196, 768)


def test_another_image_size_after_building():
    layer = built(PatchEmbedding(5, 4), draw(1, 8, 8, 3))
    assert layer(draw(1, 12, 4, 3)).shape == (1, 3, 5)
    with pytest.raises(ConfigError, match="12 x 6 is not divisible by patch_size=4 x 4"):
        layer(draw(1, 12, 6, 3))


def test_video_of_another_size_after_building():
    layer = built(PatchEmbedding(5, (2, 4, 4)), draw(1, 4, 8, 8, 3))
    x = draw(2, 6, 4, 12, 3)
    expected = by_hand(x, (2, 4, 4), as_numpy(layer.kernel), as_numpy(layer.bias))
    assert_close(as_numpy(layer(x)), expected)


@pytest.mark.parametrize(
    "shape, patch_size, fitting",
    [
        ((2, 9, 11, 3), 4, (8, 8)),
        ((1, 8, 7, 1), (2, 3), (8, 6)),
        ((2, 11, 3), 5, (10,)),
        ((1, 5, 6, 9, 2), (2, 3, 4), (4, 6, 8)),
    ],
)
def test_remainder_is_dropped(shape, patch_size, fitting):
    x = draw(*shape)
    layer = built(PatchEmbedding(7, patch_size, drop_remainder=True), x)
    cropped = x[(slice(None), *map(slice, fitting))]
    patch = layer.patch(len(fitting))
    expected = by_hand(cropped, patch, as_numpy(layer.kernel), as_numpy(layer.bias))
    assert_close(as_numpy(layer(x)), expected)
    assert layer.compute_output_shape(shape) == expected.shape
    assert_close(as_numpy(layer(cropped)), expected)


def test_image_smaller_than_a_patch_raises():
    layer = PatchEmbedding(7, 4, drop_remainder=True, name="patches")
    with pytest.raises(ConfigError, match="'patches': the input size 8 x 3 is smaller than patch_size=4 x 4"):
        layer.build((1, 8, 3, 3))


def test_video_tokens_are_those_of_the_images_summed_over_time():
    """A kernel that is constant over time, as checkpoints of images are extended to videos."""
    x = draw(1, 2, 4, 4, 3)
    image, video = built(PatchEmbedding(5, 2), x[:, 0]), built(PatchEmbedding(5, 2), x)
    kernel = as_numpy(image.kernel)
    video.set_weights([np.stack([kernel, kernel]), as_numpy(image.bias)])
    assert_close(as_numpy(video(x)), as_numpy(image(x.sum(axis=1))))


@pytest.mark.parametrize(
    "width, patch_size, shape, parts",
    [
        (0, 4, None, ["width is 0", "a whole number, 1 or more"]),
        (8, 0, None, ["patch_size is 0", "a whole number, 1 or more, or a tuple"]),
        (8, (4, -1), None, ["patch_size is (4, -1)", "a whole number, 1 or more"]),
        (8, (4, 1.5), None, ["patch_size is (4, 1.5)", "a whole number, 1 or more"]),
        (8, 16, (1, 224, 225, 3), ["'patches'", "224 x 225", "16 x 16", "drop_remainder=True"]),
        (8, 16, (1, 8, 8, 3), ["8 x 8 is not divisible"]),
        (8, 3, (1, 10, 1), ["size 10", "patch_size=3"]),
        (8, (4, 4), (1, 16, 1), ["'patches'", "patch_size=(4, 4)", "1 spatial axes"]),
        (8, 4, (1, 8), ["shape (1, 8)", "(batch, height, width, channels)"]),
        (8, 4, (1, 4, 4, 4, 4, 1), ["(1, 4, 4, 4, 4, 1)", "(batch, time, height, width, channels)"]),
        (8, (2, 4, 4), (1, 3, 8, 8, 1), ["3 x 8 x 8 is not divisible by patch_size=2 x 4 x 4"]),
        (8, (4, 4), (1, 8, 8, 8, 1), ["patch_size=(4, 4) has 2 axes", "3 spatial axes"]),
        (8, (2, 4, 4), (1, 8, 8, 1), ["patch_size=(2, 4, 4) has 3 axes", "2 spatial axes"]),
        (8, 4, (1, 8, 8, None), ["(1, 8, 8, None)"]),
    ],
)
def test_errors_contain_argument_and_value(width, patch_size, shape, parts):
    with pytest.raises(ConfigError) as error:
        PatchEmbedding(width, patch_size, name="patches").build(shape)
    assert all(part in str(error.value) for part in parts), str(error.value)
