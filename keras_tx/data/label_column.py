"""The labels of a table: names of classes, several names per row, or numbers."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_tx.data.table_file import encoding_problem, is_missing
from keras_tx.errors import ConfigError, TextError, nearest, true_or_false

LISTED = 12  # labels in a summary
FEW = 20  # up to this number of different values are always accepted as classes


@dataclasses.dataclass(frozen=True)
class Targets:
    """The labels of the rows of a table, as numbers.

    Args:
        values: class numbers (rows,), 0 or 1 for each class (rows, classes), or float32 numbers (rows,).
        names: names of the classes, in order; None for numbers.
    """

    values: np.ndarray
    names: tuple[str, ...] | None


class LabelCells:
    """Collects the cells of a label column, and converts them to numbers.

    Args:
        column: the name of the column, for messages.
        names: the names of the classes, in order, or None.
        separator: separator of several names in a cell, or None.
        regression: whether labels are numbers; None to decide by the values.
    """

    def __init__(
        self, column: str, names: Sequence[str] | None, separator: str | None, regression: bool | None
    ) -> None:
        self.column = column
        self.names = None if names is None else tuple(names)
        self.separator, self.regression = separator, regression
        self.cells: list[Any] = []
        self.several: bool | None = None if separator is None else True
        self._numbered = False  # the cells may be the numbers of the names
        if self.names is not None:
            self._numbered = not any(name.isdecimal() for name in self.names)
            self._numbers = {str(number) for number in range(len(self.names))}

    def add(self, cell: Any) -> str | None:
        """Adds a cell, or returns the reason why it is not a label."""
        several = isinstance(cell, list)
        if self.several is None:
            self.several = several
        if self.several:
            return self._add_several(cell)
        problem = self._problem(cell)
        if problem is None:
            self.cells.append(cell if isinstance(cell, int | float) else cell.strip())
        return problem

    def _add_several(self, cell: Any) -> str | None:
        if self.separator is not None and isinstance(cell, str):
            names = [name.strip() for name in cell.split(self.separator) if name.strip()]
        elif is_missing(cell):
            names = []
        elif isinstance(cell, list):
            names = [name if isinstance(name, str) else str(name) for name in cell]
        else:
            return f"{cell!r:.40} is not a list of names like the previous labels"
        for name in names:
            if self.names is not None and name not in self.names:
                return f"{name!r:.60} is not a label. {nearest(name, self.names)}"
        self.cells.append(names)
        return None

    def _problem(self, cell: Any) -> str | None:
        if is_missing(cell):
            return "the label is empty" if not cell or not str(cell).strip() else f"the label is {cell!r}"
        if not isinstance(cell, str | int | float):
            return f"{cell!r:.40} is a {type(cell).__name__}, expected a name or a number"
        if isinstance(cell, str) and (problem := encoding_problem(cell)) is not None:
            return problem
        if self.regression:
            number = number_of(cell)
            return f"{cell!r:.40} is not a finite number" if number is None else None
        name = label_name(cell)
        if self.names is None or name in self.names or (self._numbered and name in self._numbers):
            return None
        return f"{name!r:.60} is not a label. {nearest(name, self.names)}"

    def targets(self) -> Targets:
        """Returns the labels of all cells.

        Raises:
            TextError: the column has one value only, or is not a column of labels.
        """
        if self.several:
            return self._several_targets()
        numbers = [number_of(cell) for cell in self.cells] if self.names is None else []
        if self.regression is None and self.names is None and None not in numbers:
            self.regression = any(number != int(number) for number in numbers if number is not None)
        if self.regression:
            return self._number_targets(numbers)
        return self._class_targets(numbers)

    def _number_targets(self, numbers: list[float | None]) -> Targets:
        values = np.array(numbers, "float32")
        self._check_different(len(np.unique(values)), f"{self.cells[0]!r}")
        return Targets(values, None)

    def _class_targets(self, numbers: list[float | None]) -> Targets:
        whole = [int(number) for number in numbers if number is not None and number == int(number)]
        if self.names is None and len(whole) == len(self.cells):  # 0, 1 ..., also as 0.0, 1.0 or 01
            cells = list(map(str, whole))
        else:
            cells = [label_name(cell) for cell in self.cells]
        different = set(cells)
        if self.names is None:
            self._check_different(len(different), f"{cells[0]!r:.60}")
        if self.names is None and len(different) > max(FEW, len(cells) // 2):
            raise TextError(
                f"Column {self.column!r} has {len(different):,} different values in {len(cells):,} rows, "
                "which are not classes. Pass another column as label=, or the names of classes as labels=."
            )
        names = sorted_names(different) if self.names is None else self.names
        index = self._index(names, different)
        return Targets(np.array([index[name] for name in cells], "int64"), names)

    def _index(self, names: Sequence[str], different: set[str]) -> dict[str, int]:
        """The number of each class, by its name or, in a column of numbers, by its number."""
        if self._numbered and not different & set(names):
            return {str(number): number for number in range(len(names))}
        if different - set(names):
            raise TextError(
                f"Column {self.column!r} has names and numbers of the labels. Pass labels= with the values "
                "as they are in the file."
            )
        return {name: number for number, name in enumerate(names)}

    def _several_targets(self) -> Targets:
        counts = collections.Counter(name for names in self.cells for name in names)
        if self.names is None and len(counts) > max(FEW, len(self.cells) // 2):
            raise TextError(
                f"Column {self.column!r} has {len(counts):,} different names in {len(self.cells):,} rows. "
                "Check the separator, or pass labels= with the names."
            )
        names = sorted_names(counts) if self.names is None else self.names
        if not names:
            raise TextError(
                f"Column {self.column!r} has no labels. Pass label= with the column of the labels."
            )
        index = {name: number for number, name in enumerate(names)}
        values = np.zeros((len(self.cells), len(names)), "float32")
        for row, chosen in enumerate(self.cells):
            values[row, [index[name] for name in chosen]] = 1.0
        return Targets(values, names)

    def _check_different(self, count: int, value: str) -> None:
        if count < 2:
            raise TextError(
                f"Column {self.column!r} has the value {value} in all {len(self.cells):,} rows. Training "
                "needs at least two different labels."
            )


def label_cells(
    label: str | None, labels: Sequence[str] | None, separator: str | None, regression: bool | None
) -> LabelCells | None:
    """Returns the collector of a label column, or None without one.

    Args:
        label, labels, separator, regression: as for `text_table`.

    Raises:
        ConfigError: the arguments are out of range or contradict each other.
    """
    if isinstance(labels, str):
        raise ConfigError(f"labels={labels!r}, expected a list of names, one for each class in order.")
    if labels is not None and len({*labels} - {""}) < max(2, len(labels)):
        raise ConfigError(f"labels={list(labels)!r}, expected two or more different names.")
    if regression is not None:
        true_or_false("regression", regression)
    if separator == "":
        raise ConfigError("separator is '', expected a character such as '|'.")
    options = {"labels": labels, "separator": separator, "regression": regression or None}
    passed = [name for name, value in options.items() if value is not None]
    if label is None and passed:
        raise ConfigError(f"{passed[0]}= needs label=, the column of the labels. Pass it.")
    if regression and len(passed) > 1:
        raise ConfigError(f"regression=True and {passed[0]}= were both passed. Pass one of them.")
    return None if label is None else LabelCells(label, labels, separator, regression)


def sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    """Returns names of classes in their order: as numbers if all of them are, otherwise as texts.

    >>> sorted_names(["10", "9"]), sorted_names(["b", "10", "9"])
    (('9', '10'), ('10', '9', 'b'))
    """
    names = sorted(names)
    numbers = {name: number_of(name) for name in names}
    if None in numbers.values():
        return tuple(names)
    return tuple(sorted(names, key=numbers.__getitem__))  # type: ignore[arg-type]


def listed_counts(counts: Mapping[str, int]) -> str:
    """Returns the most frequent labels with their numbers, for a summary.

    >>> listed_counts({"bad": 3, "good": 1200})
    'good 1,200, bad 3'
    """
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    rest = f" and {len(ordered) - LISTED} more" if len(ordered) > LISTED else ""
    return ", ".join(f"{name} {count:,}" for name, count in ordered[:LISTED]) + rest


def number_of(cell: Any) -> float | None:
    """Returns a cell as a number; None if it is not a finite number."""
    if isinstance(cell, bool):
        return None
    try:
        number = float(cell)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and "_" not in str(cell) else None


def label_name(cell: Any) -> str:
    """Returns a cell as the name of a class: true, 3 and 3.0 of JSON as in a CSV file."""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return cell.strip() if isinstance(cell, str) else str(cell)
