"""Image classification: pictures to labels with scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_tx import contract
from keras_tx.errors import whole_number
from keras_tx.processing.image import Images, are_several
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session
from keras_tx.runtime.tasks.base import Answer, RunOptions, Task, per_adapter
from keras_tx.runtime.tasks.image_task import ImageTask
from keras_tx.runtime.tasks.scores import Scores, labels_of, render_scores


class ImageClassifier(ImageTask):
    """Classifies images.

    >>> classify = load("flowers")  # doctest: +SKIP
    >>> classify("rose.jpg", top_k=2)  # doctest: +SKIP
    [{'label': 'rose', 'score': 0.98}, {'label': 'tulip', 'score': 0.01}]
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session, (contract.LOGITS,))
        self.prepare()

    def prepare(self) -> None:
        self.scores = Scores(self.folder.problem_type, labels_of(self.folder, self.session))

    @property
    def labels(self) -> tuple[str, ...]:
        return self.scores.labels

    @per_adapter
    def classify(self, images: Images, *, top_k: int = 5, batch_size: int = 32) -> list[Any]:
        """Returns the labels with the highest scores.

        Scores are the softmax over all classes; the sigmoid of each class in a multi-label model.

        Args:
            images: a path, bytes, a Pillow image or a NumPy array; or a list of these, or a 4-D batch.
            top_k: number of labels for each image.
            batch_size: number of images that the graph computes together.

        Returns:
            A list of {"label", "score"}, best first; for several images, a list of these lists.

        Raises:
            ImageError: if an image cannot be read.
            ConfigError: if `top_k` or `batch_size` is not a positive integer.
        """
        top_k = min(whole_number("top_k", top_k), len(self.labels))
        answers = [self.scores.best(logits, top_k) for logits in self.run_images(images, batch_size)]
        return answers if are_several(images) else answers[0]

    __call__ = classify


def _answer(model: ImageClassifier, images: Sequence[Any], options: RunOptions) -> list[Answer]:
    if len(images) == 1:  # not as a list, so that an error mentions no position
        return [model.scores.answer(model.classify(images[0], top_k=options.top_k))]
    return [model.scores.answer(best) for best in model.classify(list(images), top_k=options.top_k)]


TASK = Task(
    contract.IMAGE_CLASSIFICATION,
    ImageClassifier,
    "image",
    metric="accuracy",
    answer=_answer,
    render=render_scores,
)
