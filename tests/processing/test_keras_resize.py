"""KerasResize equals keras.layers.Resizing."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from keras_tx import ImageTransform
from keras_tx.errors import ConfigError
from keras_tx.processing.keras_resize import ASPECTS, INTERPOLATIONS, KerasResize
from tests.tolerances import assert_close

SIZES = [((9, 14), (6, 6)), ((7, 5), (12, 20)), ((40, 31), (8, 10)), ((1, 3), (4, 2)), ((16, 16), (8, 8))]


def picture(shape: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (*shape, 3), "uint8")


@pytest.mark.parametrize("aspect", ASPECTS)
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
def test_pixels_equal_those_of_keras(interpolation: str, antialias: bool, aspect: str):
    resize = KerasResize(interpolation, antialias, aspect, table=keras.backend.backend() == "tensorflow")
    for shape, size in SIZES:
        layer = keras.layers.Resizing(
            *size, interpolation=interpolation, antialias=antialias,
            crop_to_aspect_ratio=aspect == "crop", pad_to_aspect_ratio=aspect == "pad",
        )  # fmt: skip
        image = picture(shape)
        expected = keras.ops.convert_to_numpy(layer(image[None].astype("float32")))[0]
        assert_close(255 * resize(image, size), expected)


def test_bicubic_weights_of_jax_are_exact():
    jax_image = pytest.importorskip("jax.image")
    for shape, size in SIZES:
        image = picture(shape).astype("float32")
        expected = np.asarray(jax_image.resize(image, (*size, 3), "cubic", antialias=False))
        assert_close(255 * KerasResize("bicubic", table=False)(image, size), expected)


def test_boxes_return_to_the_picture():
    boxes = np.array([[0.0, 0.0, 8.0, 4.0], [2.0, 1.0, 4.0, 3.0]])
    for aspect, expected in (
        ("stretch", [[0, 0, 16, 16], [4, 4, 8, 12]]),
        ("crop", [[0, 4, 16, 12], [4, 6, 8, 10]]),
        ("pad", [[0, 0, 16, 16], [0, 4, 8, 12]]),
    ):
        transform = ImageTransform((4, 8), keras_resize=KerasResize(aspect=aspect))
        assert transform.in_source(boxes, (16, 16)).tolist() == expected
    assert ImageTransform((4, 8)).in_source(boxes, (16, 16)).tolist() == [[0, 0, 16, 16], [4, 4, 8, 12]]


def test_the_transform_keeps_it():
    transform = ImageTransform((6, 8), keras_resize=KerasResize("bicubic", aspect="pad"))
    config = transform.to_preprocessor_config()
    fields = {"interpolation": "bicubic", "antialias": False, "aspect": "pad", "table": True}
    assert config["keras_resize"] == fields
    assert ImageTransform.from_preprocessor_config(config) == transform
    assert ImageTransform((6, 8), keras_resize=config["keras_resize"]) == transform
    assert transform(picture((9, 9))).shape == (1, 6, 8, 3)
    assert "keras_resize" not in ImageTransform(8).to_preprocessor_config()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"interpolation": "area"}, "interpolation='area'"),
        ({"aspect": "fit"}, "aspect='fit'"),
        ({"antialias": 1}, "antialias=1"),
        ({"table": 0}, "table=0"),
    ],
)
def test_invalid_fields_raise(fields: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        KerasResize(**fields)
    with pytest.raises(ConfigError, match="keras_resize is"):
        ImageTransform(8, keras_resize=fields)  # type: ignore[arg-type]
