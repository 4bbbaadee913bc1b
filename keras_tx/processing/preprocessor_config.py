"""Reads Hugging Face's preprocessor_config.json as the fields of an ImageTransform."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PIL import Image

from keras_tx.errors import ConfigError
from keras_tx.processing.keras_resize import KerasResize

# Other processors have the same keys with other defaults.
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
PROCESSOR_TYPE = "ViTImageProcessor"  # the one that is written
PROCESSOR_TYPES: dict[str, dict[str, Any]] = {  # with the keys of which the default is another one
    PROCESSOR_TYPE: {},
    "ViTImageProcessorFast": {},
    "ViTFeatureExtractor": {},
    "DINOv3ViTImageProcessor": IMAGENET,
    "DINOv3ViTImageProcessorFast": IMAGENET,
}

# Our key, which Hugging Face ignores: the fields of a KerasResize.
KERAS_RESIZE = "keras_resize"

# Our key, which Hugging Face ignores: the graph rescales and normalizes by the factors of the file, although
# do_rescale and do_normalize are false.
RAW_PIXELS = "raw_pixels"

_WITHOUT_EFFECT = frozenset(
    {
        "image_processor_type",
        "feature_extractor_type",
        "processor_class",
        "_processor_class",
        "_valid_processor_keys",
        "crop_size",  # cropping and padding themselves are refused
        "pad_size",
        "device",
        "return_tensors",
        "disable_grouping",
    }
)


def fields_from(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of an ImageTransform; missing keys have the defaults of ViTImageProcessor.

    Raises:
        ConfigError: a key has a value that ImageTransform does not support.
    """
    fields = {key: value for key, value in config.items() if value is not None}
    kind = fields.get("image_processor_type", fields.get("feature_extractor_type", PROCESSOR_TYPE))
    if not isinstance(kind, str) or kind not in PROCESSOR_TYPES:
        raise ConfigError(f"image_processor_type is {kind!r}, expected one of {', '.join(PROCESSOR_TYPES)}.")
    fields = {**PROCESSOR_TYPES[kind], **fields}
    if not _switch(fields, "do_resize", True):
        raise ConfigError("do_resize is False, expected True: the graph accepts one size only.")
    size, resample = _size(fields), _resample(fields)
    mean = fields.get("image_mean")
    channels = len(mean) if isinstance(mean, list) else 3
    factors = _pixel_factors(fields)
    resize = fields.pop(KERAS_RESIZE, None)
    if resize is not None:
        factors[KERAS_RESIZE] = KerasResize.from_dict(resize)
    _check_unsupported(fields, channels)
    return {"size": size, "channels": channels, "resample": resample, **factors}


def _pixel_factors(fields: dict[str, Any]) -> dict[str, Any]:
    """The rescale factor, mean and standard deviation; those of a step that is off have no effect."""
    rescale = _numbers(fields, "rescale_factor", 1 / 255)
    mean, std = _numbers(fields, "image_mean", 0.5), _numbers(fields, "image_std", 0.5)
    if isinstance(rescale, list):
        raise ConfigError(f"rescale_factor is {rescale!r}, expected one number.")
    for key, value in (("rescale_factor", rescale), ("image_std", std)):
        if min(value if isinstance(value, list) else [value]) <= 0:
            raise ConfigError(f"{key} is {value!r}, expected above 0.")
    do_rescale, do_normalize = _switch(fields, "do_rescale", True), _switch(fields, "do_normalize", True)
    in_graph = _switch(fields, RAW_PIXELS, False)
    if in_graph and (do_rescale or do_normalize):
        raise ConfigError(
            f"raw_pixels is True, but do_rescale is {do_rescale} and do_normalize is {do_normalize}. The "
            "graph does both, so set both to false."
        )
    if not (do_rescale or in_graph):
        rescale = 1.0
    if not (do_normalize or in_graph):
        mean, std = (0.0, 1.0)
    elif isinstance(mean, list) and isinstance(std, list) and len(mean) != len(std):
        raise ConfigError(f"image_std has {len(std)} numbers, expected as many as image_mean, {len(mean)}.")
    return {"rescale": rescale, "mean": mean, "std": std}


def _switch(fields: dict[str, Any], key: str, default: bool) -> bool:
    value = fields.pop(key, default)
    if not isinstance(value, bool):
        raise ConfigError(f"{key} is {value!r}, expected true or false.")
    return value


def _numbers(fields: dict[str, Any], key: str, default: float) -> Any:
    """A finite number, or a list of them."""
    value = fields.pop(key, default)
    for each in value if isinstance(value, list) and value else [value]:
        if isinstance(each, bool) or not isinstance(each, int | float) or not abs(each) < float("inf"):
            raise ConfigError(f"{key} is {value!r}, expected finite numbers.")
    return value


def _size(fields: dict[str, Any]) -> Any:
    size = fields.pop("size", 224)
    square = _switch(fields, "default_to_square", True)
    if isinstance(size, Mapping) and set(size) == {"height", "width"}:
        return size["height"], size["width"]
    if isinstance(size, int) and square:
        return size
    raise ConfigError(
        f'size is {size!r}, expected {{"height": ..., "width": ...}}. Other forms keep the aspect ratio.'
    )


def _resample(fields: dict[str, Any]) -> str:
    number = fields.pop("resample", Image.Resampling.BILINEAR)
    try:
        return Image.Resampling(number).name.lower()
    except ValueError:
        raise ConfigError(
            f"resample is {number!r}, expected the number of a Pillow filter, 0 to 3."
        ) from None


def _check_unsupported(fields: dict[str, Any], channels: int) -> None:
    for key, value in fields.items():
        if key in _WITHOUT_EFFECT or (key.startswith("do_") and value is False):
            continue
        if key == "do_convert_rgb" and value is True and channels == 3:
            continue
        if key in ("data_format", "input_data_format") and value == "channels_first":
            continue  # the output of the processor, and the input of the graph
        raise ConfigError(
            f"{key} is {value!r}, which is not supported: ImageTransform resizes, rescales and normalizes. "
            "Remove the key if it has no effect, or preprocess the images yourself."
        )
