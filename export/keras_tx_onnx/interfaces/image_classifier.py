"""The exported graph of any Keras model that classifies images, with its image transform and its labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.processing import ImageTransform
from keras_tx.processing.image import RESAMPLING
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.interfaces.base import Example, Interface, image_example, image_input
from keras_tx_onnx.interfaces.class_scores import class_scores
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.signature import Functional
from keras_tx_onnx.verifying import cases

# The modules of keras.applications, by the default names of their models.
_MODULES = {
    r"convnext_\w+": "convnext",
    r"densenet\d+": "densenet",
    r"efficientnetb\d": "efficientnet",
    r"efficientnetv2-\w+": "efficientnet_v2",
    r"inception_resnet_v2": "inception_resnet_v2",
    r"inception_v3": "inception_v3",
    r"mobilenet_[\d.]+_\w+": "mobilenet",
    r"mobilenetv2_[\d.]+_\w+": "mobilenet_v2",
    r"MobileNetV3(Small|Large)": "mobilenet_v3",
    r"nasnet_(mobile|large)": "nasnet",
    r"resnet\d+": "resnet",
    r"resnet\d+v2": "resnet_v2",
    r"vgg16": "vgg16",
    r"vgg19": "vgg19",
    r"xception": "xception",
}
_CONVERTER = "keras_hub.src.layers.preprocessing.image_converter"
REVERSAL = "channels_reversed"  # in the name of the node that converts RGB to BGR


def classifier_of(
    functional: Functional, labels: Sequence[str] | None, image: Any, raw_pixels: bool
) -> Interface:
    """The interface of a model with one image in and one vector out, a number for each class.

    Args:
        functional: the model.
        labels: names of the classes, in order; two for a model with one sigmoid.
        image: an ImageTransform, or `preprocess_input` of a module of keras.applications. By default that of
            the model's own module.
        raw_pixels: whether the graph normalizes the pixels.
    """
    model = functional.model
    function = functional_graph.function_of(model)
    height, width, channels = _sizes(model, function)
    scores = class_scores(model, function, labels)
    notes = list(functional.notes)
    if image is None:
        image, note = _own_preprocessing(model, height, width)
        notes.append(note)
    transform, reverses = _transform(image, height, width, channels)
    dtype = function.inputs[0].dtype
    integers = not keras.backend.is_float_dtype(dtype)

    def open_graph(cx: GraphContext) -> list[ir.Value]:
        images = image_input(cx, transform, raw_pixels)
        if reverses:
            with cx.inside(REVERSAL):
                images = cx.op.Gather(images, cx.constant(np.arange(channels)[::-1].copy()), axis=3)
        if integers:
            with cx.inside("image_transform"):
                images = cx.op.Cast(cx.op.Round(images), to=ir.DataType.INT64)
        return [images]

    def example(sizes: cases.Sizes, masks: cases.Masks, random: np.random.Generator) -> Example:
        feed, (images,) = image_example(transform, raw_pixels, len(masks), random)
        images = images[..., ::-1] if reverses else images
        return feed, [np.rint(images).astype("int64") if integers else images]

    config = {
        **scores.config,
        "image_size": [transform.height, transform.width],
        "num_channels": channels,
    }
    notes.append(
        f"config.json has no model_type, because {model.name!r} is not a Hugging Face model. Clients that "
        "need one (Optimum, transformers.js) cannot open the folder; onnxruntime and keras_tx.runtime can."
    )
    return Interface(
        task=contract.IMAGE_CLASSIFICATION,
        open=open_graph,
        outputs=[contract.LOGITS],
        example=example,
        files={contract.CONFIG: config, contract.PREPROCESSOR: transform.to_preprocessor_config(raw_pixels)},
        labels=scores.labels,
        notes=tuple(notes),
        batch=function.inputs[0].shape[0],
        passes=(*Interface.passes, *scores.passes),
        expected=scores.expected,
    )


def _sizes(model: Any, function: Any) -> tuple[int | None, int | None, int]:
    """Height, width and channels."""
    inputs, outputs = function.inputs, function.outputs
    fits = len(inputs) == len(outputs) == 1 and len(inputs[0].shape) == 4 and len(outputs[0].shape) == 2
    if not fits or inputs[0].shape[3] is None or outputs[0].shape[1] is None:
        raise ConfigError(
            f"Model {model.name!r} has the inputs {_shapes(inputs)} and the outputs {_shapes(outputs)}, "
            "expected one image (batch, height, width, channels) and one vector (batch, classes). Leave "
            "task, labels, image and raw_pixels out."
        )
    return inputs[0].shape[1:]


def _shapes(tensors: Sequence[Any]) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors)


def _own_preprocessing(model: Any, height: int | None, width: int | None) -> tuple[Any, str]:
    """The preprocessing of keras-hub or keras.applications for a model, and a note on it."""
    converter = getattr(getattr(model, "preprocessor", None), "image_converter", None)
    if converter is not None and type(converter).call.__module__ == _CONVERTER:
        return _of_keras_hub(model, converter, height, width)
    module = next((m for name, m in _MODULES.items() if re.fullmatch(name, model.name)), None)
    if module is not None:
        preprocess = getattr(keras.applications, module).preprocess_input
        inside = any(
            isinstance(part, (keras.layers.Rescaling, keras.layers.Normalization))
            for part in functional_graph.parts(model)
        )
        black, white = preprocess(np.zeros((1, 1, 3))), preprocess(np.full((1, 1, 3), 255.0))
        unchanged = bool(np.all(black == 0) and np.all(white == 255))
        if inside == unchanged:  # with include_preprocessing=False neither side prepares pixels
            return preprocess, (
                f"Pixels are prepared as keras.applications.{module}.preprocess_input does, because the "
                "model's name and layers are those of that module. image= changes it."
            )
    raise ConfigError(
        f"Model {model.name!r} has no known preprocessing. Pass "
        "image=keras_tx.ImageTransform(size, rescale=..., mean=..., std=...), with rescale=1, mean=0, std=1 "
        "for pixels from 0 to 255, or image=keras.applications.MODULE.preprocess_input."
    )


def _of_keras_hub(
    model: Any, converter: Any, height: int | None, width: int | None
) -> tuple[ImageTransform, str]:
    """keras-hub's ImageConverter, whose pixels are multiplied by a scale before an offset is added."""
    scale, offset = (
        np.broadcast_to(default if value is None else np.asarray(value, "float64"), 3)
        for value, default in ((converter.scale, 1.0), (converter.offset, 0.0))
    )
    high, wide = converter.image_size or (height, width)
    if high is None or wide is None or converter.interpolation not in RESAMPLING:
        raise ConfigError(
            f"The preprocessor of model {model.name!r} has image_size={converter.image_size!r} and "
            f"interpolation={converter.interpolation!r}, expected a size and one of {', '.join(RESAMPLING)}. "
            "Pass image=keras_tx.ImageTransform(size, ...)."
        )
    note = f"Pixels are prepared as the preprocessor of {model.name!r} does."
    shape = "crops" if converter.crop_to_aspect_ratio else "pads" if converter.pad_to_aspect_ratio else ""
    if shape:
        note += (
            f" It {shape} pictures of another aspect ratio than {wide}:{high}; the folder resizes and "
            "distorts them instead. Pass it pictures of that ratio."
        )
    return affine(scale, offset, (high, wide), converter.interpolation), note


