"""A model takes the tensors of a checkpoint, every one accounted for."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable
from typing import Any

import keras
import ml_dtypes
import numpy as np

from keras_tx.errors import ConfigError
from keras_tx.progress_bar import ProgressBar
from keras_tx.weights.tensor_map import BODY, HEAD, Entry, Plan
from keras_tx.weights.tensor_source import Tensors
from keras_tx.weights.weight_values import array_of, check_values, merged_weights
from keras_tx.weights.weightless import assign

SHOWN = 12  # names of a long list
FINITE = "Download or copy the weights again, or use those from before the training diverged."
LARGE = 2**30  # bytes; smaller files load in a few seconds and show no progress bar
FLOATS = [np.dtype(x) for x in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]


@dataclasses.dataclass(frozen=True)
class Filled:
    """What a checkpoint does not give, and what of it is not taken."""

    new: tuple[str, ...]  # paths of variables that keep their initial values
    unused: tuple[str, ...]  # tensors of parts that the model does not have
    resized: tuple[str, ...]
    new_parts: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Account:
    """Which tensor each entry takes, and what is left over on both sides."""

    taken: dict[str, Entry]  # by the name of the tensor in the checkpoint
    to_fit: frozenset[str]
    filled: Filled
    head_lacks: tuple[str, ...]  # what of the checkpoint's head does not fit this one, which is then new


def fill(model: keras.Model, plan: Plan, tensors: Tensors, *, stacklevel: int = 1) -> Filled:
    """Assigns every tensor, and warns about those that are new or unused.

    Names, shapes and dtypes are checked before anything is assigned; values (NaN, infinity) as they are read.
    """
    account = match_tensors(model, plan, tensors)
    variables = variables_of(model, plan)
    # What may still fail is read before anything is assigned.
    fitted = {
        name: entry.fit(tensors.read(name), _expected(entry, variables))
        for name, entry in account.taken.items()
        if name in account.to_fit and entry.fit is not None
    }
    with ProgressBar(len(account.taken), "tensors", shown=tensors.nbytes >= LARGE) as bar:
        for name, entry in account.taken.items():
            values = fitted[name] if name in fitted else tensors.read(name)
            _assign(f"{tensors.where}: tensor {name!r}", values, entry, variables)
            bar.advance()
    _say(account.filled, tensors, stacklevel + 2)
    return account.filled


def _assign(name: str, values: np.ndarray, entry: Entry, variables: dict[str, Any]) -> None:
    ours = [variables[path] for path in entry.paths]
    for variable, value in zip(ours, entry.form.to_ours(values, [tuple(x.shape) for x in ours]), strict=True):
        # A copy in any case: a backend may keep the array, and the file's pages must not be trained on.
        with np.errstate(over="ignore"):
            value = np.array(value, dtype="float32", order="C")
            cast = value.astype("float16") if variable.dtype == "float16" else value
        check_values(cast, f"{name}, as {variable.dtype},", FINITE)
        assign(variable, value)


def match_tensors(model: keras.Model, plan: Plan, tensors: Tensors) -> Account:
    """Compares both sides by names, shapes and dtypes; raises one ConfigError for all that does not fit.

    The model's variables may be without values.
    """
    variables = variables_of(model, plan)
    there = _canonical_names(plan, tensors)
    named = {plan.canonical(entry.name): entry for entry in plan.entries}
    shapes = {name: tuple(tensors.shapes[there[name]]) for name in there}
    fits = {
        name: name in there and (entry.fit is not None or shapes[name] == _expected(entry, variables))
        for name, entry in named.items()
    }
    new_parts = set()
    for part in {entry.part for entry in plan.entries} - {BODY}:
        names = [name for name, entry in named.items() if entry.part == part]
        # A head of another size, or with other layers, is another head.
        if not any(name in there for name in names) or (part == HEAD and not all(fits[x] for x in names)):
            new_parts.add(part)
    taken = {name: entry for name, entry in named.items() if entry.part not in new_parts}
    left = [name for name in there if name not in taken and not _computed(name, plan)]
    copies = [name for name in left if name in plan.copies and plan.copies[name] in there]
    unused = [
        name
        for name in left
        if name not in copies and (name in named or name.startswith(plan.others or ("\0",)))
    ]

    def missing(names: Iterable[str]) -> list[str]:
        return [
            f"missing: {entry.name} {_size(_expected(entry, variables))} for {', '.join(entry.paths)}"
            for x in names
            if x not in there and (entry := named[x])
        ]

    def misshapen(names: Iterable[str]) -> list[str]:
        return [
            f"shape: {there[x]} is {_size(shapes[x])}, but {', '.join(named[x].paths)} of the model "
            f"need{'s' * (len(named[x].paths) == 1)} {_size(_expected(named[x], variables))}"
            for x in names
            if x in there and not fits[x]
        ]

    unexpected = [
        f"not expected: {there[name]} {_size(shapes[name])}"
        for name in left
        if name not in copies and name not in unused
    ]
    integers = [
        f"dtype: {there[name]} has {tensors.dtypes[there[name]]} numbers, expected floats"
        for name in [*taken, *copies]
        if name in there and tensors.dtypes.get(there[name], FLOATS[0]) not in FLOATS
    ]
    # Each kind is cut by itself, so that a long list of one hides no other.
    problems = [found for found in (missing(taken), unexpected, misshapen(taken), integers) if found]
    if problems:
        raise ConfigError(
            f"The weights of {tensors.where} do not fit model {model.name!r}:\n  "
            + "\n  ".join(_shortened(found, "\n  ") for found in problems)
            + "\nMake the model of the checkpoint's own config: keras_tx.from_checkpoint does that."
        )
    _check_copies(plan, tensors, there, copies)
    of_head = [name for name, entry in named.items() if entry.part == HEAD and HEAD in new_parts]
    to_fit = {
        name for name, entry in taken.items() if entry.always or shapes[name] != _expected(entry, variables)
    }
    filled = Filled(
        new=tuple(path for entry in plan.entries if entry.part in new_parts for path in entry.paths),
        unused=tuple(there[name] for name in unused),
        resized=tuple(taken[name].paths[0] for name in taken if name in to_fit),
        new_parts=frozenset(new_parts),
    )
    return Account(
        {there[name]: entry for name, entry in taken.items()},
        frozenset(there[name] for name in to_fit),
        filled,
        (*missing(of_head), *misshapen(of_head)),
    )


def emptied(model: keras.Model, plan: Plan) -> Iterable[tuple[Entry, np.ndarray]]:
    """The tensors of a checkpoint, one by one, from the model's variables."""
    variables = variables_of(model, plan)
    for entry in plan.entries:
        ours = [array_of(variables[path]) for path in entry.paths]
        yield entry, np.ascontiguousarray(entry.form.to_theirs(ours))


