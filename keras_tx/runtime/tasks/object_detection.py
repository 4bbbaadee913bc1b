"""Object detection: boxes around the objects of a picture, with labels and scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import FolderError, InputError
from keras_tx.processing.image import Images, are_several
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session
from keras_tx.runtime.tasks.base import Answer, DrawBar, RunOptions, Task, check_outputs, per_adapter
from keras_tx.runtime.tasks.image_task import ImageTask
from keras_tx.runtime.tasks.scores import labels_of

OPTIONS = {"confidence_threshold": 0.5, "iou_threshold": 0.5, "max_detections": 100}  # of config.json
EPSILON = 1e-8  # of keras_hub.layers.NonMaxSuppression


class ObjectDetector(ImageTask):
    """Detects objects. Of overlapping boxes, the one with the highest score remains.

    >>> load("streets")("road.jpg")[0]  # doctest: +SKIP
    {'label': 'car', 'score': 0.93, 'box': {'xmin': 12.5, 'ymin': 40.1, 'xmax': 90.0, 'ymax': 88.7}}
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session, (contract.SCORES,))
        check_outputs(folder, session, (contract.BOXES, contract.SCORES))
        config = folder.config or {}
        self._options = {name: config.get(name, default) for name, default in OPTIONS.items()}
        for name, value in self._options.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise FolderError(
                    f"{folder.path / contract.CONFIG}: {name} is {value!r:.80}, expected a number. "
                    "Export again."
                )
        self.prepare()

    def prepare(self) -> None:
        self._labels = labels_of(self.folder, self.session, ("batch", "boxes"), contract.SCORES)

    @property
    def labels(self) -> tuple[str, ...]:
        return self._labels

    @per_adapter
    def detect(self, images: Images, *, confidence: float | None = None, batch_size: int = 32) -> list[Any]:
        """Returns the objects of an image, those with the highest scores first.

        Args:
            images: a path, bytes, a Pillow image or a NumPy array; or a list of these, or a 4-D batch.
            confidence: objects have higher scores than this; by default that of the Keras model.
            batch_size: number of images that the graph computes together.

        Returns:
            A list of {"label", "score", "box"}; for several images, a list of these lists. A box has the
            edges "xmin", "ymin", "xmax" and "ymax" in pixels of the image.

        Raises:
            ImageError: if an image cannot be read.
            InputError: if `confidence` is not a number from 0 to 1.
            ConfigError: if `batch_size` is not a positive integer.
        """
        confidence = self._options["confidence_threshold"] if confidence is None else confidence
        if (
            isinstance(confidence, bool)
            or not isinstance(confidence, int | float)
            or not 0 <= confidence <= 1
        ):
            raise InputError(f"confidence={confidence!r} is invalid. Pass a number from 0 to 1.")
        answers: list[Any] = []
        for sources in self.transform.sources(images, batch_size):
            (outputs,) = self.run_outputs(sources, batch_size)
            pairs = zip(outputs[contract.BOXES], outputs[contract.SCORES], sources, strict=True)
            answers += [
                self._objects(boxes, scores, source.shape, confidence) for boxes, scores, source in pairs
            ]
        return answers if are_several(images) else answers[0]

    __call__ = detect

    def _objects(
        self, boxes: np.ndarray, scores: np.ndarray, shape: tuple[int, ...], confidence: float
    ) -> list[dict[str, Any]]:
        kept = suppress(
            boxes,
            scores.max(axis=-1),
            confidence,
            self._options["iou_threshold"],
            self._options["max_detections"],
        )
        placed = self.transform.in_source(boxes[kept], (shape[0], shape[1]))
        names = ("xmin", "ymin", "xmax", "ymax")
        return [
            {
                "label": self.labels[int(scores[index].argmax())],
                "score": float(scores[index].max()),
                "box": dict(zip(names, map(float, box), strict=True)),
            }
            for index, box in zip(kept, placed, strict=True)
        ]


def suppress(
    boxes: np.ndarray, scores: np.ndarray, confidence: float, overlap: float, most: int
) -> np.ndarray:
    """The indices of boxes (boxes, 4) that overlap no box with a higher score, the highest score first."""
    order = np.argsort(scores, kind="stable")[::-1]
    order = order[scores[order] > confidence]
    order = order[(boxes[order] > 0).any(axis=1)]  # keras-hub drops boxes without a positive edge
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    kept: list[int] = []
    while order.size and len(kept) < most:
        first, order = int(order[0]), order[1:]
        kept.append(first)
        sides = np.minimum(boxes[first, 2:], boxes[order, 2:]) - np.maximum(
            boxes[first, :2], boxes[order, :2]
        )
        common = np.maximum(sides, 0).prod(axis=1)
        order = order[common / (area[first] + area[order] - common + EPSILON) < overlap]
    return np.asarray(kept, dtype=np.int64)


def _answer(model: ObjectDetector, images: Sequence[Any], options: RunOptions) -> list[Answer]:
    # One image not as a list, so that an error mentions no position.
    detected = [model.detect(images[0])] if len(images) == 1 else model.detect(list(images))
    return [{"objects": objects} for objects in detected]


def _render(answer: Answer, draw_bar: DrawBar) -> Iterator[str]:
    width = max((len(row["label"]) for row in answer["objects"]), default=0)
    for row in answer["objects"]:
        edges = ", ".join(f"{value:.0f}" for value in row["box"].values())
        yield f"  {row['label']:<{width}}  {row['score']:6.1%}  at {edges}"


TASK = Task(contract.OBJECT_DETECTION, ObjectDetector, "image", answer=_answer, render=_render)
