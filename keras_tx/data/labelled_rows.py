"""The rows of a table with their labels: cells of named columns, and the rows that cannot be used."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_tx.data.label_column import LabelCells, Targets
from keras_tx.data.table_file import BrokenRow, TableFile, cell_problem, refuse_broken
from keras_tx.errors import TextError


@dataclasses.dataclass(frozen=True)
class LabelledRows:
    """Columns of the usable rows of a table.

    Args:
        columns: the cells, by the name of the argument of the column.
        targets: the labels; None without labels.
        lines: the line of each row in the file.
        broken: rows that were left out.
    """

    columns: dict[str, list[str]]
    targets: Targets | None
    lines: np.ndarray
    broken: tuple[BrokenRow, ...]


def read_labelled_rows(
    file: TableFile,
    columns: Mapping[str, str],
    cells: LabelCells | None,
    *,
    content: str = "text",
    skip_broken: bool = False,
) -> LabelledRows:
    """Reads the rows of a table.

    Args:
        file: the table.
        columns: the names of the columns, by the name of the argument that has them, such as "text".
        cells: collects the cells of the label column; None without labels.
        content: what a cell of `columns` is, for messages.
        skip_broken: whether broken rows are left out.

    Raises:
        TextError: the file does not have a column, has no usable row, or has broken rows.
    """
    names = {**columns, **({} if cells is None else {"label": cells.column})}
    read: dict[str, list[str]] = {argument: [] for argument in columns}
    lines: list[int] = []
    broken: list[BrokenRow] = []
    for line, row in file.rows(list(names.values()), list(names)):
        if isinstance(row, BrokenRow):
            broken.append(row)
            continue
        problem = _problem(row, list(columns.values()), cells, content)
        if problem is not None:
            broken.append(BrokenRow(file.path, f"line {line}", *problem))
            continue
        lines.append(line)
        for argument, cell in zip(columns, row, strict=False):
            read[argument].append(cell)
    rows = len(lines) + len(broken)
    if not skip_broken:
        refuse_broken(file.path, broken, rows)
    if not lines:
        reason = f", and the first is {broken[0]}" if broken else ""
        raise TextError(
            f"{file.path} has no rows to train on: {len(broken):,} of {rows:,} are broken{reason}."
        )
    targets = None if cells is None else cells.targets()
    return LabelledRows(read, targets, np.array(lines, "int64"), tuple(broken))


def _problem(
    row: list[Any], columns: list[str], cells: LabelCells | None, content: str
) -> tuple[str, str] | None:
    """Adds the label of a row, or returns the name of a column and why its cell is invalid."""
    for column, cell in zip(columns, row, strict=False):
        if (reason := cell_problem(cell, content)) is not None:
            return column, reason
    if cells is not None and (reason := cells.add(row[-1])) is not None:
        return cells.column, reason
    return None
