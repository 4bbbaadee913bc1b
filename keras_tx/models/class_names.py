"""Names of classes: those of data, of a file or of a checkpoint are compared with those of a model's head."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_tx.errors import ConfigError
from keras_tx.heads import Head, RegressionHead

LISTED = 5  # names in a message
OF_DATA = (
    "Read the data with the names of the model in its order (labels= of a table or folder, classes= of "
    "batches), or create the model with those of the data."
)


def names_of_data(data: Any) -> tuple[str, ...] | None:
    """Returns the names of the classes of a data source, or None if it has none.

    Batches of keras_tx.data have them as `labels`, and tf.data datasets of Keras and of `Batches.tf_data` as
    `class_names`.
    """
    tf = sys.modules.get("tensorflow")
    if isinstance(data, keras.utils.PyDataset):
        names = getattr(data, "labels", None)
    elif tf is not None and isinstance(data, tf.data.Dataset):
        names = getattr(data, "class_names", None)
    else:
        return None
    known = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return tuple(names) if known and names else None


def check_data_names(head: Head | None, data: Any, model: str, *, source: str = "The data") -> None:
    """Checks that the class names of a data source are those of a head, in the same order.

    Args:
        head: the head.
        data: the data source.
        model: the name of the model, for messages.
        source: the data, for messages.

    Raises:
        ConfigError: the names or the number of the classes differ, or the head predicts numbers.
    """
    names = names_of_data(data)
    if names is not None and isinstance(head, RegressionHead):
        raise ConfigError(
            f"{source} has the classes {listed(names)}, but the RegressionHead of model {model!r} predicts "
            "numbers. Pass regression=True to the table, or create the model with a ClassifierHead."
        )
    check_names(head, names, model, source=source, remedy=OF_DATA)


def check_names(
    head: Head | None, names: Sequence[str] | None, model: str, *, source: str, remedy: str
) -> None:
    """Checks that names are those of a head, in the same order.

    Args:
        head: the head.
        names: the names; None if they are unknown.
        model: the name of the model, for messages.
        source: what has the names, for messages.
        remedy: what to do if they differ, for messages.

    Raises:
        ConfigError: the names or their number differ.
    """
    default = None if head is None else head.default_labels()
    if names is None or default is None:
        return
    if len(names) != len(default):
        raise ConfigError(
            f"{source} has {len(names)} classes ({listed(names)}), but model {model!r} has {len(default)}. "
            f"Create the model with a head of {len(names)} classes."
        )
    own = getattr(head, "labels", None)
    if own is not None and own != tuple(names):
        raise ConfigError(
            f"{source} has the classes {listed(names)}, but model {model!r} has {listed(own)}. {remedy}"
        )


def named_head(head: Any, names: Sequence[str] | None) -> Any:
    """Returns a head with these names, if it can have names and has none."""
    if names is None or getattr(head, "labels", names) is not None:
        return head
    return dataclasses.replace(head, labels=tuple(names))


def order_of_rows(stored: Any, head: Any, where: str) -> list[int] | None:
    """Returns the row of a checkpoint's head for each class of another head; None for the same order.

    Args:
        stored: the head of the checkpoint, whose weights are loaded.
        head: the head of the model.
        where: the checkpoint, for messages.

    Raises:
        ConfigError: the order differs, and the layers of the head are not those of keras_tx.
    """
    before, after = (getattr(x, "labels", None) for x in (stored, head))
    if before is None or after is None or before == after or set(before) != set(after):
        return None
    if not head.class_layers:
        raise ConfigError(
            f"The head of {where} has the classes {listed(before)}, but head= has {listed(after)}. Pass the "
            "names in the order of the checkpoint."
        )
    return [before.index(name) for name in after]


def has_other_classes(stored: Any, head: Any) -> bool:
    """Whether two heads have names of their classes, and not the same ones."""
    before, after = (getattr(x, "labels", None) for x in (stored, head))
    return before is not None and after is not None and set(before) != set(after)


def reorder_classes(model: Any, order: Sequence[int] | None) -> None:
    """Reorders the columns of a model's head, so that class i is the former class `order[i]`."""
    for name in () if order is None else model.head.class_layers:
        for variable in model.get_layer(name).weights:
            variable.assign(keras.ops.take(variable, np.array(order), axis=-1))


def listed(names: Sequence[str]) -> str:
    """Returns the first names, for a message."""
    more = len(names) - LISTED
    return ", ".join(map(repr, names[:LISTED])) + (f" and {more} more" if more > 0 else "")
