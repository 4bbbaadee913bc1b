"""The exported graph of an image segmenter of keras-hub: the scores of each pixel."""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx_onnx.interfaces.keras_hub_image_task import KerasHubImageInterface, sized_task
from keras_tx_onnx.interfaces.vision import ImageOptions
from keras_tx_onnx.reading import functional_graph, last_activation
from keras_tx_onnx.reading.signature import Functional


class ImageSegmenterInterface(KerasHubImageInterface):
    """`pixel_values` or `pixels` to the `scores` of each pixel, which are the outputs of the Keras model."""

    kind = "an image segmenter of keras-hub"
    task = contract.IMAGE_SEGMENTATION

    def __init__(self, functional: Functional, options: ImageOptions, opset: int):
        model = sized_task(functional.model, options.image)
        functional = dataclasses.replace(functional, model=model)
        function = functional_graph.function_of(model)
        outputs = function.outputs
        if len(outputs) != 1 or len(outputs[0].shape) != 4 or outputs[0].shape[3] is None:
            raise ConfigError(
                f"Model {model.name!r} has the outputs {', '.join(str(tuple(x.shape)) for x in outputs)}, "
                "expected one (batch, height, width, classes)."
            )
        super().__init__(functional, options, opset, model)
        self.outputs = [contract.SCORES]
        classes = outputs[0].shape[3]
        self.add_files(classes, {} if classes > 1 else {"mask_threshold": _threshold(model, outputs[0])})


def _threshold(model: Any, output: Any) -> float:
    """The score above which a pixel belongs to the only class: that of the probability 0.5."""
    operation = functional_graph.final_operation(output)
    activation = last_activation.activation_of(operation)
    thresholds = {"sigmoid": 0.5, "linear": 0.0}
    if activation not in thresholds:
        raise ConfigError(
            f"Model {model.name!r} has one class and ends with {type(operation).__name__} "
            f"{operation.name!r}, expected a convolution or a sigmoid."
        )
    return thresholds[activation]
