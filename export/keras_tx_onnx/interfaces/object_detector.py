"""The exported graph of an object detector of keras-hub: boxes and scores before non-maximum suppression."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx_onnx.errors import one_line
from keras_tx_onnx.interfaces.keras_hub_image_task import KerasHubImageInterface, sized_task
from keras_tx_onnx.interfaces.vision import ImageOptions
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.keras_patches import patched
from keras_tx_onnx.reading.signature import Functional

_DECODER = "NonMaxSuppression"  # of keras_hub.layers


class ObjectDetectorInterface(KerasHubImageInterface):
    """`pixel_values` or `pixels` to `boxes` and `scores`; the runtime suppresses overlapping boxes."""

    kind = "an object detector of keras-hub"
    task = contract.OBJECT_DETECTION

    def __init__(self, functional: Functional, options: ImageOptions, opset: int):
        source = sized_task(functional.model, options.image)
        decoder = source.prediction_decoder
        if type(decoder).__name__ != _DECODER:
            raise ConfigError(
                f"The prediction_decoder of model {source.name!r} is a {type(decoder).__name__}, expected "
                f"keras_hub.layers.{_DECODER}."
            )
        model = _with_boxes(source, decoder)
        super().__init__(dataclasses.replace(functional, model=model), options, opset, source)
        self.outputs = [contract.BOXES, contract.SCORES]
        self.add_files(
            source.num_classes,
            {
                "confidence_threshold": float(decoder.confidence_threshold),
                "iou_threshold": float(decoder.iou_threshold),
                "max_detections": int(decoder.max_detections),
            },
        )


class _Predictions:
    """In place of the NonMaxSuppression layer: keeps what the model passes to it."""

    def __init__(self, decoder: Any) -> None:
        self.bounding_box_format = decoder.bounding_box_format

    def __call__(self, boxes: Any, classes: Any, images: Any = None) -> dict[str, Any]:
        self.boxes, self.classes = boxes, classes
        return {"boxes": boxes}


def _with_boxes(source: Any, decoder: Any) -> keras.Model:
    """The model with the outputs that it passes to the NonMaxSuppression layer: boxes and probabilities."""
    function = functional_graph.function_of(source)
    (image,) = function.inputs
    height, width = image.shape[1:3]
    predictions = _Predictions(decoder)
    source._prediction_decoder = predictions
    try:
        with patched():
            source.decode_predictions(source.output, image)
            boxes = keras.utils.bounding_boxes.convert_format(
                predictions.boxes, decoder.bounding_box_format, "xyxy", height=height, width=width
            )
    except Exception as error:  # the model's code may raise any exception
        raise ConfigError(
            f"The boxes of model {source.name!r} ({type(source).__name__}) cannot be computed in a graph: "
            f"{one_line(error)}"
        ) from error
    finally:
        source._prediction_decoder = decoder
    scores = ops.sigmoid(predictions.classes) if decoder.from_logits else predictions.classes
    return keras.Model(image, [boxes, scores], name=source.name)
