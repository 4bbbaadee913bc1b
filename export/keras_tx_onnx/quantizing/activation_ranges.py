"""The ranges of products' inputs, and the errors of quantized products: measured inside the fp32 graph.

Each quantized product is added beside its original and reads the same input. So an error is that of one
product alone, and is compared with the error of rounding to its steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from keras_tx.errors import ExportError
from keras_tx_onnx import tolerances
from keras_tx_onnx.graph.editor import GraphEditor
from keras_tx_onnx.graph.first_call import load_first_call
from keras_tx_onnx.quantizing import products
from keras_tx_onnx.quantizing.calibration_inputs import Feed
from keras_tx_onnx.quantizing.int8 import Range
from keras_tx_onnx.quantizing.probe import Probe
from keras_tx_onnx.quantizing.recipes import Recipe

FLOAT = ir.DataType.FLOAT


@dataclasses.dataclass(frozen=True)
class Error:
    """The error of one product or lookup, relative to the scale of its result.

    Attributes:
        layer: its path.
        measured: the error on a batch.
        expected: the error of rounding alone.
    """

    layer: str
    measured: float
    expected: float


def ranges(path: Path, keep: Sequence[str], batches: Iterable[Feed]) -> dict[str, Range]:
    """The smallest and largest number of each product's input over all batches, by the input's name.

    Raises:
        ExportError: if the graph computes numbers that are not finite.
    """
    model = load_first_call(path)
    inputs = list(dict.fromkeys(product.x for product in products.plan(model.graph, keep).products))
    editor = GraphEditor(model.graph)
    results = [_reduced(editor, op, x) for x in inputs for op in ("ReduceMin", "ReduceMax")]
    ranges: dict[str, Range] = {}
    with Probe(model, results) as probe:
        for batch in batches:
            pairs = np.reshape(np.asarray(probe.run(batch), "float64"), (-1, 2))
            for x, (low, high) in zip(inputs, pairs, strict=True):
                if not np.isfinite([low, high]).all():
                    raise ExportError(
                        f"The fp32 graph computes NaN or infinity in {x.name!r} for a batch of calibration. "
                        "Remove that batch."
                    )
                before = ranges.get(str(x.name), Range(low, high))
                ranges[str(x.name)] = Range(min(float(low), before.low), max(float(high), before.high))
    return ranges


def largest(path: Path, batch: Feed) -> dict[str, float]:
    """The largest magnitude of each floating-point value that a graph computes."""
    model = load_first_call(path)
    editor = GraphEditor(model.graph)
    values = [x for node in list(model.graph) for x in node.outputs if x.dtype == FLOAT]
    results = [_reduced(editor, op, x) for x in values for op in ("ReduceMin", "ReduceMax")]
    with Probe(model, results) as probe:
        pairs = np.reshape(probe.run(batch), (-1, 2))
    # Of an empty value, the smallest number is above the largest.
    sizes = np.where(pairs[:, 0] > pairs[:, 1], 0, np.abs(pairs).max(axis=1))
    return {str(x.name): float(size) for x, size in zip(values, sizes, strict=True)}


def errors(path: Path, recipe: Recipe, keep: Sequence[str], batch: Feed) -> list[Error]:
    """The error of each product and lookup alone, in the order of the graph."""
    model = load_first_call(path)
    plan = products.plan(model.graph, keep)
    editor = _ReplacementRecorder(model.graph)
    recipe.apply(editor, plan)
    if not editor.replacements:
        return []
    sums = [_sums_of(editor, old, new) for old, new in editor.replacements.values()]
    inputs = [_statistics_of(editor, product.x) for product in plan.products]
    with Probe(model, [value for group in (*sums, *inputs) for value in group]) as probe:
        numbers = iter([float(x) for x in probe.run(batch)])
    measured = {
        node: [next(numbers) for _ in group] for node, group in zip(editor.replacements, sums, strict=True)
    }
    errors = [_error_of_lookup(lookup, recipe, measured[lookup.node]) for lookup in plan.lookups]
    for product, group in zip(plan.products, inputs, strict=True):
        errors.append(
            _error_of_product(product, recipe, measured[product.node], [next(numbers) for _ in group])
        )
    return errors


def _error_of_lookup(lookup: products.Lookup, recipe: Recipe, measured: Sequence[float]) -> Error:
    # The largest step, not the mean: which rows a batch looks up is chance.
    steps = recipe.squared_steps(products.weight_array(lookup.table).T)
    return _error(lookup.layer, measured, float(np.sqrt(steps.max() / 12)))


def _error_of_product(
    product: products.Product, recipe: Recipe, measured: Sequence[float], statistics: Sequence[float]
) -> Error:
    """Rounding to steps costs a variance of step ** 2 / 12, for the weight and for the input."""
    low, high, square, count = statistics
    kernel = product.kernel
    inner, outer = kernel.shape
    of_weight = square / max(count, 1) * inner * float(recipe.squared_steps(kernel).mean()) / 12
    of_input = (
        recipe.input_step(low, high) ** 2 / 12 * float(np.square(kernel, dtype="float64").sum()) / outer
    )
    return _error(product.layer, measured, float(np.sqrt(of_weight + of_input)))


def check(errors: Iterable[Error], precision: str) -> None:
    """Raises an ExportError if rounding cost more than it can: then a weight, a scale or an axis is wrong."""
    for error in errors:
        if not error.measured <= tolerances.ROUNDING * error.expected:
            raise ExportError(
                f"Layer {error.layer!r} is off by {error.measured:.1e} of its output's scale in {precision}, "
                f"where rounding costs about {error.expected:.1e} (tolerance {tolerances.ROUNDING:.0f} times "
                "that). Please report this defect of keras-tx or onnxruntime, and exclude the layer with "
                f"keep=[{error.layer!r}]."
            )


def worst(errors: Iterable[Error], count: int) -> list[Error]:
    """The layers with the largest errors, each once."""
    largest: dict[str, Error] = {}
    for error in sorted(errors, key=lambda error: -error.measured):
        largest.setdefault(error.layer, error)
    return list(largest.values())[:count]


def _error(layer: str, measured: Sequence[float], expected: float) -> Error:
    squared_errors, squares, count = measured
    scale = max(np.sqrt(squares / max(count, 1)), 1e-12)
    return Error(
        layer, float(np.sqrt(squared_errors / max(count, 1)) / scale), float(expected / scale) + 1e-6
    )


class _ReplacementRecorder(GraphEditor):
    """Leaves replaced nodes in place, and records their replacements."""

    def __init__(self, graph: ir.Graph):
        super().__init__(graph)
        self.replacements: dict[ir.Node, tuple[ir.Value, ir.Value]] = {}

    def replace(self, node: ir.Node, *values: ir.Value | None) -> None:
        (value,) = values
        assert value is not None
        self.replacements[node] = (node.outputs[0], value)


def _reduced(editor: GraphEditor, op_type: str, x: ir.Value) -> ir.Value:
    return editor.add(op_type, [x], [(FLOAT, ())], keepdims=0)


def _size(editor: GraphEditor, x: ir.Value) -> ir.Value:
    return editor.add("Size", [x], [(ir.DataType.INT64, ())])


def _sums_of(editor: GraphEditor, old: ir.Value, new: ir.Value) -> list[ir.Value]:
    """The sum of squared differences, that of squares, and the number of numbers."""
    difference = editor.add("Sub", [new, old], [(FLOAT, old.shape)])
    return [*(_reduced(editor, "ReduceSumSquare", x) for x in (difference, old)), _size(editor, old)]


def _statistics_of(editor: GraphEditor, x: ir.Value) -> list[ir.Value]:
    """The smallest and the largest number, the sum of squares, and the number of numbers."""
    return [
        *(_reduced(editor, op, x) for op in ("ReduceMin", "ReduceMax", "ReduceSumSquare")),
        _size(editor, x),
    ]
