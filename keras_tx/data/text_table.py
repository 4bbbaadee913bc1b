"""Texts and labels of a CSV, TSV or JSON Lines file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_tx.data.batches import Batches
from keras_tx.data.classification import text_classification_batches
from keras_tx.data.label_column import label_cells, listed_counts
from keras_tx.data.labelled_rows import read_labelled_rows
from keras_tx.data.stratified_split import stratified_split
from keras_tx.data.table_file import BrokenRow, TableFile
from keras_tx.errors import ConfigError, true_or_false
from keras_tx.processing import TextTransform

CLASSIFICATION, MULTI_LABEL, REGRESSION = "classification", "multi-label", "regression"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class TextTable:
    """Texts with labels, from a file; `text_table` returns it. `print` shows a summary.

    Args:
        path: path of the file.
        texts: one per row.
        targets: one per row: the number of its class; 0 or 1 for each class (rows, classes); or a number,
            float32. None without labels.
        labels: the names of the classes, in order. None for numbers and without labels.
        pairs: the second texts; None if there are none.
        lines: the line of each row in the file.
        broken: rows that were left out.
    """

    path: Path
    texts: list[str]
    targets: np.ndarray | None
    labels: tuple[str, ...] | None
    pairs: list[str] | None
    lines: np.ndarray
    broken: tuple[BrokenRow, ...] = ()

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def task(self) -> str | None:
        """ "classification", "multi-label" or "regression"; None without labels."""
        if self.targets is None:
            return None
        if self.labels is None:
            return REGRESSION
        return CLASSIFICATION if self.targets.ndim == 1 else MULTI_LABEL

    def counts(self) -> dict[str, int]:
        """Returns the number of rows of each class."""
        if self.labels is None or self.targets is None:
            return {}
        if self.targets.ndim == 2:
            numbers = self.targets.sum(axis=0).astype(int).tolist()
        else:
            numbers = np.bincount(self.targets, minlength=len(self.labels)).tolist()
        return dict(zip(self.labels, numbers, strict=True))

    def batches(self, transform: TextTransform, **options: Any) -> Batches:
        """Returns batches for `model.fit`, as `text_classification_batches` does.

        `task` determines the head: ClassifierHead, MultiLabelHead or RegressionHead. `fit` checks that the
        head has the same class names, or sets them if it has none.

        Args:
            transform: the tokenizer: `model.processing`.
            options: `batch_size`, `shuffle`, `seed` and other options of `text_classification_batches`.

        Raises:
            ConfigError: the table has no labels.
        """
        if self.targets is None:
            raise ConfigError(
                f"The table of {self.path} has no labels. Pass label= to text_table, or pass its texts to "
                "the batches of another head, such as masked_lm_batches(table.texts, transform)."
            )
        classes = None if self.labels is None else len(self.labels)
        batches = text_classification_batches(
            self.texts, self.targets, transform, pairs=self.pairs, classes=classes, **options
        )
        batches.labels = self.labels
        return batches

    def split(self, share: float, *, seed: int = 0) -> tuple[TextTable, TextTable]:
        """Returns tables of the rows for training and for validation.

        Each class has the same share in both. Rows with the same first text are in the same table, whatever
        their second text and their label; case and white space are ignored. Second texts may be in both.

        Which texts are held out depends on the texts and the seed only, so the split hardly changes when rows
        are added.

        Args:
            share: share of the different texts for validation, such as 0.1.
            seed: seed of the choice.

        Raises:
            ConfigError: the share or the seed is out of range, or there are too few rows.
        """
        classes = self.targets.tolist() if self.task == CLASSIFICATION else [0] * len(self)  # type: ignore
        train, validation = stratified_split(list(map(_normalized, self.texts)), classes, share, seed)
        return self.take(train), self.take(validation)

    def take(self, rows: Iterable[int]) -> TextTable:
        """Returns a table of these rows, by index."""
        rows = np.asarray(list(rows), "int64")
        return dataclasses.replace(
            self,
            texts=[self.texts[row] for row in rows],
            targets=None if self.targets is None else self.targets[rows],
            pairs=None if self.pairs is None else [self.pairs[row] for row in rows],
            lines=self.lines[rows],
        )

    def repeated(self, other: TextTable | None = None) -> list[int]:
        """Returns the indices of rows whose text is in an earlier row, or in another table.

        Case and white space are ignored.

        Args:
            other: another table, such as the training data if this one is the validation data.
        """
        before = set() if other is None else set(other._keys())
        indices = []
        for index, key in enumerate(self._keys()):
            if key in before:
                indices.append(index)
            elif other is None:
                before.add(key)
        return indices

    def contradictions(self) -> list[int]:
        """Returns the indices of rows whose text is in an earlier row with another label."""
        first: dict[Any, Any] = {}
        labels = [] if self.targets is None else self.targets.tolist()
        rows = zip(self._keys(), labels, strict=False)
        return [index for index, (key, label) in enumerate(rows) if first.setdefault(key, label) != label]

    def _keys(self) -> list[tuple[str, ...]]:
        columns = [self.texts] if self.pairs is None else [self.texts, self.pairs]
        return [tuple(map(_normalized, row)) for row in zip(*columns, strict=True)]

    def __repr__(self) -> str:
        kind = "texts" if self.pairs is None else "pairs of texts"
        lines = [f"{self.path.name}: {len(self):,} {kind}, {self.task or 'without labels'}"]
        if self.labels is not None:
            lines.append(listed_counts(self.counts()))
        elif self.targets is not None:
            low, middle, high = np.quantile(self.targets, (0, 0.5, 1))
            lines.append(f"numbers from {low:g} to {high:g}, median {middle:g}")
        if repeated := len(self.repeated()):
            other = len(self.contradictions())
            lines.append(
                f"{repeated:,} repeated texts" + (f", {other:,} of them with another label" if other else "")
            )
        if self.broken:
            lines.append(f"{len(self.broken):,} broken rows were left out: {self.broken[0]}")
        return "\n".join(lines)


def _normalized(text: str) -> str:
    """A text without differences in case and white space."""
    return " ".join(text.split()).casefold()


def text_table(
    path: str | os.PathLike[str],
    *,
    text: str = "text",
    label: str | None = "label",
    pair: str | None = None,
    labels: Sequence[str] | None = None,
    separator: str | None = None,
    regression: bool | None = None,
    columns: Sequence[str] | None = None,
    skip_broken: bool = False,
    encoding: str | None = None,
    quotes: bool = True,
) -> TextTable:
    """Reads texts and their labels from a CSV, TSV or JSON Lines file.

    The delimiter of a CSV file is the most frequent of comma, semicolon and tab in its first line.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "reviews.csv")
    ...     _ = path.write_text("text,label\\nA good film.,good\\nA bad film.,bad\\n")
    ...     table = text_table(path)
    >>> table
    reviews.csv: 2 texts, classification
    bad 1, good 1
    >>> table.labels, table.targets.tolist()
    (('bad', 'good'), [1, 0])

    From a file to `fit`:

        train, validation = tx.text_table("reviews.csv").split(0.1)
        model = tx.from_checkpoint("hf://owner/name", head=tx.ClassifierHead(2, labels=train.labels))
        model.compile()
        model.fit(train.batches(model.processing), validation_data=validation.batches(model.processing))

    Args:
        path: path of a file whose name ends in .csv, .tsv, .jsonl or .ndjson.
        text: the column of the texts.
        label: the column of the labels; None for texts without labels.
        pair: the column of the second texts, for entailment, paraphrases or translations.
        labels: the names of the classes, in order. If the column has numbers, they are indices of these
            names. By default the values of the column, sorted as numbers if all are numbers.
        separator: separator of the names in a cell, if rows have several labels; not needed for lists in
            JSON.
        regression: whether labels are numbers to predict. By default this is true if all are numbers and
            some are not integers.
        columns: names of all columns, if a CSV or TSV file has no header.
        skip_broken: whether rows that cannot be used are left out and listed in `table.broken`. By default
            they raise an error.
        encoding: encoding of the file; by default UTF-8, or that of its byte order mark.
        quotes: whether fields may be in quotes; False if quotes are ordinary characters.

    Returns:
        A TextTable.

    Raises:
        ConfigError: arguments contradict each other.
        TextError: the file cannot be read, does not have a column, or has broken rows: without a text or a
            label, with a wrong number of fields, or with invalid characters. The message contains their
            lines.
    """
    cells = label_cells(label, labels, separator, regression)
    skip_broken = true_or_false("skip_broken", skip_broken)
    file = TableFile(Path(path), columns, encoding, quotes)
    texts = {"text": text, **({} if pair is None else {"pair": pair})}
    rows = read_labelled_rows(file, texts, cells, skip_broken=skip_broken)
    return TextTable(
        file.path,
        rows.columns["text"],
        None if rows.targets is None else rows.targets.values,
        None if rows.targets is None else rows.targets.names,
        rows.columns.get("pair"),
        rows.lines,
        rows.broken,
    )
