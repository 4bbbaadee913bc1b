import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keras_tx.errors import ConfigError, ImageError
from keras_tx.processing import ImageTransform

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (6, 4, 3), "uint8")
SAME = {"mean": 0.0, "std": 1.0}  # these keep a float image unchanged


def test_normalizes_as_hugging_face_does():
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    expected = (RGB.astype("float64") * (1 / 255) - mean) / std
    got = ImageTransform((6, 4), mean=mean, std=std)(RGB)
    assert got.dtype == np.float32
    assert got.shape == (1, 6, 4, 3)
    np.testing.assert_allclose(got[0], expected, atol=1e-6)


def test_scalar_size_and_mean_are_broadcast():
    transform = ImageTransform(8, mean=0.25)
    assert transform.size == (8, 8)
    assert (transform.height, transform.width) == (8, 8)
    assert transform.mean == (0.25, 0.25, 0.25)
    assert transform.std == (0.5, 0.5, 0.5)


def test_one_image_list_and_batch_are_equal(tmp_path: Path):
    transform = ImageTransform((5, 7), resample="bicubic")
    file = tmp_path / "a.png"
    Image.fromarray(RGB).save(file)
    sources = [RGB, Image.fromarray(RGB), file, str(file), file.read_bytes(), RGB / 255.0]
    batch = transform(sources)
    assert batch.shape == (6, 5, 7, 3)
    for source, row in zip(sources, batch, strict=True):
        np.testing.assert_array_equal(row, batch[0])
        np.testing.assert_array_equal(transform(source)[0], row)
    np.testing.assert_array_equal(transform(np.stack([RGB, RGB])), batch[:2])
    np.testing.assert_array_equal(transform((RGB, RGB)), batch[:2])


@pytest.mark.parametrize("resample", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_resizing_equals_pillow(resample: str):
    filter_ = getattr(Image.Resampling, resample.upper())
    expected = np.asarray(Image.fromarray(RGB).resize((9, 5), filter_))
    got = ImageTransform((5, 9), resample=resample).resize(RGB)
    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got[0], expected)


def test_many_channels_are_resized_separately():
    five = RNG.integers(0, 256, (6, 4, 5), "uint8")
    got = ImageTransform((3, 8), channels=5).resize(five)
    for channel in range(5):
        expected = Image.fromarray(five[:, :, channel].copy()).resize((8, 3), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(got[0, :, :, channel], np.asarray(expected))


def test_image_of_the_right_size_is_not_resampled():
    np.testing.assert_array_equal(ImageTransform((6, 4), resample="lanczos").resize(RGB)[0], RGB)


def test_float_image_of_the_right_size_is_not_rounded():
    image = RNG.random((6, 4, 3), "float32")
    np.testing.assert_array_equal(ImageTransform((6, 4), mean=0.0, std=1.0)(image)[0], image)
    np.testing.assert_array_equal(
        ImageTransform((6, 4)).resize(image)[0], np.rint(image * 255).astype("uint8")
    )


def test_float_image_of_another_size_is_resized_with_8_bits():
    image = RNG.random((6, 4, 3))
    transform = ImageTransform((3, 3))
    np.testing.assert_array_equal(transform(image), transform(np.rint(image * 255).astype("uint8")))


def test_half_precision_is_rounded_at_full_precision():
    image = np.full((2, 2, 1), 100 / 255, "float16")
    np.testing.assert_array_equal(ImageTransform(2, channels=1).resize(image), np.full((1, 2, 2, 1), 100))


def test_rescale_applies_to_integers_and_floats():
    transform = ImageTransform((6, 4), rescale=1 / 127.5, mean=1.0, std=1.0)
    np.testing.assert_allclose(transform(RGB)[0], RGB / 127.5 - 1, atol=1e-6)
    np.testing.assert_allclose(transform(RGB / 255.0)[0], RGB / 127.5 - 1, atol=1e-6)


def test_grey_arrays():
    grey = RGB[:, :, 0]
    one = ImageTransform((6, 4), channels=1)
    np.testing.assert_array_equal(one.resize(grey)[0, :, :, 0], grey)
    np.testing.assert_array_equal(one.resize(grey[:, :, None])[0, :, :, 0], grey)
    np.testing.assert_array_equal(ImageTransform((6, 4)).resize(grey)[0], np.stack([grey] * 3, -1))
    assert ImageTransform(3, channels=1).resize(grey).shape == (1, 3, 3, 1)


@pytest.mark.parametrize("nothing", [[], (), np.empty((0, 6, 4, 3), "uint8")])
def test_empty_list_becomes_an_empty_batch(nothing):
    assert ImageTransform((6, 4))(nothing).shape == (0, 6, 4, 3)
    assert list(ImageTransform((6, 4)).batches(nothing, 8)) == []


def test_batches_equal_one_call():
    transform = ImageTransform((5, 5))
    images = [RGB, RGB[::-1], RGB[:, ::-1]]
    pieces = list(transform.batches(images, 2))
    assert [len(piece) for piece in pieces] == [2, 1]
    np.testing.assert_array_equal(np.concatenate(pieces), transform(images))
    np.testing.assert_array_equal(
        np.concatenate(list(transform.batches(images, 2, raw_pixels=True))), transform.resize(images)
    )
    with pytest.raises(ImageError, match=r"^images\[2\] .*shape \(5,\)"):
        list(transform.batches([RGB, RGB, np.zeros(5)], 2))
    with pytest.raises(ConfigError, match="batch_size is 0"):
        list(transform.batches(images, 0))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (
            np.zeros((6, 4, 4), "uint8"),
            r"shape \(6, 4, 4\), expected \(height, width, 3\); .*image\[\.\.\., :3\]",
        ),
        (np.zeros((6, 4, 1), "uint8"), r"shape \(6, 4, 1\).*image\[\.\.\., 0\]"),
        (np.zeros((3, 6, 4), "uint8"), r"shape \(3, 6, 4\).*numpy\.moveaxis\(image, 0, -1\)"),
        (np.zeros((9, 8, 8), "uint8"), r"shape \(9, 8, 8\).*images\[\.\.\., None\]"),
        (np.zeros(7, "uint8"), r"shape \(7,\)"),
        (np.zeros((1, 1, 6, 4, 3), "uint8"), r"shape \(1, 1, 6, 4, 3\)"),
        (np.zeros((0, 4, 3), "uint8"), r"\(0, 4, 3\)"),
        (np.zeros((6, 4, 3), "int64"), r"dtype int64"),
        (np.zeros((6, 4, 3), "uint16"), "dtype uint16"),
        (np.zeros((6, 4, 3), bool), "dtype bool"),
        (np.full((6, 4, 3), "x"), "dtype <U1"),
        (RGB.astype("float32"), r"float values from \d+ to 2\d\d"),
        (np.full((6, 4, 3), -0.25), r"float values from -0\.25 to -0\.25"),
        (np.full((6, 4, 3), np.nan), "float values from nan to nan"),
        (np.full((6, 4, 3), np.inf), "float values from inf to inf"),
        (7, r"the image .*int"),
        (None, r"builtins\.NoneType"),
    ],
)
def test_invalid_image_raises(image, message: str):
    transform = ImageTransform((6, 4))
    with pytest.raises(ImageError, match=message):
        transform(image)
    with pytest.raises(ImageError, match=r"^images\[1\] .*" + message.removeprefix("the image ")):
        transform.resize([RGB, image])


