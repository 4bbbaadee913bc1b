"""What an exported folder does: images in, labels or embeddings out; or any arrays in and out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.consistent_read import read_consistently
from keras_tx.errors import FolderError, InputError, nearest, whole_number
from keras_tx.processing import ImageTransform
from keras_tx.processing.image import Images, are_several
from keras_tx.runtime.folder import Folder, check_unchanged, checked_folder, folder_path
from keras_tx.runtime.providers import check_name, on_gpu
from keras_tx.runtime.session import Session, describe, stays_on_cpu
from keras_tx.runtime.tasks.base import LoadedModel
from keras_tx.runtime.tasks.scores import Scores
from keras_tx.runtime.tasks.text import checked_tokens
from keras_tx.runtime.tasks.text_generation import TextGenerator
from keras_tx.runtime.tasks.text_rows import MaskFiller, PretrainedEncoder, TextClassifier, TextEmbedder
from keras_tx.runtime.tasks.text_spans import QuestionAnswerer, TextTagger


class _ImageModel(LoadedModel):
    """One image input, `pixel_values` or `pixels`, fed through the transform of the folder."""

    def __init__(self, folder: Folder, session: Session, outputs: tuple[str, ...]) -> None:
        super().__init__(folder, session)
        self.transform = _transform_for(folder, session)
        self._output = _output_of(folder, session, outputs)

    def _outputs(self, images: Images, batch_size: int) -> Iterator[np.ndarray]:
        """The output for each image in turn, `batch_size` of them computed at a time."""
        name = self.session.inputs[0].name
        raw = name == contract.PIXELS
        for batch in self.transform.batches(images, batch_size, raw_pixels=raw):
            # (batch, height, width, channels) -> (batch, channels, height, width)
            fed = batch if raw else np.ascontiguousarray(batch.transpose(0, 3, 1, 2))
            yield from self.session.run({name: fed})[self._output]


class ImageClassifier(_ImageModel):
    """Images to labels with scores.

    >>> classify = load("flowers")  # doctest: +SKIP
    >>> classify("rose.jpg", top_k=2)  # doctest: +SKIP
    [{'label': 'rose', 'score': 0.98}, {'label': 'tulip', 'score': 0.01}]
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session, (contract.LOGITS,))
        self._labels = _labels_for(folder, session)
        self._scores = Scores(folder.problem_type, self._labels)

    @property
    def labels(self) -> tuple[str, ...]:
        return self._labels

    def __call__(self, images: Images, top_k: int = 5, batch_size: int = 32) -> list[Any]:
        """The `top_k` best labels of an image, best first; of a list or a 4-D batch, a list of those.

        An image is whatever `ImageTransform` takes: a path, bytes, a Pillow image, a NumPy array.
        Scores are the softmax over all classes; where an image may have several, the sigmoid of each.
        """
        top_k = min(whole_number("top_k", top_k), len(self.labels))
        found = [self._scores.best(logits, top_k) for logits in self._outputs(images, batch_size)]
        return found if are_several(images) else found[0]


