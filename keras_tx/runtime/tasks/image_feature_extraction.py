"""Image embeddings: pictures to vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.processing.image import Images, are_several
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session
from keras_tx.runtime.tasks.base import (
    Answer,
    RunOptions,
    Task,
    embedding_answer,
    per_adapter,
    render_embedding,
)
from keras_tx.runtime.tasks.image_task import ImageTask


class ImageEmbedder(ImageTask):
    """Computes a vector for each image; a vector for each token if the model was exported without pooling.

    >>> load("features")(["a.jpg", "b.jpg"]).shape  # doctest: +SKIP
    (2, 768)
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session, (contract.IMAGE_EMBEDS, contract.LAST_HIDDEN_STATE))

    @per_adapter
    def embed(self, images: Images, *, batch_size: int = 32) -> np.ndarray:
        """Returns the embedding of an image; the stacked embeddings of several.

        Args:
            images: a path, bytes, a Pillow image or a NumPy array; or a list of these, or a 4-D batch.
            batch_size: number of images that the graph computes together.

        Raises:
            ImageError: if an image cannot be read.
            ConfigError: if `batch_size` is not a positive integer.
        """
        vectors = list(self.run_images(images, batch_size))
        if not vectors:
            shape = next(spec.shape for spec in self.session.outputs if spec.name == self._output)
            return np.empty((0, *(0 if isinstance(axis, str) else axis for axis in shape[1:])), np.float32)
        return np.stack(vectors) if are_several(images) else vectors[0]

    __call__ = embed


def _answer(model: ImageEmbedder, images: Sequence[Any], options: RunOptions) -> list[Answer]:
    if len(images) == 1:  # not as a list, so that an error mentions no position
        return [embedding_answer(model.embed(images[0]))]
    return [embedding_answer(vector) for vector in model.embed(list(images))]


TASK = Task(contract.IMAGE_FEATURES, ImageEmbedder, "image", answer=_answer, render=render_embedding)
