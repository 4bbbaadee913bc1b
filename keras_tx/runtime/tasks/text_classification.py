"""Text classification: texts, or pairs of texts, to labels with scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_tx import contract
from keras_tx.errors import InputError, whole_number
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session
from keras_tx.runtime.tasks.base import Answer, RunOptions, Task, per_adapter
from keras_tx.runtime.tasks.scores import Scores, labels_of, render_scores
from keras_tx.runtime.tasks.text_task import TextTask, run_example


class PairClassifier(TextTask):
    """Classifies texts or pairs of texts by one output of the graph."""

    scores: Scores
    _logits = contract.LOGITS
    _needs_pairs = False

    @per_adapter
    def classify(
        self,
        texts: Any,
        pairs: Any = None,
        *,
        top_k: int = 5,
        batch_size: int = 32,
        progress: bool = False,
    ) -> list[Any]:
        """Returns the labels with the highest scores.

        Scores are the softmax over all labels; the sigmoid of each label in a multi-label model; the
        numbers themselves in a regression.

        Args:
            texts: a text, or an iterable of texts of any length.
            pairs: the second text of a pair, or an iterable with one for each text.
            top_k: number of labels for each text.
            batch_size: number of texts that the graph computes together.
            progress: whether to show a progress bar.

        Returns:
            A list of {"label", "score"}, best first; for several texts, a list of these lists, in order.

        Raises:
            TextError: if an item is not a text, or texts and pairs differ in number.
            InputError: if `pairs` is missing for a model that only accepts pairs.
            ConfigError: if `top_k` or `batch_size` is not a positive integer.
        """
        if pairs is None and self._needs_pairs:
            raise InputError("pairs is None, expected the second text of each pair.")
        top_k = min(whole_number("top_k", top_k), len(self.scores.labels))

        def answer(texts: Any, pairs: Any, start: int) -> list[Any]:
            rows = self.transform.encode(texts, pairs, start=start)
            return self.run_rows(
                rows, lambda row, out: self.scores.best(out[self._logits], top_k), batch_size
            )

        return self.map_texts(answer, texts, pairs, batch_size=batch_size, progress=progress)


class TextClassifier(PairClassifier):
    """Classifies texts or pairs of texts; predicts numbers if the model is a regression.

    >>> classify = load("reviews")  # doctest: +SKIP
    >>> classify("A very good film.", top_k=1)  # doctest: +SKIP
    [{'label': 'positive', 'score': 0.98}]
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session, (contract.LOGITS,))
        self.prepare()

    def prepare(self) -> None:
        self.scores = Scores(self.folder.problem_type, labels_of(self.folder, self.session))

    @property
    def labels(self) -> tuple[str, ...]:
        return self.scores.labels

    __call__ = PairClassifier.classify


def classification_answers(model: PairClassifier, texts: Sequence[str], options: RunOptions) -> list[Answer]:
    """Answers of `keras-tx run`, with the second text of each pair."""
    pair = options.pair
    pairs = None if pair is None else [pair] * len(texts)
    second = {} if pair is None else {"pair": pair}
    results = model.classify(list(texts), pairs, top_k=options.top_k)
    return [{**second, **model.scores.answer(best)} for best in results]


TASK = Task(
    contract.TEXT_CLASSIFICATION,
    TextClassifier,
    "text",
    metric="accuracy",
    options=("pair",),
    answer=classification_answers,
    render=render_scores,
    run_example=run_example,
)
