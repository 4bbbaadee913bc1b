"""Arrays from and to JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_tx.contract import TensorSpec
from keras_tx.errors import InputError, RunError
from keras_tx.serving.http.json_response import PIECE, count_values

MOST_NUMBERS = 1_000_000  # of the outputs that are sent as JSON


def array_of(value: Any, spec: TensorSpec) -> np.ndarray:
    """Nested lists of JSON's numbers as an array of the dtype of an input.

    Long lists are converted in pieces: NumPy lets no other thread run before it has converted a list.

    Raises:
        InputError: if the lists have different lengths, or a number does not fit the dtype.
    """
    if isinstance(value, list) and count_values(value) > PIECE:
        size = count_values(value[0])
        if size > PIECE:
            return _joined([array_of(item, spec)[None] for item in value], spec)
        step = PIECE // max(1, size)
        if step < len(value):
            parts = [array_of(value[start : start + step], spec) for start in range(0, len(value), step)]
            return _joined(parts, spec)
    return _converted(value, spec)


def _converted(value: Any, spec: TensorSpec) -> np.ndarray:
    """A piece of nested lists as an array of the dtype of an input."""
    array, target = _numbers(value, spec), np.dtype(spec.dtype)
    if target.kind == "f" and array.dtype.kind in "iufO":  # 0.1 of JSON is the closest number of the dtype
        with np.errstate(over="ignore"):
            result = array.astype(target)
        if not np.isfinite(result).all():
            raise InputError(f"{spec.name!r} has a number that {spec.dtype} cannot represent.")
        return result
    if target.kind in "iu" and array.dtype.kind in "iuO":
        bounds = np.iinfo(target)
        if array.size and (int(array.min()) < bounds.min or int(array.max()) > bounds.max):
            raise InputError(f"{spec.name!r} has a number outside of {bounds.min} to {bounds.max}.")
        return array.astype(target)
    if array.dtype.kind == target.kind or not array.size:
        return array.astype(target)
    raise InputError(f"{spec.name!r} has numbers of type {array.dtype}, expected {spec.dtype}.")


def _numbers(value: Any, spec: TensorSpec) -> np.ndarray:
    """A piece of nested lists as an array, whose values are of the same kind as those of the lists."""
    try:
        array = np.array(value)
    except (ValueError, OverflowError):
        array = np.array(None)
    if array.dtype.kind not in "biuf":
        raise _not_numbers(value, spec)
    kinds = _kinds(value)
    if bool in kinds and spec.dtype != "bool":  # NumPy takes it for 0 or 1 beside numbers
        raise InputError(f"{spec.name!r} has true or false, expected numbers of type {spec.dtype}.")
    # NumPy rounds to floats what has no dtype in common: 2**63 beside 1.
    return np.array(value, object) if kinds == {int} and array.dtype.kind == "f" else array


def _kinds(value: Any) -> set[type]:
    """The types of the values in nested lists."""
    if not isinstance(value, list):
        return {type(value)}
    kinds = set(map(type, value))
    return kinds if list not in kinds else set().union(*map(_kinds, value))


def _joined(parts: list[np.ndarray], spec: TensorSpec) -> np.ndarray:
    try:
        return np.concatenate(parts)
    except ValueError as error:
        raise _not_numbers([part.tolist() for part in parts[:1]], spec) from error


def _not_numbers(value: Any, spec: TensorSpec) -> InputError:
    return InputError(f"{spec.name!r} is {value!r:.60}, expected nested lists of numbers, of equal lengths.")


def check_json(outputs: Mapping[str, np.ndarray], names: Iterable[str]) -> None:
    """Checks that these outputs can be sent as JSON.

    Raises:
        InputError: if they have too many numbers.
        RunError: for NaN and infinity, which JSON does not have.
    """
    arrays = {name: outputs[name] for name in names}
    numbers = sum(array.size for array in arrays.values())
    if numbers > MOST_NUMBERS:
        raise InputError(
            f"The outputs have {numbers} numbers, expected at most {MOST_NUMBERS} as JSON. Use /v2 with the "
            "parameter binary_data_output, or send fewer inputs."
        )
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise RunError(
                f"Output {name!r} has NaN or infinity, which JSON cannot represent. Use /v2 with binary data."
            )
