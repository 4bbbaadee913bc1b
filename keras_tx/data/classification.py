"""Batches of texts with labels, and of words with labels."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from keras_tx import contract
from keras_tx.data.batches import Batches
from keras_tx.errors import TextError, nearest
from keras_tx.processing import Row, TextTransform

Classes = int | Sequence[str] | None


def text_classification_batches(
    texts: Any,
    labels: Any,
    transform: TextTransform,
    *,
    pairs: Any = None,
    classes: Classes = None,
    batch_size: int = 32,
    shuffle: bool = True,
    seed: int = 0,
    **options: Any,
) -> Batches:
    """Returns batches for a ClassifierHead, MultiLabelHead, RegressionHead or SentenceEmbeddingHead.

    >>> from keras_tx.processing import train_wordpiece
    >>> texts = ["a good film", "a bad film"]
    >>> transform = train_wordpiece(texts, 60)
    >>> classes = ["bad", "good"]
    >>> batches = text_classification_batches(texts, ["good", "bad"], transform, classes=classes)
    >>> sorted(batches[0][1].tolist())
    [0, 1]

    Args:
        texts: one text per sample.
        labels: one label per text: an integer, a float (RegressionHead), or a name of `classes`. For a
            MultiLabelHead a row of 0 and 1, or a list of names.
        transform: the tokenizer.
        pairs: second texts, if samples are pairs.
        classes: the number of classes, or their names where labels are names. `fit` checks that the head has
            the same names, or sets them if it has none.
        batch_size, shuffle, seed, options: as for `Batches`.

    Returns:
        `Batches` of the model's inputs and the labels.

    Raises:
        TextError: a text or a label is invalid; the message contains its index.
    """
    rows = transform.encode(texts, pairs)
    if len(labels) != len(rows):
        raise TextError(f"There are {len(rows)} texts but {len(labels)} labels.")
    numbers = _of_texts(labels, classes)

    def pack(chosen: np.ndarray, random: np.random.Generator) -> tuple[Any, Any]:
        return transform.pad([rows[number] for number in chosen]), numbers[chosen]

    def content() -> Iterator[np.ndarray]:
        yield from (row.ids for row in rows)
        yield numbers

    lengths = [len(row) for row in rows]
    batches = Batches(pack, lengths, batch_size, shuffle=shuffle, seed=seed, content=content, **options)
    batches.labels = _names(classes)
    return batches


def token_classification_batches(
    texts: Sequence[Sequence[str]],
    labels: Sequence[Sequence[Any]],
    transform: TextTransform,
    *,
    classes: Classes = None,
    label_all_tokens: bool = False,
    overlap: int | None = None,
    batch_size: int = 32,
    shuffle: bool = True,
    seed: int = 0,
    **options: Any,
) -> Batches:
    """Returns batches for a TokenClassifierHead, from lists of words and of their labels.

    Texts longer than the transform's `max_length` are truncated, unless `overlap` is set.

    >>> from keras_tx.processing import train_wordpiece
    >>> transform = train_wordpiece(["Ada lives in Paris"] * 2, 60)
    >>> words, tags = ["Ada", "lives", "in", "Paris"], ["PER", "O", "O", "LOC"]
    >>> batches = token_classification_batches([words], [tags], transform, classes=["O", "PER", "LOC"])
    >>> batches[0][1].tolist()
    [[-100, 1, 0, 0, 2, -100]]

    Args:
        texts: a list of words for each text.
        labels: a list of labels for each text, one for each word; -100 for a word without a label.
        transform: the tokenizer.
        classes: the number of classes, or their names where labels are names. `fit` checks that the head has
            the same names, or sets them if it has none.
        label_all_tokens: whether all tokens of a word have its label. By default its first token has the
            label, and the others have -100.
        overlap: the number of tokens that the windows of a long text share; None truncates long texts.
        batch_size, shuffle, seed, options: as for `Batches`.

    Returns:
        `Batches` of the model's inputs and of labels (batch, sequence), -100 where a token has none.

    Raises:
        TextError: a text or a label is invalid; the message contains its index.
    """
    if len(labels) != len(texts):
        raise TextError(f"There are {len(texts)} texts but {len(labels)} lists of labels.")
    known = []
    for index, (words, word_labels) in enumerate(zip(texts, labels, strict=True)):
        if len(words) != len(word_labels):
            raise TextError(f"texts[{index}] has {len(words)} words but {len(word_labels)} labels.")
        known.append(_values(word_labels, classes, f"labels[{index}]", whole=True))
    if overlap is None:
        rows = transform.encode(texts, words=True)
    else:
        rows = transform.windows(texts, overlap=overlap, words=True)
    begun = _begun(rows, overlap or 0)

    def pack(chosen: np.ndarray, random: np.random.Generator) -> tuple[Any, Any]:
        batch = transform.pad([rows[number] for number in chosen])
        shape = batch[contract.INPUT_IDS].shape
        targets = np.full(shape, contract.NO_LABEL, "int64")
        for index, number in enumerate(chosen):
            row = rows[number]
            has_label = row.words >= 0
            if not label_all_tokens:
                has_label[1:] &= row.words[1:] != row.words[:-1]
                has_label &= row.words != begun[number]
            of_row = np.where(has_label, known[row.text][np.maximum(row.words, 0)], contract.NO_LABEL)
            targets[index, transform.place(row, shape[1])] = of_row
        return batch, targets

    def content() -> Iterator[np.ndarray]:
        yield from (array for row in rows for array in (row.ids, row.words))
        yield from known

    lengths = [len(row) for row in rows]
    batches = Batches(pack, lengths, batch_size, shuffle=shuffle, seed=seed, content=content, **options)
    batches.labels = _names(classes)
    return batches


def _names(classes: Classes) -> tuple[str, ...] | None:
    return None if classes is None or isinstance(classes, int) else tuple(classes)


def _begun(rows: Sequence[Row], overlap: int) -> list[int]:
    """The word of each row whose first token is in the previous window; -2 if there is no such word."""
    begun = [-2]
    for before, row in itertools.pairwise(rows):
        words, earlier = (x.words[x.parts >= 0] for x in (row, before))
        shared = len(earlier) - overlap  # tokens of the window before until this one begins
        continues = before.text == row.text and shared > 0 and earlier[shared - 1] == words[0]
        begun.append(int(words[0]) if continues else -2)
    return begun


def _of_texts(labels: Any, classes: Classes) -> np.ndarray:
    """One number per text; 0 or 1 for each class if texts have several labels."""
    numbers = getattr(labels, "ndim", 1) == 2 and getattr(labels, "dtype", np.dtype(object)).kind in "biuf"
    if classes is not None and not isinstance(classes, int) and not numbers:
        return _of_names(labels, classes)
    count = classes if classes is None or isinstance(classes, int) else len(classes)
    lengths = {np.size(label) for label in labels}
    if len(lengths) > 1:
        raise TextError(f"labels have the lengths {sorted(lengths)}, expected one label for each class.")
    values = np.asarray(labels)
    if count is None or values.ndim != 2 or values.shape[1] == 1:
        return _values(labels, count, "labels")
    bad = np.flatnonzero(((values != 0) & (values != 1)).any(axis=1))
    if bad.size or values.shape[1] != count:
        index = bad[0] if bad.size else 0
        raise TextError(
            f"labels[{index}] is {values[index].tolist()}, expected 0 or 1 for each of {count} classes."
        )
    return values.astype("float32")


def _of_names(labels: Any, classes: Sequence[str]) -> np.ndarray:
    several = [not isinstance(label, str) and isinstance(label, Collection) for label in labels]
    if not any(several):
        return _values(labels, classes, "labels")
    rows = np.zeros((len(labels), len(classes)), "float32")
    for index, names in enumerate(labels):
        if not several[index]:
            raise TextError(f"labels[{index}] is {names!r}, expected a list of names like the other labels.")
        rows[index, _values(list(names), classes, f"labels[{index}]")] = 1.0
    return rows


def _values(labels: Any, classes: Classes, name: str, whole: bool = False) -> np.ndarray:
    """Labels as integers, or as float32 if they are not integers and `whole` is false."""
    if classes is not None and not isinstance(classes, int):
        return _class_indices(labels, classes, name)
    values = np.asarray(labels)
    if values.dtype.kind == "f" and not whole and classes is None:
        bad = np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))
        if bad.size:
            raise TextError(f"{name}[{bad[0]}] is {values[bad[0]]}, expected a finite number.")
        return values.astype("float32")
    if values.dtype.kind not in "biu":
        raise TextError(
            f"{name} are {values.dtype}, expected integers. Pass the names of labels as classes=."
        )
    values = values.astype("int64")
    least = values != contract.NO_LABEL if whole else np.ones(values.shape, bool)
    most = np.inf if classes is None else classes
    bad = np.flatnonzero(least & ((values < 0) | (values >= most)))
    if bad.size:
        expected = "0 or more" if classes is None else f"0 to {classes - 1}"
        raise TextError(f"{name}[{bad[0]}] is {values[bad[0]]}, expected {expected}.")
    return values


def _class_indices(labels: Any, classes: Sequence[str], name: str) -> np.ndarray:
    indices = {label: number for number, label in enumerate(classes)}
    for index, label in enumerate(labels):
        if label not in indices:
            raise TextError(f"{name}[{index}] is {label!r}. {nearest(str(label), indices)}")
    return np.array([indices[label] for label in labels], "int64")
