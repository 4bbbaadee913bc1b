import json

import pytest

from keras_tx.errors import ConfigError
from keras_tx.processing import ImageTransform

VIT = {  # google/vit-base-patch16-224, as published
    "do_normalize": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "size": 224,
    "feature_extractor_type": "ViTFeatureExtractor",
    "resample": 2,
}


@pytest.mark.parametrize("raw_pixels", [False, True])
@pytest.mark.parametrize(
    "transform",
    [
        ImageTransform(224),
        ImageTransform((32, 48), mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0), resample="bicubic"),
        ImageTransform(8, channels=1, rescale=1 / 16, mean=0.0, std=1.0, resample="nearest"),
        ImageTransform(8, channels=5, resample="lanczos"),
    ],
)
def test_round_trip(transform: ImageTransform, raw_pixels: bool):
    config = json.loads(json.dumps(transform.to_preprocessor_config(raw_pixels)))
    assert ImageTransform.from_preprocessor_config(config) == transform


def test_keys_are_those_of_hugging_face():
    config = ImageTransform((32, 48), resample="bicubic").to_preprocessor_config()
    assert config == {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": 32, "width": 48},
        "resample": 3,
        "do_convert_rgb": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    raw = ImageTransform((32, 48), resample="bicubic").to_preprocessor_config(raw_pixels=True)
    assert raw == config | {"do_rescale": False, "do_normalize": False, "raw_pixels": True}


def test_published_files_are_read():
    assert ImageTransform.from_preprocessor_config(VIT) == ImageTransform(224)
    assert ImageTransform.from_preprocessor_config({}) == ImageTransform(224)
    nulls = {"crop_size": None, "do_center_crop": None, "data_format": "channels_first", "device": None}
    fast = VIT | nulls | {"image_processor_type": "ViTImageProcessorFast", "do_convert_rgb": True}
    assert ImageTransform.from_preprocessor_config(fast) == ImageTransform(224)


def test_disabled_steps_are_skipped():
    transform = ImageTransform.from_preprocessor_config(VIT | {"do_rescale": False, "do_normalize": False})
    assert transform == ImageTransform(224, rescale=1.0, mean=0.0, std=1.0)
    transform = ImageTransform.from_preprocessor_config(VIT | {"do_normalize": False, "image_mean": [0.1]})
    assert transform == ImageTransform(224, channels=1, mean=0.0, std=1.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"do_center_crop": True}, "do_center_crop is True"),
        ({"do_pad": True}, "do_pad is True"),
        ({"do_flip_channel_order": True}, "do_flip_channel_order is True"),
        ({"do_something_new": True}, "do_something_new is True"),
        ({"crop_pct": 0.875}, r"crop_pct is 0\.875"),
        ({"data_format": "channels_last"}, "data_format is 'channels_last'"),
        ({"image_mean": [0.5], "image_std": [0.5], "do_convert_rgb": True}, "do_convert_rgb is True"),
        ({"do_resize": False}, "do_resize is False"),
        ({"do_rescale": "no"}, "do_rescale is 'no'"),
        ({"resample": 4}, "resample is 'box'"),
        ({"resample": 17}, "resample is 17"),
        ({"resample": [2]}, r"resample is \[2\]"),
        ({"size": {"shortest_edge": 224}}, "size is {'shortest_edge': 224}"),
        ({"size": {"height": 224}}, "size is {'height': 224}"),
        ({"size": {"height": 224, "width": "wide"}}, "width in size is 'wide'"),
        ({"size": 224, "default_to_square": False}, "size is 224"),
        ({"size": "224"}, "size is '224'"),
        ({"image_mean": [0.5, 0.5]}, "image_std has 3 numbers"),
        ({"image_std": [0.5, 0.5, 0]}, r"image_std is \[0\.5, 0\.5, 0\]"),
        ({"image_mean": [0.5, True, 0]}, r"image_mean is \[0\.5, True, 0\]"),
        ({"rescale_factor": [1.0]}, r"rescale_factor is \[1\.0\]"),
        ({"rescale_factor": "1/255"}, "rescale_factor is '1/255'"),
        ({"image_processor_type": "MobileViTImageProcessor"}, "image_processor_type is 'MobileViTImageProc"),
        ({"raw_pixels": True}, "raw_pixels is True, but do_rescale is True and do_normalize is True"),
    ],
)
def test_unsupported_key_raises(fields: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        ImageTransform.from_preprocessor_config(VIT | fields)
