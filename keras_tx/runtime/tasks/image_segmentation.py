"""Image segmentation: the class of each pixel of a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import FolderError
from keras_tx.processing.image import Images, are_several
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session
from keras_tx.runtime.tasks.base import Answer, DrawBar, RunOptions, Task, per_adapter
from keras_tx.runtime.tasks.image_task import ImageTask
from keras_tx.runtime.tasks.scores import labels_of


class ImageSegmenter(ImageTask):
    """Computes masks: arrays (height, width) with the number of each pixel's class.

    A mask has the size of the graph's output, not that of the picture. A model with one class returns 1 where
    its score is above a threshold, and 0 elsewhere.

    >>> segment = load("streets")  # doctest: +SKIP
    >>> segment("road.jpg").shape, segment.labels  # doctest: +SKIP
    ((512, 512), ('road', 'car', 'sky'))
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session, (contract.SCORES,))
        self.prepare()

    def prepare(self) -> None:
        axes = ("batch", "height", "width")
        self._labels = labels_of(self.folder, self.session, axes, contract.SCORES)
        threshold = (self.folder.config or {}).get("mask_threshold", 0.5)
        if isinstance(threshold, bool) or not isinstance(threshold, int | float):
            raise FolderError(
                f"{self.folder.path / contract.CONFIG}: mask_threshold is {threshold!r:.80}, expected a "
                "number. Export again."
            )
        self._threshold = float(threshold)

    @property
    def labels(self) -> tuple[str, ...]:
        return self._labels

    @per_adapter
    def segment(self, images: Images, *, batch_size: int = 32) -> Any:
        """Returns the mask of an image; a list of masks for several.

        Args:
            images: a path, bytes, a Pillow image or a NumPy array; or a list of these, or a 4-D batch.
            batch_size: number of images that the graph computes together.

        Raises:
            ImageError: if an image cannot be read.
            ConfigError: if `batch_size` is not a positive integer.
        """
        masks = [self._mask(scores) for scores in self.run_images(images, batch_size)]
        return masks if are_several(images) else masks[0]

    __call__ = segment

    @per_adapter
    def scores(self, images: Images, *, batch_size: int = 32) -> Any:
        """Returns the output of the Keras model, (height, width, classes); a list for several images.

        Args:
            images: as for `segment`.
            batch_size: number of images that the graph computes together.
        """
        scores = [each.copy() for each in self.run_images(images, batch_size)]
        return scores if are_several(images) else scores[0]

    def _mask(self, scores: np.ndarray) -> np.ndarray:
        if len(self.labels) == 1:
            return (scores[..., 0] > self._threshold).astype(np.int64)
        return scores.argmax(axis=-1)

    def shares(self, mask: np.ndarray) -> list[dict[str, Any]]:
        """Returns the share of pixels of each class in a mask, the largest first."""
        names = self.labels if len(self.labels) > 1 else ("", *self.labels)
        counts = np.bincount(mask.ravel(), minlength=len(names)) / mask.size
        order = np.argsort(-counts, kind="stable")
        return [{"label": names[i], "share": float(counts[i])} for i in order if counts[i] and names[i]]


def _answer(model: ImageSegmenter, images: Sequence[Any], options: RunOptions) -> list[Answer]:
    # One image not as a list, so that an error mentions no position.
    masks = [model.segment(images[0])] if len(images) == 1 else model.segment(list(images))
    return [{"segments": model.shares(mask), "mask": mask.tolist()} for mask in masks]


def _render(answer: Answer, draw_bar: DrawBar) -> Iterator[str]:
    width = max((len(row["label"]) for row in answer["segments"]), default=0)
    for row in answer["segments"]:
        yield f"  {row['label']:<{width}}  {row['share']:6.1%}  {draw_bar(row['share'])}".rstrip()


TASK = Task(contract.IMAGE_SEGMENTATION, ImageSegmenter, "image", answer=_answer, render=_render)
