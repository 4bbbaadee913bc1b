"""The cases of the verification: inputs of all sizes and masks, and Keras's outputs for them."""

from __future__ import annotations

import dataclasses
import itertools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_tx import contract
from keras_tx.errors import ExportError
from keras_tx.runtime.axis_bounds import violated_bound
from keras_tx.runtime.example_inputs import MASKS
from keras_tx_onnx.errors import Stateful, one_line
from keras_tx_onnx.interfaces.base import Feed, Interface, Masks, OtherRun, Run, Sizes
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.keras_patches import in_float32

# Batch size, the masks of its rows if the model has masks, and the size of the dynamic axes: strides and
# patches divide these sizes. The last row is for code that branches on short sequences.
GRID = ((1, ("all",), 64), (3, MASKS, 32), (2, ("right", "left"), 4))
# Of a decoder with a cache, whose logits are large.
DECODER_GRID = ((1, ("all",), 64), (6, MASKS, 16), (2, ("right", "left"), 4))
STEP = 32  # between the sizes of several dynamic axes in one case
# Sizes to try if Keras refuses one of the grid: tables of positions are shorter, windows need more.
LENGTHS = (64, 32, 16, 8, 4, 2, 1, 96, 128, 224, 256)
# The first sizes of images; networks for images of any size require 32 to 75 pixels or more.
PICTURES = (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 512)
# Also compared if Keras accepts them, for layers that branch on sizes.
SHORTEST, LONGEST = 1, 900
COST = 10**10  # approximate limit of multiplications in the longest case
# The largest distance in the masks of a decoder with a cache, such as a window, that a case goes beyond.
DISTANT = 1024

RunKeras = Callable[[list[np.ndarray]], list[np.ndarray]]  # from inputs to the expected outputs of the graph


class Case(NamedTuple):
    """Inputs of onnxruntime and of Keras, and the outputs that the graph must return."""

    name: str
    feed: Feed
    inputs: list[np.ndarray]
    expected: list[np.ndarray]
    run: Run  # computes the outputs of the graph
    last: int | None = None  # how many of the last tokens are compared; None for all

    def compared(self, outputs: list[np.ndarray]) -> list[np.ndarray]:
        """The part of Keras's outputs that is compared."""
        return outputs if self.last is None else [y[:, -self.last :].copy() for y in outputs]

    @property
    def is_finite(self) -> bool:
        return all(np.isfinite(y).all() for y in self.expected)


def cases_for(interface: Interface, bounds: Sequence[str]) -> list[Case]:
    """The cases of the verification, with Keras's outputs."""
    return cases_of(interface, expected_of(interface), interface.model.count_params(), bounds)


