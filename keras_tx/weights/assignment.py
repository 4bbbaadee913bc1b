"""Assigns the tensors of a checkpoint to the variables of a model."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable
from typing import Any

import keras
import ml_dtypes
import numpy as np

from keras_tx.errors import ConfigError, user_stacklevel
from keras_tx.progress_bar import ProgressBar
from keras_tx.weights.tensor_map import BODY, HEAD, Entry, Plan
from keras_tx.weights.tensor_source import Tensors
from keras_tx.weights.weight_values import array_of, check_values, merged_weights
from keras_tx.weights.weightless import assign

SHOWN = 12  # the number of names of a long list in a message
FINITE = "Download or copy the weights again, or load weights from before the training diverged."
LARGE = 2**30  # bytes; smaller files load in a few seconds and show no progress bar
FLOATS = [np.dtype(x) for x in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]


@dataclasses.dataclass(frozen=True)
class Filled:
    """The variables without a tensor in the checkpoint, and the tensors without a variable in the model."""

    new: tuple[str, ...]  # paths of variables that keep their initial values
    unused: tuple[str, ...]  # tensors of parts that the model does not have
    resized: tuple[str, ...]  # paths of variables whose tensors were resized
    new_parts: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Match:
    """The entry of each tensor that is loaded, by its name in the checkpoint, and the rest of both sides."""

    entries: dict[str, Entry]
    to_fit: frozenset[str]  # tensors that `Entry.fit` resizes
    filled: Filled
    head_lacks: tuple[str, ...]  # why the head is not loaded from the checkpoint


def fill(model: keras.Model, plan: Plan, tensors: Tensors) -> Filled:
    """Assigns the tensors of a checkpoint to the variables of a model.

    Names, shapes and dtypes are checked before any assignment; values (NaN, infinity) while they are read.

    Args:
        model: the model.
        plan: the map of tensors to variables.
        tensors: the tensors of the checkpoint.

    Returns:
        The variables without a tensor and the tensors without a variable.

    Raises:
        ConfigError: tensors do not fit the model; the message lists them.
    """
    match = match_tensors(model, plan, tensors)
    variables = variables_of(model, plan)
    # `fit` may raise, so it runs before anything is assigned.
    fitted = {
        name: entry.fit(tensors.read(name), _shape(entry, variables))
        for name, entry in match.entries.items()
        if name in match.to_fit and entry.fit is not None
    }
    with ProgressBar(len(match.entries), "tensors", shown=tensors.nbytes >= LARGE) as bar:
        # The largest first: its copies are in memory while the others are not.
        for name, entry in sorted(match.entries.items(), key=lambda x: -math.prod(tensors.shapes[x[0]])):
            values = fitted[name] if name in fitted else tensors.read(name)
            _assign(f"{tensors.where}: tensor {name!r}", values, entry, variables)
            del values
            tensors.release()
            bar.advance()
    _warn(match.filled, tensors)
    return match.filled


def _assign(name: str, values: np.ndarray, entry: Entry, variables: dict[str, Any]) -> None:
    targets = [variables[path] for path in entry.paths]
    parts = entry.form.to_variables(values, [tuple(variable.shape) for variable in targets])
    for variable, value in zip(targets, parts, strict=True):
        # Always a copy: a backend may keep the array, and training must not change the mapped file.
        with np.errstate(over="ignore"):
            value = np.array(value, dtype="float32", order="C")
            cast = value.astype("float16") if variable.dtype == "float16" else value
        check_values(cast, f"{name}, as {variable.dtype},", FINITE)
        assign(variable, value)


def match_tensors(model: keras.Model, plan: Plan, tensors: Tensors) -> Match:
    """Matches the tensors of a checkpoint with the variables of a model, which need no values.

    Raises:
        ConfigError: names, shapes or dtypes do not fit; the message lists them.
    """
    comparison = _Comparison(model, plan, tensors)
    comparison.check()
    return comparison.match()


class _Comparison:
    """The entries of a plan and the tensors of a checkpoint, both by canonical name."""

    def __init__(self, model: keras.Model, plan: Plan, tensors: Tensors) -> None:
        self.plan, self.tensors, self.model = plan, tensors, model
        variables = variables_of(model, plan)
        self.names = _canonical_names(plan, tensors)
        self.stored = {name: tuple(tensors.shapes[self.names[name]]) for name in self.names}
        self.entries = {plan.canonical(entry.name): entry for entry in plan.entries}
        self.shapes = {name: _shape(entry, variables) for name, entry in self.entries.items()}
        optional = {entry.part for entry in plan.entries} - {BODY}
        self.new_parts = frozenset(part for part in optional if self.is_new(part))
        self.loaded = {n: entry for n, entry in self.entries.items() if entry.part not in self.new_parts}
        self.copies, self.unused, self.unexpected = self._not_loaded()

    def _not_loaded(self) -> tuple[list[str], list[str], list[str]]:
        """Returns the copies, the tensors of other parts, and the unexpected tensors."""
        rest = [n for n in self.names if n not in self.loaded and not n.endswith(self.plan.computed)]
        copies = [name for name in rest if self.plan.copies.get(name) in self.names]
        rest = [name for name in rest if name not in copies]
        unused = [name for name in rest if name in self.entries or name.startswith(self.plan.others)]
        return copies, unused, [name for name in rest if name not in unused]

    def is_new(self, part: str) -> bool:
        """Whether the checkpoint lacks a part. A head with other layers or sizes counts as another part."""
        names = self.names_of(part)
        if part in self.plan.new or not any(name in self.names for name in names):
            return True
        return part == HEAD and not all(name in self.names and self.fits(name) for name in names)

    def names_of(self, part: str) -> list[str]:
        return [name for name, entry in self.entries.items() if entry.part == part]

    def fits(self, name: str) -> bool:
        return self.entries[name].fit is not None or self.stored[name] == self.shapes[name]

    def check(self) -> None:
        """Raises one ConfigError with all problems."""
        unexpected = [
            f"not expected: {self.names[name]} {_size(self.stored[name])}" for name in self.unexpected
        ]
        kinds = (self.missing(self.loaded), unexpected, self.misshapen(self.loaded), self.integers())
        # Each kind is shortened separately, so that a long list does not hide other kinds.
        problems = [_shortened(problems, "\n  ") for problems in kinds if problems]
        if problems:
            raise ConfigError(
                f"The weights of {self.tensors.where} do not fit model {self.model.name!r}:\n  "
                + "\n  ".join(problems)
                + "\nCreate the model from the checkpoint's own config, with keras_tx.from_checkpoint."
            )
        _check_copies(self.plan, self.tensors, self.names, self.copies)

    def missing(self, names: Iterable[str]) -> list[str]:
        return [
            f"missing: {self.entries[name].name} {_size(self.shapes[name])} for "
            f"{', '.join(self.entries[name].paths)}"
            for name in names
            if name not in self.names
        ]

    def misshapen(self, names: Iterable[str]) -> list[str]:
        return [
            f"shape: {self.names[name]} is {_size(self.stored[name])}, but {', '.join(paths)} of the model "
            f"need{'s' * (len(paths) == 1)} {_size(self.shapes[name])}"
            for name in names
            if name in self.names and not self.fits(name) and (paths := self.entries[name].paths)
        ]

    def integers(self) -> list[str]:
        dtypes = self.tensors.dtypes
        return [
            f"dtype: {tensor} is {dtypes[tensor]}, expected floats"
            for tensor in (self.names[name] for name in (*self.loaded, *self.copies) if name in self.names)
            if dtypes.get(tensor, FLOATS[0]) not in FLOATS
        ]

    def match(self) -> Match:
        to_fit = {n for n, entry in self.loaded.items() if entry.always or self.stored[n] != self.shapes[n]}
        new = [entry for entry in self.plan.entries if entry.part in self.new_parts]
        head = self.names_of(HEAD) if HEAD in self.new_parts else []
        return Match(
            entries={self.names[name]: entry for name, entry in self.loaded.items()},
            to_fit=frozenset(self.names[name] for name in to_fit),
            filled=Filled(
                new=tuple(path for entry in new for path in entry.paths),
                unused=tuple(self.names[name] for name in self.unused),
                resized=tuple(entry.paths[0] for name, entry in self.loaded.items() if name in to_fit),
                new_parts=self.new_parts,
            ),
            head_lacks=(*self.missing(head), *self.misshapen(head)),
        )


def model_tensors(model: keras.Model, plan: Plan) -> Iterable[tuple[Entry, np.ndarray]]:
    """Yields the tensors of a checkpoint, computed from the model's variables."""
    variables = variables_of(model, plan)
    for entry in plan.entries:
        values = [array_of(variables[path]) for path in entry.paths]
        yield entry, np.ascontiguousarray(entry.form.to_tensor(values))