def _transform(
    image: Any, height: int | None, width: int | None, channels: int
) -> tuple[ImageTransform, bool]:
    """The transform, and whether the model has the channels in reverse (BGR)."""
    reverses = False
    if callable(image) and getattr(image, "__module__", "").startswith("keras.src.applications."):
        image, reverses = _as_transform(image, height or 224, width or 224)
    if not isinstance(image, ImageTransform):
        raise ConfigError(
            f"image={image!r}: expected a keras_tx.ImageTransform, or preprocess_input of a module of "
            "keras.applications."
        )
    sizes, wanted = (image.height, image.width, image.channels), (height, width, channels)
    if any(b is not None and a != b for a, b in zip(sizes, wanted, strict=True)):
        raise ConfigError(f"image has (height, width, channels) {sizes}, but the model expects {wanted}.")
    return image, reverses


def _as_transform(preprocess: Callable, height: int, width: int) -> tuple[ImageTransform, bool]:
    """A preprocess_input as a transform, computed from its results for black, white and red."""
    black = preprocess(np.zeros((1, 1, 3)))[0, 0]
    slope = (preprocess(np.full((1, 1, 3), 255.0))[0, 0] - black) / 255
    red = preprocess(np.array([[[255.0, 0.0, 0.0]]]))[0, 0] - black
    reverses = bool(red[0] == 0)
    black, slope = (x[::-1] if reverses else x for x in (black, slope))
    return affine(slope, black, (height, width)), reverses


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