def cases_of(interface: Interface, run: RunKeras, parameters: int, bounds: Sequence[str] = ()) -> list[Case]:
    """The cases of the grid, each at the nearest sizes that Keras accepts, and those of extreme sizes.

    Args:
        interface: the interface of the model.
        run: computes the expected outputs for a list of the model's inputs.
        parameters: the model's number of parameters.
        bounds: of the dynamic axes, within which the graph is correct.
    """
    needed = interface.farthest + STEP if interface.farthest and not interface.context_length else 0
    longest = min(LONGEST, max(COST // max(parameters, 1), needed))
    builder = _CaseBuilder(interface, run, tuple(bounds))
    builder.add_grid(longest)
    builder.add_distant()
    builder.add_extremes(longest)
    return builder.cases


@dataclasses.dataclass
class _CaseBuilder:
    interface: Interface
    run: RunKeras
    bounds: tuple[str, ...]
    cases: list[Case] = dataclasses.field(default_factory=list)
    used: list[Sizes] = dataclasses.field(default_factory=list)  # by a case or an attempt

    def add_grid(self, longest: int) -> None:
        """Adds the cases of the grid; the first has the longest size, unless that is twice as long."""
        varies = self.interface.axes and not self.interface.pictures
        grid = DECODER_GRID if self.interface.context_length else GRID
        for index, (batch, masks, length) in enumerate(grid if varies else grid[:2]):
            if index == 0 and self.interface.sequences and len(self.interface.axes) == 1:
                length = longest if length < longest < 2 * length else length
            choices = self.choices(length, descending=index % 2 == 1)
            for rows in self.rows(batch, masks):
                within = [sizes for sizes in choices if self.is_within(rows, sizes)]
                if within or not self.bounds:
                    self.add_case(rows, within, index)
        if not self.cases:
            raise ExportError(
                f"No size of the verification is within the bounds of the model ({'; '.join(self.bounds)}). "
                "Change the sizes that its layers compare with, or pass verify=False."
            )

    def add_case(self, masks: Masks, choices: Sequence[Sizes], batch: int) -> None:
        """Adds the case of the first sizes that Keras accepts with finite outputs, and its other runs."""
        seed = len(self.used)
        refusals: list[str] = []
        infinite: list[Case] = []
        for sizes in choices:
            case = self.attempt(masks, sizes, seed)
            if isinstance(case, Case) and case.is_finite:
                self.used.append(sizes)
                self.cases.append(case)
                self.add_runs(case, self.interface.other_runs(case.feed, batch))
                return
            if isinstance(case, Case):
                infinite.append(case)
            else:
                refusals.append(f"{_name(sizes, masks)}; {case}")
        if infinite and "none" in masks:  # in Keras, the mean of no token is NaN
            self.add_case(["all" if kind == "none" else kind for kind in masks], choices, batch)
        elif infinite:
            raise ExportError(
                f"Keras's own outputs are not finite in the case {infinite[0].name!r}. Check the weights, or "
                "pass verify=False."
            )
        else:
            axes = ", ".join(self.interface.axes)
            tried = f"{refusals[0]}; {len(refusals)} sizes were tried" if refusals else f"no size of {axes}"
            raise ExportError(
                f"Keras cannot run the model on random inputs ({tried}). Pass keras.Input a fixed size for "
                "axes that do not support every size, or pass verify=False."
            )

    def add_runs(self, case: Case, runs: Mapping[str, OtherRun]) -> None:
        """Adds cases with the inputs of another case, which the graph runs in other ways."""
        for name, (run, last) in runs.items():
            other = case._replace(name=f"{case.name}, {name}", run=run, last=last)
            self.cases.append(other._replace(expected=other.compared(case.expected)))

    def attempt(self, masks: Masks, sizes: Sizes, seed: int) -> Case | str:
        """The case of these sizes, or the error of Keras in one line."""
        sizes = {**sizes, **self.interface.sizes}
        feed, inputs = self.interface.example(sizes, masks, np.random.default_rng(seed))
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "You are using a softmax over axis")  # of size 1
                expected = self.run(inputs)
        except Stateful:
            raise
        except Exception as error:  # Keras and its backends raise errors of any class
            return one_line(error)
        return Case(_name(sizes, masks), feed, inputs, expected, self.interface.run)

    def add_distant(self) -> None:
        """Adds a case of a decoder with a cache whose tokens are farther apart than its masks distinguish.

        Only the last logits are kept: those of all tokens would need more memory than the model.
        """
        interface = self.interface
        length = min(interface.farthest + STEP, interface.context_length)
        longest = max((size for sizes in self.used for size in sizes.values()), default=length)
        sizes = dict.fromkeys(interface.axes, length)
        if not longest < length > interface.farthest or not 0 < interface.farthest <= DISTANT:
            return
        if self.is_extreme(sizes):
            masks = ("holes",) * len(self.full_masks) if interface.masked else self.full_masks
            case = self.attempt(masks, sizes, len(self.used))
            if isinstance(case, Case) and case.is_finite:
                self.used.append(sizes)
                self.add_runs(case, interface.last_runs(case.feed, STEP))

    def add_extremes(self, longest: int) -> None:
        """Adds cases at the bounds and, for sequences, of the smallest and the largest size."""
        axes = self.interface.axes
        if not axes:
            return
        extremes = _around(self.bounds)
        if self.interface.sequences:
            largest = max(size for sizes in self.used for size in sizes.values())
            longer = (n for n in range(longest, largest, -1) if self.is_extreme(dict.fromkeys(axes, n)))
            extremes += [SHORTEST, *itertools.islice(longer, 1)]
        for sizes in [dict.fromkeys(axes, length) for length in extremes]:
            if sizes not in self.used and self.is_extreme(sizes):
                self.used.append(sizes)
                case = self.attempt(self.full_masks, sizes, len(self.used))
                if isinstance(case, Case) and case.is_finite:
                    self.cases.append(case)

    @property
    def full_masks(self) -> Masks:
        return ("all",) * (self.interface.batch or 1)

    def is_extreme(self, sizes: Sizes) -> bool:
        return self.is_within(self.full_masks, sizes)

    def is_within(self, masks: Masks, sizes: Sizes) -> bool:
        axes = {contract.BATCH_AXIS: len(masks), **sizes}
        return self.interface.permits(sizes) and violated_bound(self.bounds, axes) is None

    def rows(self, batch: int, masks: Masks) -> list[Masks]:
        """The masks of the rows of each batch; several batches if a fixed batch is smaller."""
        fixed = self.interface.batch
        if not self.interface.masked:
            return [("all",) * (fixed or batch)]
        if fixed is None:
            return [masks]
        starts = range(0, len(masks), fixed)
        return [[masks[(start + row) % len(masks)] for row in range(fixed)] for start in starts]

    def choices(self, size: int, descending: bool) -> list[Sizes]:
        """Sizes to try, best first: different ones near `size`, `size` for all axes, smaller, larger.

        Sizes of earlier cases come last.
        """
        axes = self.interface.axes
        if not axes:
            return [{}]

        def different(size: int) -> Sizes:
            sizes = [size + min(size, STEP) * index for index in range(len(axes))]
            return dict(zip(axes, sizes[::-1] if descending else sizes, strict=True))

        def equal(size: int) -> Sizes:
            return dict.fromkeys(axes, size)

        lengths = sorted(LENGTHS, key=lambda n: (n > size, abs(n - size)))
        tried = [different(size), equal(size), *map(equal, [*lengths, *_around(self.bounds)])]
        if self.interface.pictures:  # different heights and widths first
            tried = [*map(different, PICTURES), *map(equal, PICTURES), *tried]
        permitted = [sizes for sizes in tried if self.interface.permits(sizes)]
        distinct = [sizes for index, sizes in enumerate(permitted) if sizes not in permitted[:index]]
        return sorted(distinct, key=lambda sizes: sizes in self.used)


def _name(sizes: Sizes, masks: Masks) -> str:
    """The name of a case in the report."""
    sizes = {axis: size for axis, size in sizes.items() if axis != contract.BATCH_AXIS}
    name = f"batch {len(masks)}"
    if len(set(sizes.values())) == 1:
        name += f", length {next(iter(sizes.values()))}"
    else:
        name += "".join(f", {axis} {size}" for axis, size in sizes.items())
    kinds = list(dict.fromkeys(masks))
    if kinds == ["all"]:
        return name
    return f"{name}, {'every mask' if set(kinds) == set(MASKS) else 'masks ' + ' '.join(kinds)}"


def _around(bounds: Sequence[str]) -> list[int]:
    """The sizes at the numbers in bounds, and one more and less."""
    numbers = {int(number) for bound in bounds for number in re.findall(r"\b\d+\b", bound)}
    return sorted({n + step for n in numbers for step in (-1, 0, 1) if 0 < n + step <= 2 * LONGEST})


def expected_of(interface: Interface) -> RunKeras:
    """Returns a function from the model's inputs to the outputs that the graph must return."""

    def expected(inputs: list[np.ndarray]) -> list[np.ndarray]:
        if interface.axes:
            functional_graph.check_sizes(interface.model, [x.shape for x in inputs])
        return interface.expected(run_keras(interface.model, inputs), inputs)

    return expected


def run_keras(model: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """The model's outputs at inference, flat, in float32 on the CPU.

    Half precision would hide errors of the graph, and a GPU rounds the factors of a product to TF32. The
    model's variables do not change. Raises Stateful if the outputs depend on a variable that the call
    changes.
    """
    outputs, changed = _call(model, inputs, [])
    for factor in (2.0, -3.0) if changed else ():
        perturbed = [(variable, _perturbed(variable, factor)) for variable in changed]
        others, _ = _call(model, inputs, perturbed)
        if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(outputs, others, strict=True)):
            names = ", ".join(repr(variable.path) for variable in changed)
            raise Stateful(
                f"Model {model.name!r} changes {names} when it is called, and its outputs depend on it. Make "
                "it an input and an output of the model, because a graph keeps no state between calls."
            )
    return outputs


def _call(
    model: Any, inputs: list[np.ndarray], values: list[tuple[Any, Any]]
) -> tuple[list[np.ndarray], list[Any]]:
    """The outputs of a model with these values of its variables, and the variables that it assigns to."""
    packed = keras.tree.pack_sequence_as(functional_graph.function_of(model).input, inputs)
    with keras.device("cpu"), in_float32(), functional_graph.unchanged(values) as is_changed:
        outputs = [keras.ops.convert_to_numpy(y) for y in keras.tree.flatten(model(packed, training=False))]
        return outputs, [variable for variable in model.variables if is_changed(variable)]


def _perturbed(variable: Any, factor: float) -> Any:
    value = keras.ops.convert_to_numpy(variable)
    return np.logical_not(value) if value.dtype == bool else (value * factor + 1).astype(value.dtype)
