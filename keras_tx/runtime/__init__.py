"""Runs exported folders with NumPy and onnxruntime, without Keras, TensorFlow, PyTorch or onnx.

>>> from keras_tx.runtime import load
>>> load("flowers")("rose.jpg")  # doctest: +SKIP
[{'label': 'rose', 'score': 0.98}, {'label': 'tulip', 'score': 0.01}]
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_tx.runtime.folder import Folder, open_folder, verify_hashes
    from keras_tx.runtime.session import Session
    from keras_tx.runtime.tasks.arrays import GenericModel
    from keras_tx.runtime.tasks.base import LoadedModel
    from keras_tx.runtime.tasks.feature_extraction import TextEmbedder
    from keras_tx.runtime.tasks.fill_mask import MaskFiller
    from keras_tx.runtime.tasks.image_classification import ImageClassifier
    from keras_tx.runtime.tasks.image_feature_extraction import ImageEmbedder
    from keras_tx.runtime.tasks.image_segmentation import ImageSegmenter
    from keras_tx.runtime.tasks.multiple_choice import ChoiceModel
    from keras_tx.runtime.tasks.object_detection import ObjectDetector
    from keras_tx.runtime.tasks.pretraining import PretrainedEncoder
    from keras_tx.runtime.tasks.question_answering import QuestionAnswerer
    from keras_tx.runtime.tasks.summarization import Summarizer
    from keras_tx.runtime.tasks.text2text_generation import TextToTextGenerator
    from keras_tx.runtime.tasks.text_classification import TextClassifier
    from keras_tx.runtime.tasks.text_generation import TextGenerator
    from keras_tx.runtime.tasks.token_classification import TextTagger
    from keras_tx.runtime.tasks.translation import Translator

_HOMES = {
    "ChoiceModel": "tasks.multiple_choice",
    "Folder": "folder",
    "GenericModel": "tasks.arrays",
    "ImageClassifier": "tasks.image_classification",
    "ImageEmbedder": "tasks.image_feature_extraction",
    "ImageSegmenter": "tasks.image_segmentation",
    "LoadedModel": "tasks.base",
    "MaskFiller": "tasks.fill_mask",
    "ObjectDetector": "tasks.object_detection",
    "PretrainedEncoder": "tasks.pretraining",
    "QuestionAnswerer": "tasks.question_answering",
    "Session": "session",
    "Summarizer": "tasks.summarization",
    "TextClassifier": "tasks.text_classification",
    "TextEmbedder": "tasks.feature_extraction",
    "TextGenerator": "tasks.text_generation",
    "TextTagger": "tasks.token_classification",
    "TextToTextGenerator": "tasks.text2text_generation",
    "Translator": "tasks.translation",
    "open_folder": "folder",
    "verify_hashes": "folder",
}

__all__ = [
    "ChoiceModel",
    "Folder",
    "GenericModel",
    "ImageClassifier",
    "ImageEmbedder",
    "ImageSegmenter",
    "LoadedModel",
    "MaskFiller",
    "ObjectDetector",
    "PretrainedEncoder",
    "QuestionAnswerer",
    "Session",
    "Summarizer",
    "TextClassifier",
    "TextEmbedder",
    "TextGenerator",
    "TextTagger",
    "TextToTextGenerator",
    "Translator",
    "load",
    "open_folder",
    "verify_hashes",
]


def load(
    folder: str | os.PathLike[str],
    *,
    provider: str = "auto",
    threads: int | None = None,
    precision: str | None = None,
    strict: bool = False,
) -> LoadedModel:
    """Loads an exported folder.

    >>> model = load("flowers")  # doctest: +SKIP
    >>> model  # doctest: +SKIP
    <ImageClassifier 'flowers': pixel_values float32 (batch_size, 3, 224, 224) on cpu, 5 labels>
    >>> model(["rose.jpg", "tulip.jpg"], top_k=1)  # doctest: +SKIP
    [[{'label': 'rose', 'score': 0.98}], [{'label': 'tulip', 'score': 0.97}]]

    Args:
        folder: path of a folder that `export_onnx` wrote.
        provider: "cpu", "cuda", "tensorrt", "openvino", "coreml" or "directml"; or "auto", which uses CUDA if
            it works and otherwise the CPU, with a warning if onnxruntime was built for CUDA. The result has
            it as `.provider`; `.session.placement()` counts the nodes on each provider.
        threads: threads of one operation on the CPU; by default as many as cores.
        precision: "fp32", "fp16", "int8", "int8-blocks" (of a decoder "int8-dynamic") or "int4". By
            default fp32, or on a GPU fp16 if the folder has it; or the folder's only one. The result has it
            as `.precision`. `keras-tx quantize` adds precisions to a folder.
        strict: whether to raise an error if onnxruntime runs nodes on the CPU instead of the provider, or
            "auto" chose the CPU because CUDA did not start. Nodes that only compute sizes do not count, and
            neither do those that TensorRT leaves to CUDA. `keras-tx doctor FOLDER --target` predicts them.

    Returns:
        The model of the folder's task, whose call runs its method. `ImageClassifier` and `TextClassifier`
        (`classify`), `ImageEmbedder` and `TextEmbedder` (`embed`), `ImageSegmenter` (`segment`),
        `ObjectDetector` (`detect`), `TextTagger` (`tag`), `QuestionAnswerer` (`answer`), `ChoiceModel`
        (`choose`), `MaskFiller` and `PretrainedEncoder` (`fill`), `TextGenerator` and `TextToTextGenerator`
        (`generate`), `Translator` (`translate`), `Summarizer` (`summarize`); or a `GenericModel` (`run`) for
        a graph without a known task and for an encoder of texts without tokenizer.

    Raises:
        FolderError: if the folder is damaged, incomplete, or refers to files outside itself.
        ProviderError: if the provider is unknown or not available; with `strict`, if nodes run on the CPU.
        ConfigError: if `threads` is out of range, or the folder does not have the precision.
    """
    from keras_tx.runtime.loading import load_folder

    return load_folder(folder, provider, threads, precision, strict)


def __getattr__(name: str) -> Any:
    """Imports the module of a public name when it is first used."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
