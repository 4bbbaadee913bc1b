"""BERT's two pretraining tasks in one graph: masked tokens, and whether one text follows another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from keras_tx import contract
from keras_tx.errors import FolderError
from keras_tx.runtime.folder import Folder
from keras_tx.runtime.session import Session
from keras_tx.runtime.tasks.base import Answer, DrawBar, RunOptions, Task
from keras_tx.runtime.tasks.fill_mask import MaskFiller, fill_answers, render_tokens
from keras_tx.runtime.tasks.scores import Scores, render_scores
from keras_tx.runtime.tasks.text_classification import PairClassifier, classification_answers
from keras_tx.runtime.tasks.text_task import run_example


class PretrainedEncoder(MaskFiller, PairClassifier):
    """A pretrained BERT: `fill` predicts masked tokens, `classify` whether the second text follows the first.

    >>> bert = load("pretrained")  # doctest: +SKIP
    >>> bert("Paris is the [MASK] of France.", top_k=1)  # doctest: +SKIP
    [{'token': 'capital', 'id': 3007, 'score': 0.99, 'text': 'paris is the capital of france.'}]
    >>> bert.classify("The cat sat.", "It slept.")  # doctest: +SKIP
    [{'label': 'IS_NEXT', 'score': 0.97}, {'label': 'NOT_NEXT', 'score': 0.03}]
    """

    _token_logits = contract.PREDICTION_LOGITS
    _logits = contract.SEQ_RELATIONSHIP_LOGITS
    _needs_pairs = True

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session)
        spec = next((x for x in session.outputs if x.name == self._logits), None)
        if spec is None or spec.shape[-1] != len(contract.NEXT_SENTENCE_LABELS):
            raise FolderError(
                f"{folder.path}: the graph has no output {self._logits} with "
                f"{len(contract.NEXT_SENTENCE_LABELS)} classes. Export again."
            )
        self.scores = Scores(None, contract.NEXT_SENTENCE_LABELS)


def _answers(model: PretrainedEncoder, texts: Sequence[str], options: RunOptions) -> list[Answer]:
    return (fill_answers if options.pair is None else classification_answers)(model, texts, options)


def _render(answer: Answer, draw_bar: DrawBar) -> Iterator[str]:
    return (render_tokens if "tokens" in answer else render_scores)(answer, draw_bar)


TASK = Task(
    contract.FILL_MASK,
    PretrainedEncoder,
    "text",
    outputs=(contract.PREDICTION_LOGITS,),
    metric="accuracy of tokens",
    options=("pair",),
    answer=_answers,
    render=_render,
    run_example=run_example,
)
