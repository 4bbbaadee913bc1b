"""Texts to labels, to the words behind a mask, and to vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.errors import FolderError, InputError, TextError, nearest, true_or_false, whole_number
from keras_tx.processing import Row
from keras_tx.runtime.folder import Folder, read_json
from keras_tx.runtime.session import Session
from keras_tx.runtime.tasks.scores import Scores, softmax
from keras_tx.runtime.tasks.text import TextModel, labels_for

POOLINGS = ("mean", "class")


class TextClassifier(TextModel):
    """Texts, or pairs of texts, to labels with scores; of a regression, to numbers.

    >>> classify = load("reviews")  # doctest: +SKIP
    >>> classify("A very good film.", top_k=1)  # doctest: +SKIP
    [{'label': 'positive', 'score': 0.98}]
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session, (contract.LOGITS,))
        self._labels = labels_for(folder, session)
        self._scores = Scores(folder.problem_type, self._labels)

    @property
    def labels(self) -> tuple[str, ...]:
        return self._labels

    def classify(
        self,
        texts: Any,
        pairs: Any = None,
        *,
        top_k: int = 5,
        batch_size: int = 32,
        progress: bool = False,
    ) -> list[Any]:
        """The `top_k` best labels of a text, best first; of a list, a list of those.

        Scores are the softmax over all labels; where a text may have several, the sigmoid of each; those of
        a regression are the numbers themselves, in order. A list may be of any length: texts of like
        length run together, and the answers come in its order.
        """
        top_k = min(whole_number("top_k", top_k), len(self.labels))

        def answer(texts: Any, pairs: Any, start: int) -> list[Any]:
            rows = self.transform.encode(texts, pairs, start=start)
            return self.run_rows(
                rows, lambda row, out: self._scores.best(out[contract.LOGITS], top_k), batch_size
            )

        found = self.in_parts(answer, texts, pairs, batch_size=batch_size, progress=progress)
        return found[0] if isinstance(texts, str) else found

    __call__ = classify


class MaskFiller(TextModel):
    """Which tokens fit in the place of a mask.

    >>> load("bert")("Paris is the [MASK] of France.", top_k=1)  # doctest: +SKIP
    [{'token': 'capital', 'id': 3007, 'score': 0.99, 'text': 'paris is the capital of france.'}]
    """

    _logits = contract.LOGITS  # the output that scores tokens

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session, (self._logits,))
        if self.transform.mask_token is None:
            raise FolderError(
                f"{folder.path}: the tokenizer has no mask_token. Export again with one that has."
            )
        self._mask = self.transform.id_of(self.transform.mask_token)
        self._tokens = {number: token for token, number in self.transform.vocabulary.items()}

    def fill(self, texts: Any, *, top_k: int = 5, batch_size: int = 32, progress: bool = False) -> list[Any]:
        """The `top_k` best tokens for the mask of a text, best first; of a list of texts, a list of those.

        A text with several masks gives such a list for each of them, and `text` then fills just the one.
        """
        top_k = whole_number("top_k", top_k)

        def answer(texts: Any, start: int) -> list[Any]:
            rows = self.transform.encode(texts, start=start)
            for row in rows:
                if self._mask not in row.ids:
                    raise TextError(
                        f"texts[{start + row.text}] has no {self.transform.mask_token} within what the model "
                        "reads. Put it where a word is to be filled in."
                    )
            return self.run_rows(
                rows, lambda row, out: self._filled(row, out[self._logits], top_k), batch_size
            )

        found = self.in_parts(answer, texts, batch_size=batch_size, progress=progress)
        return found[0] if isinstance(texts, str) else found

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


