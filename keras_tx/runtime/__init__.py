"""Runs exported folders with NumPy and onnxruntime: no Keras, no TensorFlow, no PyTorch, no onnx.

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
    from keras_tx.runtime.tasks.arrays import GenericModel, ImageClassifier, ImageEmbedder
    from keras_tx.runtime.tasks.base import LoadedModel
    from keras_tx.runtime.tasks.text_generation import TextGenerator
    from keras_tx.runtime.tasks.text_rows import MaskFiller, PretrainedEncoder, TextClassifier, TextEmbedder
    from keras_tx.runtime.tasks.text_spans import QuestionAnswerer, TextTagger

_HOMES = {
    "Folder": "folder",
    "GenericModel": "tasks.arrays",
    "ImageClassifier": "tasks.arrays",
    "ImageEmbedder": "tasks.arrays",
    "LoadedModel": "tasks.base",
    "MaskFiller": "tasks.text_rows",
    "PretrainedEncoder": "tasks.text_rows",
    "QuestionAnswerer": "tasks.text_spans",
    "Session": "session",
    "TextClassifier": "tasks.text_rows",
    "TextEmbedder": "tasks.text_rows",
    "TextGenerator": "tasks.text_generation",
    "TextTagger": "tasks.text_spans",
    "open_folder": "folder",
    "verify_hashes": "folder",
}

__all__ = [
    "Folder",
    "GenericModel",
    "ImageClassifier",
    "ImageEmbedder",
    "LoadedModel",
    "MaskFiller",
    "PretrainedEncoder",
    "QuestionAnswerer",
    "Session",
    "TextClassifier",
    "TextEmbedder",
    "TextGenerator",
    "TextTagger",
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
) -> LoadedModel:
    """Opens an exported folder, ready to run.

    >>> model = load("flowers")  # doctest: +SKIP
    >>> model  # doctest: +SKIP
    <ImageClassifier 'flowers': pixel_values float32 (batch_size, 3, 224, 224) on cpu, 5 labels>
    >>> model(["rose.jpg", "tulip.jpg"], top_k=1)  # doctest: +SKIP
    [[{'label': 'rose', 'score': 0.98}], [{'label': 'tulip', 'score': 0.97}]]

    Args:
        folder: what `export_onnx` wrote. A folder that is damaged, or that points outside itself, is refused.
        provider: "cpu", "cuda", "tensorrt", "openvino", "coreml" or "directml", and nothing else is taken; or
            "auto": CUDA where it works, otherwise the CPU, with a warning where an onnxruntime that was built
            for CUDA cannot use it. `.provider` of the result says which it is, and
            `.session.placement()` how many nodes run where.
        threads: for one operation on the CPU; None leaves it to onnxruntime.
        precision: which file of the folder to run, "fp32", "fp16", "int8", "int8-blocks" or "int4". By
            default fp32, or fp16 on a GPU ("cuda", "tensorrt", "directml", or "auto" where that comes to
            CUDA) where the folder has it; or the only one that is there. `.precision` of the result says
            which it is. `keras-tx quantize` adds others.

    Returns:
        An `ImageClassifier` or `ImageEmbedder`; a `TextClassifier`, `TextTagger`, `QuestionAnswerer`,
        `MaskFiller`, `PretrainedEncoder` or `TextEmbedder`; a `TextGenerator`; or a `GenericModel`, for a
        model of no known task and for a text model without tokenizer.
    """
    from keras_tx.runtime.tasks.arrays import open_model

    return open_model(folder, provider, threads, precision)


def __getattr__(name: str) -> Any:
    """Loads a name when it is first used: importing this package costs nothing."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
