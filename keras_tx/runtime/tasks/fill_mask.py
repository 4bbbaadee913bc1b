"""Masked language modeling: the most likely tokens at the mask of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import FolderError, TextError, whole_number
from keras_tx.processing import Row
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session
from keras_tx.runtime.tasks.base import Answer, DrawBar, RunOptions, Task, per_adapter
from keras_tx.runtime.tasks.scores import softmax
from keras_tx.runtime.tasks.text_task import TextTask, run_example


class MaskFiller(TextTask):
    """Predicts masked tokens.

    >>> load("bert")("Paris is the [MASK] of France.", top_k=1)  # doctest: +SKIP
    [{'token': 'capital', 'id': 3007, 'score': 0.99, 'text': 'paris is the capital of france.'}]
    """

    _token_logits = contract.LOGITS

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session, (self._token_logits,))
        if self.transform.mask_token is None:
            raise FolderError(
                f"{folder.path}: the tokenizer has no mask_token. Export again with one that has."
            )
        self._mask = self.transform.id_of(self.transform.mask_token)
        self._tokens = {number: token for token, number in self.transform.vocabulary.items()}

    @per_adapter
    def fill(self, texts: Any, *, top_k: int = 5, batch_size: int = 32, progress: bool = False) -> list[Any]:
        """Returns the most likely tokens at the mask of a text.

        Args:
            texts: a text with a mask token, or an iterable of them.
            top_k: number of tokens for each mask.
            batch_size: number of texts that the graph computes together.
            progress: whether to show a progress bar.

        Returns:
            A list of {"token", "id", "score", "text"}, best first, where "text" has that one mask filled;
            for a text with several masks, such a list for each mask; for several texts, a list of these.

        Raises:
            TextError: if a text has no mask token within the model's maximum length.
            ConfigError: if `top_k` or `batch_size` is not a positive integer.
        """
        top_k = whole_number("top_k", top_k)

        def answer(texts: Any, start: int) -> list[Any]:
            rows = self.transform.encode(texts, start=start)
            for row in rows:
                if self._mask not in row.ids:
                    raise TextError(
                        f"texts[{start + row.text}] has no {self.transform.mask_token} within the model's "
                        "maximum length. Write it in place of the word to predict."
                    )
            return self.run_rows(
                rows, lambda row, out: self._filled(row, out[self._token_logits], top_k), batch_size
            )

        return self.map_texts(answer, texts, batch_size=batch_size, progress=progress)

    __call__ = fill

    def _filled(self, row: Row, logits: np.ndarray, top_k: int) -> list[Any]:
        answers = []
        for place in np.flatnonzero(row.ids == self._mask):
            scores = softmax(logits[place])
            best = np.argsort(-scores, kind="stable")[:top_k]
            answers.append([self._answer(row, int(place), int(i), float(scores[i])) for i in best])
        return answers[0] if len(answers) == 1 else answers

    def _answer(self, row: Row, place: int, number: int, score: float) -> dict[str, Any]:
        ids = row.ids.copy()
        ids[place] = number
        token = self._tokens.get(number, "")  # a model may have more rows than its tokenizer tokens
        return {"token": token, "id": number, "score": score, "text": self.transform.decode(ids)}


def fill_answers(model: MaskFiller, texts: Sequence[str], options: RunOptions) -> list[Answer]:
    return [{"tokens": tokens} for tokens in model.fill(list(texts), top_k=options.top_k)]


def render_tokens(answer: Answer, draw_bar: DrawBar) -> Iterator[str]:
    masks = answer["tokens"]
    for tokens in masks if masks and isinstance(masks[0], list) else [masks]:
        for row in tokens:
            yield f"  {row['score']:6.1%}  {row['token']}  {row['text']}"


TASK = Task(
    contract.FILL_MASK,
    MaskFiller,
    "text",
    outputs=(contract.LOGITS,),
    metric="accuracy of tokens",
    answer=fill_answers,
    render=render_tokens,
    run_example=run_example,
)
