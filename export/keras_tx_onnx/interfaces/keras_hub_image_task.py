"""The exported graph of a keras-hub task of one image, with its preprocessor's image transform."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.heads.base import check_labels
from keras_tx.processing import ImageTransform
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.interfaces.base import Example, Interface, Masks, Sizes, no_model_type
from keras_tx_onnx.interfaces.fixed_image_shape import with_image_shape
from keras_tx_onnx.interfaces.keras_hub_images import keras_hub_transform
from keras_tx_onnx.interfaces.vision import ImageOptions, image_example, image_input, transform_size
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.signature import Functional


class KerasHubImageInterface(Interface):
    """`pixel_values` or `pixels` to the outputs of a task of one image."""

    Options = ImageOptions

    def __init__(self, functional: Functional, options: ImageOptions, opset: int, source: Any):
        """`source` is the task of keras-hub, whose inputs and layers the exported model has."""
        super().__init__(functional, options, opset)
        (image,) = functional_graph.function_of(self.model).inputs
        height, width, channels = image.shape[1:]
        self.batch = image.shape[0]
        self.transform = _transform(source, options.image, height, width, self.notes)
        size, expected = transform_size(self.transform), (height, width, channels)
        if any(b is not None and a != b for a, b in zip(size, expected, strict=True)):
            raise ConfigError(
                f"image has (height, width, channels) {size}, but the model expects {expected}."
            )

    def add_files(self, classes: int, fields: dict[str, Any]) -> None:
        """Adds config.json with the labels and these fields, and preprocessor_config.json."""
        labels = self.options.labels
        default = [f"LABEL_{index}" for index in range(classes)]
        self.labels = tuple(default if labels is None else check_labels(labels, classes))
        self.files = {
            contract.CONFIG: {
                "id2label": {str(index): name for index, name in enumerate(self.labels)},
                "label2id": {name: index for index, name in enumerate(self.labels)},
                "image_size": [self.transform.height, self.transform.width],
                "num_channels": self.transform.channels,
                **fields,
            },
            contract.PREPROCESSOR: self.transform.to_preprocessor_config(self.options.raw_pixels),
        }
        self.notes.append(no_model_type(f"{self.model.name!r} is a keras-hub model"))

    def open(self, context: GraphContext) -> list[ir.Value]:
        return [image_input(context, self.transform, self.options.raw_pixels)]

    def example(self, sizes: Sizes, masks: Masks, random: np.random.Generator) -> Example:
        return image_example(self.transform, self.options.raw_pixels, len(masks), random)

    def export_options(self) -> dict[str, Any]:
        return {"task": self.task, "raw_pixels": self.options.raw_pixels}


def _transform(
    source: Any, image: Any, height: int | None, width: int | None, notes: list[str]
) -> ImageTransform:
    if image is not None:
        if not isinstance(image, ImageTransform):
            raise ConfigError(f"image={image!r} is invalid. Pass a keras_tx.ImageTransform.")
        return image
    of_keras_hub = keras_hub_transform(source, height, width)
    if of_keras_hub is None:
        raise ConfigError(
            f"The preprocessing of model {source.name!r} is unknown. Pass "
            "image=keras_tx.ImageTransform(size, rescale=..., mean=..., std=...)."
        )
    transform, own_notes = of_keras_hub
    notes += own_notes
    return transform


def sized_task(source: Any, image: Any) -> Any:
    """The task for images of the size of its preprocessor, or of the option `image`."""
    inputs = functional_graph.function_of(source).inputs
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].shape[3] is None:
        raise ConfigError(
            f"Model {source.name!r} has the inputs {', '.join(str(tuple(x.shape)) for x in inputs)}, "
            "expected one image (batch, height, width, channels)."
        )
    if isinstance(image, ImageTransform):
        return with_image_shape(source, image.height, image.width)
    converter = getattr(source.preprocessor, "image_converter", None)
    size = getattr(converter, "image_size", None) or inputs[0].shape[1:3]
    if None in size:
        raise ConfigError(
            f"Model {source.name!r} accepts images of any size. Set image_size of the image_converter of its "
            "preprocessor, or pass image=."
        )
    return with_image_shape(source, *size)
