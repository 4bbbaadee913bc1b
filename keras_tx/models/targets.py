"""Checks that the targets of `fit` fit the loss of each output."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops

from keras_tx import contract
from keras_tx.errors import ConfigError
from keras_tx.losses import (
    SUM_TOLERANCE,
    are_class_numbers,
    are_probabilities,
    are_shares,
    function_name,
    has_probabilities,
)

NUMBER, ROW, EACH, REAL = "number", "row", "each", "real"
NUMBER_OR_ROW = "number or row"
KINDS = {
    "sparse_categorical_crossentropy": NUMBER,
    "TokenCrossentropy": NUMBER,
    "ClassCrossentropy": NUMBER_OR_ROW,
    "categorical_crossentropy": ROW,
    "categorical_focal_crossentropy": ROW,
    "binary_crossentropy": EACH,
    "binary_focal_crossentropy": EACH,
    "mean_squared_error": REAL,
    "mean_absolute_error": REAL,
}


# Branches: one for each kind of target.
def check_targets(
    targets: Any, loss: Any, shape: tuple[int | None, ...], model: str, unit: str = "classes"
) -> None:
    """Checks that the targets of one output are valid for its loss.

    Args:
        targets: of the output, as an array.
        loss: of the output. Only targets of losses of Keras and keras_tx are checked.
        shape: of the output, (batch, ..., classes).
        model: the name of the model, for messages.
        unit: what the last axis of the output counts, for messages.

    Raises:
        ConfigError: for invalid targets; the message names the first such row.
    """
    name = None if loss is None else function_name(loss)
    kind, array = KINDS.get(name or ""), np.asarray(targets)
    if kind is None or not array.size:
        return
    if array.dtype.kind not in "biuf":
        raise ConfigError(
            f"The labels of model {model!r} are {array.dtype}, such as {array.reshape(-1)[0]!r}, expected "
            "numbers. Number the classes: `np.array([names.index(label) for label in labels])`."
        )
    _refuse(~np.isfinite(array), array, "is not finite")
    count = shape[-1]
    whole = array.ndim >= len(shape) and array.shape[-1] == count  # shaped like the output
    if kind == NUMBER_OR_ROW:
        kind = ROW if whole else NUMBER
    if kind == NUMBER:
        if whole and count != 1:
            raise ConfigError(
                f"The labels have the shape {array.shape}, a number for each class, but the loss of model "
                f"{model!r} expects class numbers. Pass labels.argmax(-1), or compile with "
                "loss='categorical_crossentropy'."
            )
        wrong = (array < 0) | (array != np.floor(array))
        if count is not None:
            wrong |= array >= count
        if name == "TokenCrossentropy":
            wrong &= array != contract.NO_LABEL
        known = "expects 0 or more" if count is None else f"has {count} {unit} (0 to {count - 1})"
        _refuse(wrong, array, f"is out of range: model {model!r} {known}")
        return
    if count not in (None, 1) and not whole:
        remedy = {
            ROW: f"Pass keras.utils.to_categorical(labels, {count}), or compile with "
            "loss='sparse_categorical_crossentropy'.",
            EACH: "Pass 0 or 1 for each class.",
            REAL: "Pass one number for each output.",
        }
        raise ConfigError(
            f"The labels have the shape {array.shape}, but model {model!r} returns {count} numbers for each "
            f"sample, and its loss expects {count} labels. {remedy[kind]}"
        )
    if kind != REAL:
        _refuse((array < 0) | (array > 1), array, f"is out of range: model {model!r} expects 0 to 1")
    if name == "ClassCrossentropy":
        _check_probabilities(array, model)


def valid_targets(targets: Any, loss: Any, outputs: Any) -> Any:
    """Returns whether all targets of a batch are valid for a loss, as a tensor; None if they are not checked.

    `check_targets` checks arrays by the same rules, and names the row.

    Args:
        targets: the tensor of the targets.
        loss: of the output.
        outputs: the tensor of the outputs.
    """
    name = None if loss is None else function_name(loss)
    kind = KINDS.get(name or "", REAL)
    if kind == REAL or not len(outputs.shape):  # a number that is not finite makes the loss NaN
        return None
    if kind == NUMBER_OR_ROW:
        kind = ROW if has_probabilities(targets, outputs.shape[-1]) else NUMBER
    if kind == NUMBER:
        valid = are_class_numbers(targets, ops.shape(outputs)[-1])
        if name == "TokenCrossentropy":
            valid = ops.logical_or(valid, ops.equal(targets, contract.NO_LABEL))
    else:
        targets = ops.cast(targets, "float32")
        valid = are_probabilities(targets) if name == "ClassCrossentropy" else are_shares(targets)
    return ops.all(valid)


def _check_probabilities(rows: np.ndarray, model: str) -> None:
    sums = rows.reshape(-1, rows.shape[-1]).sum(axis=-1, dtype="float64")
    row = int(np.abs(sums - 1).argmax())
    if abs(sums[row] - 1) > SUM_TOLERANCE:
        raise ConfigError(
            f"The labels of row {row} sum to {sums[row]:g}, but the class probabilities of model {model!r} "
            "sum to 1. For several classes per sample use MultiLabelHead."
        )


def _refuse(wrong: np.ndarray, array: np.ndarray, reason: str) -> None:
    if not wrong.any():
        return
    row = int(np.argmax(wrong.reshape(len(array), -1).any(axis=1)))
    first = np.ravel(array[row])[np.argmax(np.ravel(wrong[row]))]
    raise ConfigError(f"Label {first} in row {row} {reason}.")