class ImageEmbedder(_ImageModel):
    """Images to vectors, one an image, or one a token where the model was exported without pooling.

    >>> load("features")(["a.jpg", "b.jpg"]).shape  # doctest: +SKIP
    (2, 768)
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session, (contract.IMAGE_EMBEDS, contract.LAST_HIDDEN_STATE))

    def embed(self, images: Images, batch_size: int = 32) -> np.ndarray:
        """For one image its embedding; for a list or a 4-D batch, those stacked."""
        found = list(self._outputs(images, batch_size))
        if not found:
            shape = next(spec.shape for spec in self.session.outputs if spec.name == self._output)
            return np.empty((0, *(0 if isinstance(axis, str) else axis for axis in shape[1:])), np.float32)
        return np.stack(found) if are_several(images) else found[0]

    def __call__(self, images: Images, batch_size: int = 32) -> np.ndarray:
        """The same as `embed`."""
        return self.embed(images, batch_size)


class GenericModel(LoadedModel):
    """A graph of any other kind, with the names and shapes of the model that was exported.

    >>> load("anything")({"a": a, "b": b})["sum"]  # doctest: +SKIP
    """

    def __call__(self, inputs: Mapping[str, np.ndarray] | np.ndarray) -> dict[str, np.ndarray]:
        """All outputs by name. An array by itself is enough where the graph has one input."""
        if isinstance(inputs, Mapping):
            return self.session.run(checked_tokens(self.folder, inputs))
        expected = ", ".join(describe(spec) for spec in self.session.inputs)
        if not isinstance(inputs, np.ndarray):
            raise InputError(
                f"inputs is a {type(inputs).__name__}, expected a NumPy array or a dict: {expected}."
            )
        if len(self.session.inputs) != 1:
            raise InputError(f"inputs is one array, expected a dict: {expected}.")
        return self({self.session.inputs[0].name: inputs})


_TEXT: dict[str | None, Any] = {
    contract.TEXT_CLASSIFICATION: TextClassifier,
    contract.TOKEN_CLASSIFICATION: TextTagger,
    contract.QUESTION_ANSWERING: QuestionAnswerer,
    contract.FILL_MASK: MaskFiller,
    contract.FEATURE_EXTRACTION: TextEmbedder,
}


_TASKS: dict[str | None, Any] = {
    contract.IMAGE_CLASSIFICATION: ImageClassifier,
    contract.IMAGE_FEATURES: ImageEmbedder,
    contract.TEXT_GENERATION: TextGenerator,
    None: GenericModel,
    **_TEXT,
}


def open_model(
    path: str | os.PathLike[str], provider: str, threads: int | None, precision: str | None = None
) -> LoadedModel:
    """Checks the folder, starts the graph and returns the model of its task.

    Where it may come to a GPU, a half-precision file is what is tried, unless another is asked for.
    """
    root = folder_path(path)
    check_name(provider)
    return read_consistently(
        root, lambda: _open_unchanged(root, provider, threads, precision), FolderError, LoadedModel.close
    )


def _open_unchanged(root: Path, provider: str, threads: int | None, precision: str | None) -> LoadedModel:
    """Opens a model and checks its files again afterwards, because onnxruntime opens them by path."""
    model = _open_best(root, provider, threads, precision)
    try:
        check_unchanged(model.folder)
    except FolderError:
        model.close()
        raise
    return model


def _open_best(root: Path, provider: str, threads: int | None, precision: str | None) -> LoadedModel:
    halved = on_gpu(provider) or (provider == "auto" and not stays_on_cpu(provider))
    folder = checked_folder(root, precision, "fp16" if halved else "fp32")
    best_of_cpu = provider == "auto" and halved and precision is None
    usual = checked_folder(root, None, "fp32") if best_of_cpu else folder
    if usual.precision == folder.precision:
        return _open(folder, provider, threads)
    try:
        model = _open(folder, provider, threads)
    except FolderError as error:  # onnxruntime has no half precision for some nodes on the CPU
        warnings.warn(f"{error} Its {usual.precision} file runs on the CPU instead.", RuntimeWarning, 7)
        return _open(usual, "cpu", threads)
    if on_gpu(model.provider):
        return model
    model.close()
    return _open(usual, "cpu", threads)  # which "auto" came to, with a warning


def _open(folder: Folder, provider: str, threads: int | None) -> LoadedModel:
    task = folder.manifest.task
    if task not in _TASKS:
        known = [name for name in _TASKS if name is not None]
        raise FolderError(
            f"{folder.path / contract.MANIFEST}: task is {task!r}, which this keras-tx does not support: "
            f"upgrade it. {nearest(str(task), known)}"
        )
    shared = folder.shared if task == contract.TEXT_GENERATION and stays_on_cpu(provider) else None
    session = Session(shared or folder.graph, provider, threads)
    try:
        _check_manifest(folder, session)
        if task in _TEXT and contract.TOKENIZER not in folder.manifest.files:
            return GenericModel(folder, session)  # which takes ids
        if task == contract.FILL_MASK and contract.PREDICTION_LOGITS in {x.name for x in session.outputs}:
            return PretrainedEncoder(folder, session)
        return _TASKS[task](folder, session)
    except FolderError:
        session.close()
        raise


def _check_manifest(folder: Folder, session: Session) -> None:
    for kind, stated, real in (
        ("inputs", folder.inputs, session.inputs),
        ("outputs", folder.outputs, session.outputs),
    ):
        if [(spec.name, spec.dtype) for spec in stated] != [(spec.name, spec.dtype) for spec in real]:
            raise FolderError(
                f"{folder.path}: {contract.MANIFEST} gives the {kind} {', '.join(map(describe, stated))}, "
                f"but the graph has {', '.join(map(describe, real))}. Export again."
            )


def _transform_for(folder: Folder, session: Session) -> ImageTransform:
    transform = folder.transform
    if transform is None:
        raise FolderError(
            f"{folder.path / contract.MANIFEST}: files has no {contract.PREPROCESSOR}, which the task "
            f"{folder.manifest.task!r} needs. Export again."
        )
    height, width, channels = transform.height, transform.width, transform.channels
    expected = {
        contract.PIXEL_VALUES: ("float32", (channels, height, width)),
        contract.PIXELS: ("uint8", (height, width, channels)),
    }
    specs = session.inputs
    if len(specs) != 1 or specs[0].name not in expected:
        raise FolderError(
            f"{folder.path}: the graph takes {', '.join(map(describe, specs)) or 'nothing'}, expected one "
            f"input, {' or '.join(expected)}. Export again."
        )
    dtype, shape = expected[specs[0].name]
    fits = len(specs[0].shape) == 4 and all(
        isinstance(axis, str) or axis == length
        for axis, length in zip(specs[0].shape[1:], shape, strict=True)
    )
    if specs[0].dtype != dtype or not fits:
        raise FolderError(
            f"{folder.path}: the graph takes {describe(specs[0])}, but {contract.PREPROCESSOR} gives {dtype} "
            f"(batch, {', '.join(map(str, shape))}). Export again."
        )
    return transform


def _output_of(folder: Folder, session: Session, names: tuple[str, ...]) -> str:
    present = [spec.name for spec in session.outputs]
    for name in names:
        if name in present:
            return name
    raise FolderError(
        f"{folder.path}: the graph gives {', '.join(present)}, expected {' or '.join(names)} for the task "
        f"{folder.manifest.task!r}. Export again."
    )


def _labels_for(folder: Folder, session: Session) -> tuple[str, ...]:
    spec = next(spec for spec in session.outputs if spec.name == contract.LOGITS)
    labels = folder.manifest.labels
    classes = spec.shape[-1] if len(spec.shape) == 2 else None
    if not isinstance(classes, int) or (labels is not None and len(labels) != classes):
        wanted = "classes" if labels is None else len(labels)
        raise FolderError(
            f"{folder.path}: the graph gives {describe(spec)}, expected (batch, {wanted}) for "
            f"{'fixed classes' if labels is None else f'{len(labels)} labels'}. Export again."
        )
    # the names that Hugging Face invents
    return labels if labels is not None else tuple(f"LABEL_{i}" for i in range(classes))
