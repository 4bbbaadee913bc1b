"""What both sides are compared on: batches, lengths, integers that an Embedding takes, and padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_tx.errors import ExportError
from keras_tx.runtime.session import Session
from keras_tx_onnx import graph
from keras_tx_onnx.errors import one_line

# Batch, and the size of other dynamic axes: strides and patches divide these. The last is for code that takes
# another way when a text is short, and only where an axis beside the batch is dynamic.
GRID = ((1, 32), (3, 64), (2, 4))
# Tried where a model does not take the length of the grid: tables of positions end, windows need more.
LENGTHS = (64, 32, 16, 8, 4, 2, 1, 96, 128, 224, 256)
SEED = 0
KEPT = (1.0, 0.75, 0.5)  # of each row of a padded batch, in turn; the rest is padding, on the right


class Case(NamedTuple):
    """Its name, what onnxruntime gets, what Keras gets, and what Keras makes of it.

    `run` says how onnxruntime comes to its outputs, where that is not one run of the graph.
    """

    name: str
    given: dict[str, np.ndarray]
    inputs: list[np.ndarray]
    expected: list[np.ndarray]
    run: Callable[[Session, dict[str, np.ndarray]], dict[str, np.ndarray]] = Session.run


@dataclasses.dataclass(frozen=True)
class Use:
    """What integers are used for: the smallest vocabulary that they look up, and whether 0 is padding."""

    vocabulary: int = 2
    zero_is_padding: bool = False


def is_mask(tensor: keras.KerasTensor) -> bool:
    if "mask" in tensor.name.lower():
        return True
    return tensor.dtype == "bool" and len(tensor.shape) > 1 and tensor.shape[-1] != 1


def draw(
    tensor: keras.KerasTensor, use: Use, batch: int, length: int, random: np.random.Generator
) -> np.ndarray:
    """An input; in a batch of more than one, rows are padded, by equal shares in all inputs."""
    shape = [tensor.shape[0] or batch, *(length if n is None else n for n in tensor.shape[1:])]
    kept = kept_of(shape, padded=batch > 1)
    if is_mask(tensor):
        return kept.astype(_numpy_dtype(tensor.dtype))
    if tensor.dtype == "bool":
        return random.random(shape) < 0.7
    if keras.backend.is_float_dtype(tensor.dtype):
        drawn = random.standard_normal(shape, "float32")
        # Numbers that half precision has as well, where Keras rounds its inputs to it and the file does not.
        return np.round(drawn * 32) / 32 if tensor.dtype in ("float16", "bfloat16") else drawn
    if use.zero_is_padding:
        return random.integers(min(1, use.vocabulary - 1), use.vocabulary, shape, "int64") * kept
    return random.integers(0, use.vocabulary, shape, "int64")


def kept_of(shape: list[int], padded: bool) -> np.ndarray:
    """True along the last axis up to where a row ends."""
    rows, size = shape[0], shape[-1]
    if not padded or len(shape) == 1:
        return np.ones(shape, bool)
    ends = [max(1, round(size * KEPT[row % len(KEPT)])) for row in range(rows)]
    row_of = np.reshape(ends, (rows,) + (1,) * (len(shape) - 1))
    return np.broadcast_to(np.arange(size) < row_of, shape)


def _numpy_dtype(dtype: str) -> str:
    if dtype == "bool":
        return "bool"
    return "float32" if keras.backend.is_float_dtype(dtype) else "int64"


class _Reached:
    """The inputs whose integers a value is made of."""

    def __init__(self, inputs: frozenset[int] = frozenset()):
        self.inputs = inputs


def graph_inputs(call: graph.Call, kind: type) -> list[Any]:
    """What the call of a model inside a model gives to its inputs; a mask goes along with a value."""
    named = {name: x for name, x in call.kwargs.items() if name != "mask"}
    return [x for x in keras.tree.flatten((call.args, named)) if isinstance(x, kind)]


def uses_of(function: Any) -> list[Use]:
    """What each input of a graph is used for."""
    found: dict[int, list[Any]] = {index: [] for index in range(len(function.inputs))}

    def visit(call: graph.Call) -> list[_Reached]:
        if graph.is_function(call.operation) and not graph.has_own_call(call.operation):
            return graph.walk(graph.function_of(call.operation), graph_inputs(call, _Reached), visit)
        given = [x for x in keras.tree.flatten((call.args, call.kwargs)) if isinstance(x, _Reached)]
        reached = frozenset().union(*(x.inputs for x in given))
        if isinstance(call.operation, keras.layers.Layer):
            tables = [x for x in graph.parts(call.operation) if isinstance(x, keras.layers.Embedding)]
            for index in reached:
                found[index] += tables
        integers = [keras.backend.is_int_dtype(tensor.dtype) for tensor in call.outputs]
        return [_Reached(reached if whole else frozenset()) for whole in integers]

    graph.walk(function, [_Reached(frozenset([index])) for index in found], visit)
    return [
        Use(min(x.input_dim for x in tables), any(x.mask_zero for x in tables)) if tables else Use()
        for tables in found.values()
    ]


def cases_of(outside: Any, run: Any) -> list[Case]:
    """A case for each row of the grid, at the nearest length that Keras itself takes.

    Args:
        outside: the Interface.
        run: what Keras makes of a list of inputs.
    """
    found: dict[int, Case] = {}
    cases = []
    for batch, wanted in GRID if outside.dynamic else GRID[:2]:
        length, case = _case(outside, run, batch, wanted, set(found))
        found[length] = case
        cases += [case, *outside.further(case)]
    return cases


def _case(outside: Any, run: Any, batch: int, wanted: int, used: set[int]) -> tuple[int, Case]:
    refused = []
    not_finite = None
    for length in _lengths(wanted, used) if outside.dynamic else [wanted]:
        name = outside.case(batch, length)
        given, inputs = outside.example(batch, length, np.random.default_rng(SEED))
        try:
            expected = run(inputs)
        except Exception as error:  # whatever Keras and its backend raise at a length that they do not take
            refused.append((name, one_line(error)))
            continue
        case = Case(name, given, inputs, expected, outside.run)
        if all(np.isfinite(y).all() for y in expected):
            return length, case
        not_finite = not_finite or (length, case)
    if not_finite is not None:
        raise ExportError(
            f"Keras's own outputs are not finite in the case {not_finite[1].name!r}, so that nothing can be "
            "compared. Look at the weights, or pass verify=False to export without the comparison."
        )
    tried = ", ".join(name for name, _ in refused)
    raise ExportError(
        f"Keras itself cannot run the model on random inputs ({tried}; {refused[0][1]}). Give axes that "
        "cannot have any size a fixed one in keras.Input, or pass verify=False to export without comparing."
    )


def _lengths(wanted: int, used: set[int]) -> Iterator[int]:
    """The wanted length, shorter ones, longer ones; those that another case has already last."""
    order = sorted(LENGTHS, key=lambda n: (n > wanted, abs(n - wanted)))
    yield from sorted(order, key=lambda n: n in used)
