"""What products are given, and how far quantized ones are from them: measured inside the fp32 graph.

Each quantized product stands beside its original in one graph and is given the same numbers. So an error is
that of one product alone, and can be held against what rounding to its steps must cost.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx.errors import ExportError
from keras_tx.runtime.session import Session
from keras_tx_onnx import tolerances
from keras_tx_onnx.graph.editor import Rewriter
from keras_tx_onnx.quantizing import products
from keras_tx_onnx.quantizing.calibration_inputs import Feed
from keras_tx_onnx.quantizing.int8 import Range
from keras_tx_onnx.quantizing.recipes import Recipe

FLOAT = ir.DataType.FLOAT


@dataclasses.dataclass(frozen=True)
class Error:
    """Of one product or lookup: what rounding cost, and what it must cost, in units of its result."""

    layer: str
    measured: float
    expected: float


def ranges(path: Path, keep: Sequence[str], batches: Iterable[Feed]) -> dict[str, Range]:
    """The smallest and largest number that each product of a graph is given, over all batches."""
    model = ir.load(path)
    plan = products.plan(model.graph, keep)
    rewriter = Rewriter(model.graph)
    values = list(dict.fromkeys(product.x for product in plan.products))
    asked = [_reduced(rewriter, op, x) for x in values for op in ("ReduceMin", "ReduceMax")]
    found: dict[str, Range] = {}
    with _Probe(model, asked) as probe:
        for batch in batches:
            got = probe.run(batch)
            for index, x in enumerate(values):
                low, high = float(got[2 * index]), float(got[2 * index + 1])
                if not np.isfinite([low, high]).all():
                    raise ExportError(
                        f"The fp32 graph computes no finite numbers for a batch, in {x.name!r}."
                    )
                before = found.get(str(x.name), Range(low, high))
                found[str(x.name)] = Range(min(low, before.low), max(high, before.high))
    return found


def largest(path: Path, batch: Feed) -> dict[str, float]:
    """The largest magnitude of each floating-point value that a graph computes."""
    model = ir.load(path)
    rewriter = Rewriter(model.graph)
    values = [x for node in list(model.graph) for x in node.outputs if x.dtype == FLOAT]
    asked = [_reduced(rewriter, op, x) for x in values for op in ("ReduceMin", "ReduceMax")]
    with _Probe(model, asked) as probe:
        got = np.abs(np.reshape(probe.run(batch), (-1, 2))).max(axis=1)
    return {str(x.name): float(size) for x, size in zip(values, got, strict=True)}


def errors(path: Path, recipe: Recipe, keep: Sequence[str], batch: Feed) -> list[Error]:
    """The error of each product and lookup by itself, in the order of the graph."""
    model = ir.load(path)
    plan = products.plan(model.graph, keep)
    beside = _Beside(model.graph)
    recipe.apply(beside, plan)
    if not beside.pairs:
        return []
    asked: list[ir.Value] = []
    for old, new in beside.pairs.values():
        difference = beside.append("Sub", [new, old], [(FLOAT, old.shape)])
        asked += [_reduced(beside, "ReduceSumSquare", x) for x in (difference, old)]
    for product in plan.products:
        asked += [_reduced(beside, op, product.x) for op in ("ReduceMin", "ReduceMax", "ReduceSumSquare")]
        asked.append(_size(beside, product.x))
    asked += [_size(beside, old) for old, _ in beside.pairs.values()]
    with _Probe(model, asked) as probe:
        got = [float(x) for x in probe.run(batch)]
    count = len(beside.pairs)
    sums = dict(
        zip(beside.pairs, zip(got[: 2 * count : 2], got[1 : 2 * count : 2], strict=True), strict=True)
    )
    sizes = dict(zip(beside.pairs, got[len(got) - count :], strict=True))
    given = np.reshape(got[2 * count : len(got) - count], (len(plan.products), 4))
    found = []
    for lookup in plan.lookups:
        # Not the mean: which rows were looked up is chance.
        expected = np.sqrt(recipe.squared_steps(products.numbers(lookup.table).T).max() / 12)
        found.append(_error(lookup.layer, sums[lookup.node], sizes[lookup.node], expected))
    for product, (low, high, square, size) in zip(plan.products, given, strict=True):
        kernel = products.numbers(product.weight)
        kernel = kernel.T if product.turned else kernel
        inner, outer = kernel.shape
        mean_square = square / max(size, 1)
        rounded_weight = mean_square * inner * float(recipe.squared_steps(kernel).mean()) / 12
        step = recipe.input_step(low, high)
        rounded_input = step**2 / 12 * float(np.square(kernel, dtype="float64").sum()) / outer
        expected = np.sqrt(rounded_weight + rounded_input)
        found.append(_error(product.layer, sums[product.node], sizes[product.node], expected))
    return found


def check(errors: Iterable[Error], precision: str) -> None:
    """Raises where rounding cost more than it can: then a weight, a scale or an axis is wrong."""
    for error in errors:
        if not error.measured <= tolerances.ROUNDING * error.expected:
            raise ExportError(
                f"Layer {error.layer!r} is off by {error.measured:.1e} of its output's scale in {precision}, "
                f"where rounding costs about {error.expected:.1e} (tolerance {tolerances.ROUNDING:.0f} times "
                "that). This is a defect of keras-tx, or of this onnxruntime: please report it, and leave "
                f"the layer out with keep=[{error.layer!r}]."
            )


def worst(errors: Iterable[Error], count: int) -> list[Error]:
    """The layers that lose most, each once."""
    largest: dict[str, Error] = {}
    for error in sorted(errors, key=lambda error: -error.measured):
        largest.setdefault(error.layer, error)
    return list(largest.values())[:count]


def _error(layer: str, sums: tuple[float, float], size: float, expected: float) -> Error:
    wrong, whole = sums
    scale = max(np.sqrt(whole / max(size, 1)), 1e-12)
    return Error(layer, float(np.sqrt(wrong / max(size, 1)) / scale), float(expected / scale) + 1e-6)


class _Beside(Rewriter):
    """Leaves what is replaced where it is, and remembers what would have taken its place."""

    def __init__(self, graph: ir.Graph):
        super().__init__(graph)
        self.pairs: dict[ir.Node, tuple[ir.Value, ir.Value]] = {}

    def replace(self, node: ir.Node, value: ir.Value) -> None:
        self.pairs[node] = (node.outputs[0], value)


def _reduced(rewriter: Rewriter, op: str, x: ir.Value) -> ir.Value:
    return rewriter.append(op, [x], [(FLOAT, ())], keepdims=0)


def _size(rewriter: Rewriter, x: ir.Value) -> ir.Value:
    return rewriter.append("Size", [x], [(ir.DataType.INT64, ())])


class _Probe:
    """A graph that gives nothing but what is asked for, in a session of its own."""

    def __init__(self, model: ir.Model, asked: Sequence[ir.Value]):
        model.graph.outputs.clear()
        model.graph.outputs.extend(asked)
        self._names = [str(value.name) for value in asked]
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name, "probe.onnx")
        try:
            ir.save(model, path, external_data="probe.onnx_data")
            self._session = Session(path, provider="cpu")
        except BaseException:
            self._folder.cleanup()
            raise

    def run(self, batch: Mapping[str, np.ndarray]) -> list[Any]:
        got = self._session.run(batch)
        return [got[name] for name in self._names]

    def __enter__(self) -> _Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()
        self._folder.cleanup()