def variables_of(model: keras.Model, plan: Plan) -> dict[str, Any]:
    """Returns the model's weights by path.

    Raises:
        ConfigError: the plan has no entry for a weight.
    """
    variables = merged_weights(model)
    named = {path for entry in plan.entries for path in entry.paths}
    extra = sorted(set(variables) - named)
    if extra:
        raise ConfigError(
            f"Model {model.name!r} has the weights {_shortened(extra)}, which checkpoints do not have. Save "
            "the model with model.save, or without model.quantize and custom layers."
        )
    assert named == set(variables), sorted(named ^ set(variables))
    return variables


def _canonical_names(plan: Plan, tensors: Tensors) -> dict[str, str]:
    names: dict[str, str] = {}
    for name in tensors.shapes:
        canonical = plan.canonical(name)
        if canonical in names:
            raise ConfigError(
                f"{tensors.where} has {names[canonical]!r} and {name!r}, which are two names of one tensor. "
                "Remove one of them."
            )
        names[canonical] = name
    return names


def _check_copies(plan: Plan, tensors: Tensors, names: dict[str, str], copies: list[str]) -> None:
    for name in copies:
        tensor, other = names[name], names[plan.copies[name]]
        if not np.array_equal(tensors.read(tensor), tensors.read(other), equal_nan=True):
            raise ConfigError(
                f"{tensors.where}: {tensor} differs from {other}, but this model ties them. Set "
                "tie_word_embeddings to false in the checkpoint's config, or remove one of the tensors."
            )


def _shape(entry: Entry, variables: dict[str, Any]) -> tuple[int, ...]:
    return entry.form.tensor_shape([tuple(variables[path].shape) for path in entry.paths])


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a number"


def _shortened(items: list[str], separator: str = ", ") -> str:
    more = [f"... and {len(items) - SHOWN} more"] if len(items) > SHOWN else []
    return separator.join(items[:SHOWN] + more)


def _warn(filled: Filled, tensors: Tensors) -> None:
    parts = []
    if filled.new:
        parts.append(f"newly initialized: {_shortened(list(filled.new))}")
    if filled.unused:
        parts.append(f"unused: {_shortened(list(filled.unused))}")
    if parts:
        remedy = " Train the new weights." if filled.new else ""
        warnings.warn(
            f"Weights from {tensors.where}: {'; '.join(parts)}.{remedy}", stacklevel=user_stacklevel()
        )
