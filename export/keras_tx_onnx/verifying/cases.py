"""The examples of the comparison with Keras: batches, sizes of dynamic axes, ids and padding masks."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_tx import contract
from keras_tx.errors import ExportError
from keras_tx.runtime.axis_bounds import violated_bound
from keras_tx.runtime.example_inputs import MASKS, Use
from keras_tx.runtime.session import Session
from keras_tx_onnx.errors import Stateful, one_line
from keras_tx_onnx.reading import functional_graph
from keras_tx_onnx.reading.symbolic_backend import Call

# Rows, their masks where a model has masks, and the size of a dynamic axis beside the batch: strides and
# patches divide these. The last is for code that branches on short texts, where there is a dynamic axis.
GRID = ((1, ("all",), 64), (3, MASKS, 32), (2, ("right", "left"), 4))
STEP = 32  # by which several dynamic axes of one case differ
# Tried if Keras refuses a size of the grid: tables of positions are shorter, windows need more.
LENGTHS = (64, 32, 16, 8, 4, 2, 1, 96, 128, 224, 256)
# The first sizes of pictures; networks for pictures of any size require 32 to 75 pixels or more.
PICTURES = (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 512)
# Also compared if Keras accepts them, for layers that branch on sizes.
SHORTEST, LONGEST = 1, 900
COST = 10**10  # multiplications of the longest case, at most about: in large models it is shorter

Sizes = Mapping[str, int]  # of the dynamic axes beside the batch, by name
Masks = Sequence[str]  # the kind of mask of each row


class Case(NamedTuple):
    """Its name, what onnxruntime gets, what Keras gets, and what Keras makes of it.

    `run` says how onnxruntime comes to its outputs, where that is not one run of the graph.
    """

    name: str
    given: dict[str, np.ndarray]
    inputs: list[np.ndarray]
    expected: list[np.ndarray]
    run: Callable[[Session, dict[str, np.ndarray]], dict[str, np.ndarray]] = Session.run


class _Reached:
    """The inputs whose integers a value is made of."""

    def __init__(self, inputs: frozenset[int] = frozenset()):
        self.inputs = inputs


def graph_inputs(call: Call, kind: type) -> list[Any]:
    """What the call of a model inside a model gives to its inputs; a mask goes along with a value."""
    named = {name: x for name, x in call.kwargs.items() if name != "mask"}
    return [x for x in keras.tree.flatten((call.args, named)) if isinstance(x, kind)]


def uses_of(function: Any) -> list[Use]:
    """What each input of a graph is used for."""
    found: dict[int, list[Any]] = {index: [] for index in range(len(function.inputs))}

    def visit(call: Call) -> list[_Reached]:
        if functional_graph.is_function(call.operation) and not functional_graph.has_own_call(call.operation):
            return functional_graph.walk(
                functional_graph.function_of(call.operation), graph_inputs(call, _Reached), visit
            )
        given = [x for x in keras.tree.flatten((call.args, call.kwargs)) if isinstance(x, _Reached)]
        reached = frozenset().union(*(x.inputs for x in given))
        if isinstance(call.operation, keras.layers.Layer):
            tables = [
                x for x in functional_graph.parts(call.operation) if isinstance(x, keras.layers.Embedding)
            ]
            for index in reached:
                found[index] += tables
        integers = [keras.backend.is_int_dtype(tensor.dtype) for tensor in call.outputs]
        return [_Reached(reached if whole else frozenset()) for whole in integers]

    functional_graph.walk(function, [_Reached(frozenset([index])) for index in found], visit)
    return [
        Use(min(x.input_dim for x in tables), 0 if any(x.mask_zero for x in tables) else None)
        if tables
        else Use()
        for tables in found.values()
    ]


def cases_of(outside: Any, run: Any, parameters: int) -> list[Case]:
    """The cases of the grid, each at the nearest sizes that Keras accepts, and those of extreme sizes.

    Args:
        outside: the Interface.
        run: computes Keras's outputs from a list of inputs.
        parameters: the model's number of parameters.
    """
    cases: list[Case] = []
    used: list[Sizes] = []
    for index, (batch, masks, length) in enumerate(
        GRID if outside.axes and not outside.pictures else GRID[:2]
    ):
        choices = _choices(outside, length, index % 2 == 1, used)
        for rows in _rows(outside, batch, masks):
            within = [sizes for sizes in choices if _is_within(outside, rows, sizes)]
            if outside.bounds and not within:
                continue
            sizes, case = _case(outside, run, rows, within, len(used))
            used.append(sizes)
            cases += [case, *outside.further(case)]
    if not cases:
        raise ExportError(
            f"No size of the comparison is within the model's bounds ({'; '.join(outside.bounds)}). "
            "Change what its layers compare sizes with, or pass verify=False to export without comparing."
        )
    if not outside.axes:
        return cases
    further: list[Sizes] = [dict.fromkeys(outside.axes, length) for length in _next_to(outside.bounds)]
    if outside.sequences:
        longest = min(LONGEST, COST // max(parameters, 1))
        beyond = max(size for sizes in used for size in sizes.values())
        further.append(dict.fromkeys(outside.axes, SHORTEST))
        further += _largest(outside, longest, beyond)
    masks = ("all",) * (outside.batch or 1)
    for sizes in further:
        if sizes not in used and _is_within(outside, masks, sizes):
            used.append(sizes)
            result = _attempt(outside, run, masks, sizes, len(used))
            if isinstance(result, Case) and _is_finite(result):
                cases.append(result)
    return cases


def _is_within(outside: Any, masks: Masks, sizes: Sizes) -> bool:
    axes = {contract.BATCH_AXIS: len(masks), **sizes}
    return outside.permits(sizes) and violated_bound(outside.bounds, axes) is None


def _next_to(bounds: Sequence[str]) -> list[int]:
    """The sizes around the numbers in bounds."""
    numbers = {int(number) for bound in bounds for number in re.findall(r"\b\d+\b", bound)}
    return sorted({n + step for n in numbers for step in (-1, 0, 1) if 0 < n + step <= 2 * LONGEST})


def _rows(outside: Any, batch: int, masks: Masks) -> list[Masks]:
    """The masks of the rows of each batch, for all masks to be used."""
    if not outside.masked:
        return [("all",) * (outside.batch or batch)]
    if outside.batch is None:
        return [masks]
    starts = range(0, len(masks), outside.batch)
    return [[masks[(start + row) % len(masks)] for row in range(outside.batch)] for start in starts]


def _case(outside: Any, run: Any, masks: Masks, choices: Sequence[Sizes], seed: int) -> tuple[Sizes, Case]:
    """The first choice of sizes that Keras accepts, with finite outputs."""
    refused = []
    not_finite = None
    for sizes in choices:
        result = _attempt(outside, run, masks, sizes, seed)
        if isinstance(result, str):
            refused.append(f"{outside.case(sizes, masks)}; {result}")
        elif _is_finite(result):
            return sizes, result
        else:
            not_finite = not_finite or result
    if not_finite is not None:
        if "none" in masks:  # the mean of no token is not a number, in Keras too
            return _case(outside, run, ["all" if kind == "none" else kind for kind in masks], choices, seed)
        raise ExportError(
            f"Keras's own outputs are not finite in the case {not_finite.name!r}, so that nothing can be "
            "compared. Look at the weights, or pass verify=False to export without the comparison."
        )
    tried = f"{refused[0]}; {len(refused)} sizes were tried" if refused else f"{outside.axes} have no size"
    raise ExportError(
        f"Keras itself cannot run the model on random inputs ({tried}). "
        "Give axes that cannot have any size a fixed one in keras.Input, or pass verify=False to export "
        "without comparing."
    )


def _attempt(outside: Any, run: Any, masks: Masks, sizes: Sizes, seed: int) -> Case | str:
    """The case of these sizes, or why Keras refuses it."""
    feed, inputs = outside.example(sizes, masks, np.random.default_rng(seed))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You are using a softmax over axis")  # which has size 1
            expected = run(inputs)
    except Stateful:
        raise
    except Exception as error:  # whatever Keras and its backend raise at sizes that they refuse
        return one_line(error)
    return Case(outside.case(sizes, masks), feed, inputs, expected, outside.run)


def _is_finite(case: Case) -> bool:
    return all(np.isfinite(y).all() for y in case.expected)


def _choices(outside: Any, wanted: int, descending: bool, used: Sequence[Sizes]) -> list[Sizes]:
    """Sizes to try, best first: different ones around the wanted, the wanted for all axes, shorter, longer.

    Sizes of another case come last.
    """
    if not outside.axes:
        return [{}]

    def different(wanted: int) -> Sizes:
        several = [wanted + min(wanted, STEP) * index for index in range(len(outside.axes))]
        return dict(zip(outside.axes, several[::-1] if descending else several, strict=True))

    def equal(length: int) -> Sizes:
        return dict.fromkeys(outside.axes, length)

    lengths = sorted(LENGTHS, key=lambda n: (n > wanted, abs(n - wanted)))
    tried = [different(wanted), equal(wanted), *map(equal, [*lengths, *_next_to(outside.bounds)])]
    if outside.pictures:  # different heights and widths first, from small to large
        tried = [*map(different, PICTURES), *map(equal, PICTURES), *tried]
    choices: list[Sizes] = []
    for sizes in tried:
        if sizes not in choices and outside.permits(sizes):
            choices.append(sizes)
    return sorted(choices, key=lambda sizes: sizes in used)


def _largest(outside: Any, longest: int, beyond: int) -> Sequence[Sizes]:
    """The largest size that all axes may have, where it is beyond those of other cases; else nothing."""
    sizes = (dict.fromkeys(outside.axes, length) for length in range(longest, beyond, -1))
    masks = ("all",) * (outside.batch or 1)
    return next(([one] for one in sizes if _is_within(outside, masks, one)), [])
