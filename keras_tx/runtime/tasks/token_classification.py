"""Token classification: the entities of texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import true_or_false
from keras_tx.processing import Row
from keras_tx.processing.text_input import check_texts
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session
from keras_tx.runtime.tasks.base import Answer, DrawBar, RunOptions, Task, per_adapter
from keras_tx.runtime.tasks.scores import labels_of, softmax
from keras_tx.runtime.tasks.text_task import TextTask, run_example, trim_span

OUTSIDE = "O"


class TextTagger(TextTask):
    """Recognizes entities in texts.

    >>> load("names")("Ada lives in London.")  # doctest: +SKIP
    [{'label': 'PER', 'score': 0.99, 'start': 0, 'end': 3, 'text': 'Ada'}, ...]
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session, (contract.LOGITS,))
        self.prepare()

    def prepare(self) -> None:
        self._labels = labels_of(self.folder, self.session, ("batch", "tokens"))

    @property
    def labels(self) -> tuple[str, ...]:
        return self._labels

    @per_adapter
    def tag(
        self,
        texts: Any,
        *,
        merge: bool = True,
        overlap: int | None = None,
        batch_size: int = 32,
        progress: bool = False,
    ) -> list[Any]:
        """Returns the entities of texts.

        A word has the label of its first token. The score of an entity is the mean of its words' scores.

        Args:
            texts: a text, or an iterable of texts of any length. A text longer than the model's maximum is
                split into overlapping windows; each word is read where it has most context.
            merge: whether neighbouring words form one entity: by the prefixes B- and I- of CoNLL, otherwise
                if their labels are equal. With False, every word is returned, also those with label O.
            overlap: tokens that neighbouring windows share; by default a quarter of the maximum length.
            batch_size: number of windows that the graph computes together.
            progress: whether to show a progress bar.

        Returns:
            A list of {"label", "score", "start", "end", "text"}, where start and end are characters of the
            text; for several texts, a list of these lists.

        Raises:
            TextError: if an item is not a text.
            ConfigError: if `merge` is not a bool, or `batch_size` is not a positive integer.
        """
        true_or_false("merge", merge)
        shared = (self.transform.max_length or 0) // 4 if overlap is None else overlap

        def answer(texts: Any, start: int) -> list[Any]:
            texts = check_texts("texts", texts, start)
            rows = self.transform.windows(texts, overlap=shared, start=start)
            scores = self.run_rows(rows, lambda row, out: softmax(out[contract.LOGITS]), batch_size)
            words: list[dict[int, tuple]] = [{} for _ in texts]
            for row, row_scores in zip(rows, scores, strict=True):
                _collect_words(words[row.text], row, row_scores)
            return [self._entities(*pair, merge) for pair in zip(texts, words, strict=True)]

        return self.map_texts(answer, texts, batch_size=batch_size, progress=progress)

    __call__ = tag

    def _entities(self, text: str, words: dict[int, tuple], merge: bool) -> list[dict[str, Any]]:
        tagged = []
        for _, (_, start, end, scores) in sorted(words.items()):
            best = int(np.argmax(scores))
            tagged.append((self.labels[best], float(scores[best]), start, end))
        if not merge:
            return [_entity(text, label, [score], start, end) for label, score, start, end in tagged]
        return merge_words(text, tagged)


def _collect_words(words: dict[int, tuple], row: Row, scores: np.ndarray) -> None:
    """Adds each word of a window with the scores of its first token, unless a better window has it."""
    places = np.flatnonzero(row.parts == 0)
    for word in np.unique(row.words[places]):
        tokens = places[row.words[places] == word]
        start, end = int(row.offsets[tokens[0], 0]), int(row.offsets[tokens[-1], 1])
        context = min(tokens[0] - places[0], places[-1] - tokens[-1])
        rank = (-start, end, context)  # whole words first, then those with most context
        if word not in words or rank > words[word][0]:
            words[word] = (rank, start, end, scores[tokens[0]])


def merge_words(text: str, words: list[tuple[str, float, int, int]]) -> list[dict[str, Any]]:
    """The entities of tagged words (label, score, start, end)."""
    groups: list[tuple[str, list[float], int, int]] = []
    open_label = None  # of the entity that the next word may belong to
    for label, score, start, end in words:
        prefix, kind = label.split("-", 1) if label[:2] in ("B-", "I-") else ("I", label)
        if label == OUTSIDE:
            open_label = None
        elif prefix == "I" and kind == open_label:
            name, scores, first, _ = groups[-1]
            groups[-1] = (name, [*scores, score], first, end)
        else:
            groups.append((kind, [score], start, end))
            open_label = kind
    return [_entity(text, *group) for group in groups]


def _entity(text: str, label: str, scores: list[float], start: int, end: int) -> dict[str, Any]:
    score = sum(scores) / len(scores)
    start, end = trim_span(text, start, end)
    return {"label": label, "score": score, "start": start, "end": end, "text": text[start:end]}


def _answers(model: TextTagger, texts: Sequence[str], options: RunOptions) -> list[Answer]:
    return [{"entities": entities} for entities in model.tag(list(texts))]


def _render(answer: Answer, draw_bar: DrawBar) -> Iterator[str]:
    if not answer["entities"]:
        yield "  no entities"
    for entity in answer["entities"]:
        span = f"{entity['start']}-{entity['end']}"
        yield f"  {entity['label']}  {entity['score']:6.1%}  {span}  {entity['text']}"


TASK = Task(
    contract.TOKEN_CLASSIFICATION,
    TextTagger,
    "text",
    metric="accuracy of tokens",
    answer=_answers,
    render=_render,
    run_example=run_example,
)
