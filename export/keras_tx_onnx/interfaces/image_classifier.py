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
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.interfaces.base import Example, Interface, Masks, Sizes, no_model_type
from keras_tx_onnx.interfaces.class_scores import ClassScores
from keras_tx_onnx.interfaces.keras_hub_images import keras_hub_transform
from keras_tx_onnx.interfaces.vision import ImageOptions, affine, image_example, image_input, transform_size
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.signature import Functional

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
_PREPROCESS = "keras.applications.{}.preprocess_input"


class ImageClassifierInterface(Interface):
    """`pixel_values` or `pixels` to `logits`, for a model of one image and one vector."""

    kind = "an image classifier"
    Options = ImageOptions
    task = contract.IMAGE_CLASSIFICATION

    def __init__(self, functional: Functional, options: ImageOptions, opset: int):
        super().__init__(functional, options, opset)
        model = self.model
        function = functional_graph.function_of(model)
        height, width, channels = _sizes(model, function)
        self.scores = ClassScores(model, function, options.labels)
        self.labels = self.scores.labels
        self.outputs = [contract.LOGITS]
        self.batch = function.inputs[0].shape[0]
        self.passes += self.scores.passes
        self.integers = not keras.backend.is_float_dtype(function.inputs[0].dtype)
        image = options.image
        if image is None:
            image, notes = _own_preprocessing(model, height, width)
            self.notes += notes
        self.preprocessing = _preprocessing_name(image)
        self.transform, self.reverses = _transform(image, height, width, channels)
        self.files = {
            contract.CONFIG: {
                **self.scores.config,
                "image_size": [self.transform.height, self.transform.width],
                "num_channels": channels,
            },
            contract.PREPROCESSOR: self.transform.to_preprocessor_config(options.raw_pixels),
        }
        self.notes.append(no_model_type(f"{model.name!r} is not a Hugging Face model"))

    def open(self, context: GraphContext) -> list[ir.Value]:
        images = image_input(context, self.transform, self.options.raw_pixels)
        op = context.op
        if self.reverses:
            with context.inside("channels_reversed"):
                channels = np.arange(self.transform.channels)[::-1].copy()
                images = op.Gather(images, context.constant(channels), axis=3)
        if self.integers:
            with context.inside("image_transform"):
                images = op.Cast(op.Round(images), to=ir.DataType.INT64)
        return [images]

    def example(self, sizes: Sizes, masks: Masks, random: np.random.Generator) -> Example:
        feed, (images,) = image_example(self.transform, self.options.raw_pixels, len(masks), random)
        images = images[..., ::-1] if self.reverses else images
        return feed, [np.rint(images).astype("int64") if self.integers else images]

    def expected(self, outputs: list[np.ndarray], inputs: list[np.ndarray]) -> list[np.ndarray]:
        return self.scores.expected(outputs, inputs)

    def export_options(self) -> dict[str, Any]:
        """The transform itself is in preprocessor_config.json, except for the order of the channels."""
        options = {"task": self.task, "raw_pixels": self.options.raw_pixels}
        return options | ({"image": self.preprocessing} if self.reverses else {})


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


def _own_preprocessing(model: Any, height: int | None, width: int | None) -> tuple[Any, list[str]]:
    """The preprocessing of keras-hub or keras.applications for a model, and notes about it."""
    of_keras_hub = keras_hub_transform(model, height, width)
    if of_keras_hub is not None:
        return of_keras_hub
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
            return preprocess, [
                f"The folder applies {_PREPROCESS.format(module)} to the pixels, because the model has the "
                "name and the layers of that module. Pass image= to change it."
            ]
    raise ConfigError(
        f"The preprocessing of model {model.name!r} is unknown. Pass "
        "image=keras_tx.ImageTransform(size, rescale=..., mean=..., std=...), with rescale=1, mean=0, std=1 "
        "for pixels from 0 to 255, or image=keras.applications.MODULE.preprocess_input."
    )


def _preprocessing_name(image: Any) -> str | None:
    """The public name of a preprocess_input function of keras.applications; None for anything else."""
    package, _, module = getattr(image, "__module__", "").rpartition(".")
    return _PREPROCESS.format(module) if callable(image) and package == "keras.src.applications" else None


def preprocessing_function(name: str) -> Callable[..., Any]:
    """The preprocess_input function of a name that `export_options` recorded."""
    module = getattr(keras.applications, name.removeprefix("keras.applications.").split(".")[0], None)
    function = getattr(module, "preprocess_input", None)
    if function is None or _preprocessing_name(function) != name:
        raise ConfigError(f"image={name!r} is not a preprocess_input function of keras.applications.")
    return function


def _transform(
    image: Any, height: int | None, width: int | None, channels: int
) -> tuple[ImageTransform, bool]:
    """The transform, and whether the model expects reversed channels (BGR)."""
    reverses = False
    if _preprocessing_name(image) is not None:
        image, reverses = _as_transform(image, height or 224, width or 224)
    if not isinstance(image, ImageTransform):
        raise ConfigError(
            f"image={image!r} is invalid. Pass a keras_tx.ImageTransform, or preprocess_input of a module of "
            "keras.applications."
        )
    size, expected = transform_size(image), (height, width, channels)
    if any(b is not None and a != b for a, b in zip(size, expected, strict=True)):
        raise ConfigError(f"image has (height, width, channels) {size}, but the model expects {expected}.")
    return image, reverses


def _as_transform(preprocess: Callable, height: int, width: int) -> tuple[ImageTransform, bool]:
    """A preprocess_input as a transform, computed from its results for black, white and red."""
    black = preprocess(np.zeros((1, 1, 3)))[0, 0]
    slope = (preprocess(np.full((1, 1, 3), 255.0))[0, 0] - black) / 255
    red = preprocess(np.array([[[255.0, 0.0, 0.0]]]))[0, 0] - black
    reverses = bool(red[0] == 0)
    black, slope = (x[::-1] if reverses else x for x in (black, slope))
    return affine(slope, black, (height, width)), reverses