class PretrainedEncoder(MaskFiller):
    """A pre-trained BERT: fills masks, and predicts whether a text follows another.

    >>> bert = load("pretrained")  # doctest: +SKIP
    >>> bert("Paris is the [MASK] of France.", top_k=1)  # doctest: +SKIP
    [{'token': 'capital', 'id': 3007, 'score': 0.99, 'text': 'paris is the capital of france.'}]
    >>> bert.classify("The cat sat.", "It slept.")  # doctest: +SKIP
    [{'label': 'IS_NEXT', 'score': 0.97}, {'label': 'NOT_NEXT', 'score': 0.03}]
    """

    _logits = contract.PREDICTION_LOGITS

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session)
        spec = next((x for x in session.outputs if x.name == contract.SEQ_RELATIONSHIP_LOGITS), None)
        if spec is None or spec.shape[-1] != len(contract.NEXT_SENTENCE_LABELS):
            raise FolderError(
                f"{folder.path}: the graph has no {contract.SEQ_RELATIONSHIP_LOGITS} of "
                f"{len(contract.NEXT_SENTENCE_LABELS)} classes beside {self._logits}. Export again."
            )
        self._scores = Scores(None, contract.NEXT_SENTENCE_LABELS)

    def classify(
        self, texts: Any, pairs: Any, *, top_k: int = 2, batch_size: int = 32, progress: bool = False
    ) -> list[Any]:
        """Predicts whether the second text of a pair follows the first.

        Args:
            texts: the first text, or a list of them.
            pairs: the second text, or a list with one for each first text.
            top_k: number of labels.
            batch_size: number of pairs that the graph computes together.
            progress: whether to show a progress bar.

        Returns:
            A list of {"label", "score"}, the best label first; for lists of texts, a list of these.
        """
        top_k = min(whole_number("top_k", top_k), len(contract.NEXT_SENTENCE_LABELS))

        def answer(texts: Any, pairs: Any, start: int) -> list[Any]:
            rows = self.transform.encode(texts, pairs, start=start)
            return self.run_rows(
                rows,
                lambda row, out: self._scores.best(out[contract.SEQ_RELATIONSHIP_LOGITS], top_k),
                batch_size,
            )

        answers = self.in_parts(answer, texts, pairs, batch_size=batch_size, progress=progress)
        return answers[0] if isinstance(texts, str) else answers


class TextEmbedder(TextModel):
    """Texts to vectors that are near to each other where the texts mean the same.

    >>> load("minilm")(["A cat.", "A kitten."]).shape  # doctest: +SKIP
    (2, 384)
    """

    def __init__(self, folder: Folder, session: Session) -> None:
        super().__init__(folder, session, (contract.LAST_HIDDEN_STATE,))
        self._pooled = contract.SENTENCE_EMBEDDING in {spec.name for spec in session.outputs}
        self._pooling, self._normalize = _made_with(folder)

    def embed(
        self,
        texts: Any,
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        batch_size: int = 32,
        progress: bool = False,
    ) -> np.ndarray:
        """The vector of a text; of a list, those stacked.

        Without `pooling` ("mean", or "class" for the first token) and `normalize` as the model was made; one
        without a head of its own gives the mean of its tokens, normalized.
        """
        if pooling is not None and pooling not in POOLINGS:
            raise InputError(f"pooling={pooling!r} is unknown. {nearest(str(pooling), POOLINGS)}")
        if normalize is not None:
            true_or_false("normalize", normalize)
        own = self._pooled and pooling is None and normalize is None
        by_class = (pooling or self._pooling) == "class"
        of_length_1 = self._normalize if normalize is None else normalize

        def read(row: Row, out: dict[str, np.ndarray]) -> np.ndarray:
            if own:
                return out[contract.SENTENCE_EMBEDDING].copy()
            tokens = out[contract.LAST_HIDDEN_STATE]
            vector = tokens[0].copy() if by_class else tokens.mean(axis=0)
            return vector / max(float(np.linalg.norm(vector)), 1e-12) if of_length_1 else vector

        def answer(texts: Any, start: int) -> list[Any]:
            return self.run_rows(self.transform.encode(texts, start=start), read, batch_size)

        found = self.in_parts(answer, texts, batch_size=batch_size, progress=progress)
        if isinstance(texts, str):
            return found[0]
        spec = next(spec for spec in self.session.outputs if spec.name == contract.LAST_HIDDEN_STATE)
        width = spec.shape[-1] if isinstance(spec.shape[-1], int) else 0
        return np.stack(found) if found else np.empty((0, width), np.float32)

    __call__ = embed


def _made_with(folder: Folder) -> tuple[str, bool]:
    """Pooling and normalization, as the files for sentence-transformers say them."""
    if contract.POOLING not in folder.manifest.files:
        return "mean", True
    by_class = read_json(folder.path, contract.POOLING, folder.manifest).get("pooling_mode_cls_token")
    if not isinstance(by_class, bool):
        raise FolderError(
            f"{folder.path / contract.POOLING}: pooling_mode_cls_token is {by_class!r:.80}, expected true or "
            "false. Export again."
        )
    return "class" if by_class else "mean", contract.NORMALIZE in folder.manifest.files