def test_invalid_item_raises_with_index():
    batch = np.stack([RGB / 255.0] * 3)
    batch[2, 0, 0, 0] = np.nan
    with pytest.raises(ImageError, match=r"^images\[2\] .*float"):
        ImageTransform((6, 4))(batch)
    with pytest.raises(ImageError, match=r"shape \(3, 6, 4, 3\).*4-D batch"):
        ImageTransform((6, 4))([batch])


def test_other_channel_counts_require_arrays():
    transform = ImageTransform((6, 4), channels=2)
    assert transform(np.zeros((6, 4, 2))).shape == (1, 6, 4, 2)
    with pytest.raises(ImageError, match="the image .*channels=2"):
        transform(Image.fromarray(RGB))
    with pytest.raises(ImageError, match=r"\(6, 4\).*\(height, width, 2\)"):
        transform(np.zeros((6, 4)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 0}, "size is 0"),
        ({"size": 2.5}, r"size is 2\.5"),
        ({"size": True}, "size is True"),
        ({"size": (1, 2, 3)}, r"size is \(1, 2, 3\)"),
        ({"size": (4, -1)}, "width in size is -1"),
        ({"channels": 0}, "channels is 0"),
        ({"channels": None}, "channels is None"),
        ({"resample": "bicubc"}, "resample is 'bicubc'.* Did you mean 'bicubic'"),
        ({"resample": 3}, "resample is 3"),
        ({"resample": ["bilinear"]}, r"resample is \['bilinear'\]"),
        ({"rescale": 0}, "rescale is 0"),
        ({"rescale": math.nan}, "rescale is nan"),
        ({"mean": (0.5, 0.5)}, r"mean is \(0\.5, 0\.5\)"),
        ({"mean": "half"}, "mean is 'half'"),
        ({"mean": math.inf}, "mean is inf"),
        ({"std": 0.0}, r"std is 0\.0"),
        ({"std": (0.5, -0.5, 0.5)}, r"std is \(0\.5, -0\.5, 0\.5\)"),
        ({"std": None}, "std is None"),
    ],
)
def test_invalid_fields_raise(fields: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        ImageTransform(**{"size": 8, **fields})


def test_asdict_survives_json():
    transform = ImageTransform((6, 4), channels=2, resample="lanczos", rescale=0.5, mean=(0, 1), std=(1, 2))
    assert ImageTransform(**json.loads(json.dumps(dataclasses.asdict(transform)))) == transform
