"""The interfaces of keras-hub's tasks with a preprocessor."""

from __future__ import annotations

from typing import Any

from keras_tx_onnx.interfaces.base import Interface
from keras_tx_onnx.interfaces.image_classifier import ImageClassifierInterface
from keras_tx_onnx.interfaces.image_segmenter import ImageSegmenterInterface
from keras_tx_onnx.interfaces.masked_lm import MaskedLMInterface
from keras_tx_onnx.interfaces.object_detector import ObjectDetectorInterface
from keras_tx_onnx.interfaces.text_classifier import TextClassifierInterface
from keras_tx_onnx.interfaces.text_embedder import TextEmbedderInterface

KERAS_HUB_TASKS: dict[str, type[Interface]] = {  # by the class of keras-hub
    "ImageClassifier": ImageClassifierInterface,
    "ImageSegmenter": ImageSegmenterInterface,
    "MaskedLM": MaskedLMInterface,
    "ObjectDetector": ObjectDetectorInterface,
    "TextClassifier": TextClassifierInterface,
    "TextEmbedder": TextEmbedderInterface,
}


def task_interface(model: Any) -> type[Interface] | None:
    """The interface of a task of keras-hub; None for other models, and without a preprocessor."""
    if getattr(model, "preprocessor", None) is None:
        return None
    kinds = [kind for kind in type(model).__mro__ if kind.__module__.startswith("keras_hub.")]
    return next((KERAS_HUB_TASKS[kind.__name__] for kind in kinds if kind.__name__ in KERAS_HUB_TASKS), None)
