"""The interface of a vision model: pixels, logits or features, and the files of clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.heads.base import label_names
from keras_tx.processing import ImageTransform
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.interfaces.base import Example, Interface, Masks, Sizes, check_flag
from keras_tx_onnx.reading.signature import Functional


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """Options of the models that classify or embed images; see export_onnx."""

    labels: Sequence[str] | None = None
    image: Any = None
    raw_pixels: bool = False

    def __post_init__(self) -> None:
        check_flag("raw_pixels", self.raw_pixels)


class VisionInterface(Interface):
    """`pixel_values` or `pixels` to logits or features."""

    kind = "a vision model"
    Options = ImageOptions

    def __init__(self, functional: Functional, options: ImageOptions, opset: int):
        super().__init__(functional, options, opset)
        model = self.model
        labels = label_names(model.head, options.labels, model.name)
        self.transform = _transform(model, options.image)
        self.task = model.task
        self.labels = None if labels is None else tuple(labels)
        self.outputs = sorted(model.output) if isinstance(model.output, dict) else [_output(model)]
        self.add_config(model, labels)
        self.files[contract.PREPROCESSOR] = self.transform.to_preprocessor_config(options.raw_pixels)

    def open(self, context: GraphContext) -> list[ir.Value]:
        return [image_input(context, self.transform, self.options.raw_pixels)]

    def example(self, sizes: Sizes, masks: Masks, random: np.random.Generator) -> Example:
        return image_example(self.transform, self.options.raw_pixels, len(masks), random)

    def export_options(self) -> dict[str, Any]:
        return {"raw_pixels": self.options.raw_pixels}


def _output(model: Any) -> str:
    if model.head is not None:
        return contract.LOGITS
    return contract.LAST_HIDDEN_STATE if len(model.output.shape) == 3 else contract.IMAGE_EMBEDS


def _transform(model: Any, image: Any) -> ImageTransform:
    if image is not None and not isinstance(image, ImageTransform):
        raise ConfigError(f"image={image!r} is invalid. Pass a keras_tx.ImageTransform.")
    transform = image or model.processing
    size, expected = transform_size(transform), transform_size(model.processing)
    if size != expected:
        raise ConfigError(f"image has (height, width, channels) {size}, but the model expects {expected}.")
    return transform


def transform_size(transform: ImageTransform) -> tuple[int, int, int]:
    return transform.height, transform.width, transform.channels


def image_input(context: GraphContext, transform: ImageTransform, raw_pixels: bool) -> ir.Value:
    """Adds the input `pixels` or `pixel_values` and returns the images, channels last."""
    height, width, channels = transform_size(transform)
    op = context.op
    if raw_pixels:
        shape = [contract.BATCH_AXIS, height, width, channels]
        pixels = context.input(contract.PIXELS, ir.DataType.UINT8, shape)
        with context.inside("image_transform"):
            scale = transform.rescale / np.asarray(transform.std)
            shift = -np.asarray(transform.mean) / np.asarray(transform.std)
            return op.Add(op.Mul(op.Cast(pixels, to=ir.DataType.FLOAT), scale), shift)
    shape = [contract.BATCH_AXIS, channels, height, width]
    values = context.input(contract.PIXEL_VALUES, ir.DataType.FLOAT, shape)
    with context.inside("channels_last"):
        return op.Transpose(values, perm=[0, 2, 3, 1])


def image_example(
    transform: ImageTransform, raw_pixels: bool, batch: int, random: np.random.Generator
) -> Example:
    """Random pixels for `image_input`, and the images that the model receives for them."""
    height, width, channels = transform_size(transform)
    pixels = random.integers(0, 256, (batch, height, width, channels), "uint8")
    images = transform(pixels)
    if raw_pixels:
        return {contract.PIXELS: pixels}, [images]
    return {contract.PIXEL_VALUES: np.ascontiguousarray(images.transpose(0, 3, 1, 2))}, [images]


def affine(
    slope: np.ndarray, offset: np.ndarray, size: tuple[int, int], resample: str = "bilinear"
) -> ImageTransform:
    """The transform that computes slope * pixel + offset for pixels from 0 to 255."""
    rescale = 1.0 if np.all(slope == 1) else 1 / 255
    std = np.round(rescale / slope, 12)
    mean = tuple(np.round(-offset * std, 12).tolist())
    return ImageTransform(
        size, channels=len(mean), resample=resample, rescale=rescale, mean=mean, std=tuple(std.tolist())
    )
