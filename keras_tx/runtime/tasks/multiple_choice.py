"""Multiple choice: the most probable of several texts after a context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import InputError, whole_number
from keras_tx.processing.choices import encode_choices, pad_choices
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session
from keras_tx.runtime.tasks.base import Answer, DrawBar, RunOptions, Task, per_adapter
from keras_tx.runtime.tasks.scores import softmax
from keras_tx.runtime.tasks.text_task import TextTask


class ChoiceModel(TextTask):
    """Chooses one of several texts.

    >>> load("stories")("The cat sat", ["on the mat.", "in London."], top_k=1)  # doctest: +SKIP
    [{'choice': 'on the mat.', 'index': 0, 'score': 0.98}]
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session, (contract.LOGITS,))

    @per_adapter
    def choose(
        self, contexts: Any, choices: Any, *, top_k: int = 5, batch_size: int = 32, progress: bool = False
    ) -> list[Any]:
        """Returns the choices of each context with their probabilities, best first.

        Args:
            contexts: a text, or several.
            choices: a list of texts for all contexts, or one such list per context.
            top_k: number of choices to return for each context.
            batch_size: number of contexts that the graph computes together.
            progress: whether to show a progress bar.

        Returns:
            A list of {"choice", "index", "score"}; for several contexts, a list of such lists.

        Raises:
            InputError: if `choices` is not a list of texts, or of lists.
            TextError: if an item is not a text, or contexts and choices differ in number.
            ConfigError: if `top_k` or `batch_size` is not a positive integer.
        """
        top_k = whole_number("top_k", top_k)
        size = whole_number("batch_size", batch_size)
        if isinstance(choices, str) or not hasattr(choices, "__len__"):
            raise InputError(f"choices is {choices!r:.80}, expected a list of texts or of lists of texts.")
        single = isinstance(contexts, str)
        contexts = [contexts] if single else list(contexts)
        shared = all(isinstance(one, str) for one in choices)
        lists = [list(choices)] * len(contexts) if shared else list(choices)

        def answer(contexts: Any, lists: Any, start: int) -> list[Any]:
            samples = encode_choices(contexts, lists, self.transform, start)
            logits: list[np.ndarray] = []
            for first in range(0, len(samples), size):
                logits += self._logits(samples[first : first + size])
            return [_best(texts, row, top_k) for texts, row in zip(lists, logits, strict=True)]

        answers = self.map_texts(answer, contexts, lists, batch_size=batch_size, progress=progress)
        return answers[0] if single else answers

    __call__ = choose

    def _logits(self, samples: Sequence[Sequence[Any]]) -> list[np.ndarray]:
        length = self._padded_length(max(len(row) for rows in samples for row in rows))
        batch = pad_choices(samples, self.transform, length)
        outputs = self.session.run({spec.name: batch[spec.name] for spec in self.session.inputs})
        return [row[: len(rows)] for rows, row in zip(samples, outputs[contract.LOGITS], strict=True)]


def _best(texts: Sequence[str], logits: np.ndarray, top_k: int) -> list[dict[str, Any]]:
    scores = softmax(logits)
    order = np.argsort(-scores, kind="stable")[:top_k]
    return [{"choice": texts[i], "index": int(i), "score": float(scores[i])} for i in order]


def _answers(model: ChoiceModel, texts: Sequence[str], options: RunOptions) -> list[Answer]:
    results = model.choose(list(texts), list(options.choices or ()), top_k=options.top_k)
    return [{"choices": best} for best in results]


def _render(answer: Answer, draw_bar: DrawBar) -> Iterator[str]:
    for row in answer["choices"]:
        yield f"  {row['score']:6.1%}  {row['choice']}"


def _run_example(model: ChoiceModel) -> str:
    """Runs a model on texts of its own vocabulary."""
    ids = sorted(model.transform.vocabulary.values())
    words = [model.transform.decode(ids[len(ids) // 2 + step :][:4]) or "a" for step in range(3)]
    model.choose(words[0], words)
    return "answers a context with 3 choices"


TASK = Task(
    contract.MULTIPLE_CHOICE,
    ChoiceModel,
    "text",
    metric="accuracy",
    required=("choices",),
    answer=_answers,
    render=_render,
    run_example=_run_example,
)