def variables_of(model: keras.Model, plan: Plan) -> dict[str, Any]:
    """The model's weights by path, all of which the plan must name."""
    variables = merged_weights(model)
    named = [path for entry in plan.entries for path in entry.paths]
    further = sorted(set(variables) - set(named))
    if further:
        raise ConfigError(
            f"Model {model.name!r} has {_shortened(further)}, for which a checkpoint has no tensor: "
            "model.quantize and layers of your own add such weights. Save the model with model.save, or use "
            "it as it was before."
        )
    assert set(named) == set(variables), sorted(set(named) ^ set(variables))
    return variables


def _canonical_names(plan: Plan, tensors: Tensors) -> dict[str, str]:
    there: dict[str, str] = {}
    for name in tensors.shapes:
        known = plan.canonical(name)
        if known in there:
            raise ConfigError(
                f"{tensors.where} has {there[known]!r} and {name!r}, which are two names of one tensor. "
                "Leave one of them out."
            )
        there[known] = name
    return there


def _computed(name: str, plan: Plan) -> bool:
    return bool(plan.computed) and name.endswith(plan.computed)


def _check_copies(plan: Plan, tensors: Tensors, there: dict[str, str], copies: list[str]) -> None:
    for name in copies:
        other = there[plan.copies[name]]
        if not np.array_equal(tensors.read(there[name]), tensors.read(other), equal_nan=True):
            raise ConfigError(
                f"{tensors.where}: {there[name]} differs from {other}, but in this model they are one. "
                "Untie them in the model's config (tie_word_embeddings), or leave one out."
            )


def _expected(entry: Entry, variables: dict[str, Any]) -> tuple[int, ...]:
    return entry.form.their_shape([tuple(variables[path].shape) for path in entry.paths])


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a number"


def _shortened(items: list[str], separator: str = ", ") -> str:
    more = [f"... and {len(items) - SHOWN} more"] if len(items) > SHOWN else []
    return separator.join(items[:SHOWN] + more)


def _say(filled: Filled, tensors: Tensors, stacklevel: int) -> None:
    said = []
    if filled.new:
        said.append(f"new, not yet trained: {_shortened(list(filled.new))}")
    if filled.unused:
        said.append(f"not used, because the model has no such part: {_shortened(list(filled.unused))}")
    if said:
        warnings.warn(f"Weights from {tensors.where}: {'; '.join(said)}.", stacklevel=stacklevel)
