"""The recipes behind the precisions of a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import onnx_ir as ir

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.editor import GraphEditor
from keras_tx_onnx.quantizing import products
from keras_tx_onnx.quantizing.float16 import to_float16


class Recipe(Protocol):
    """How to quantize the products and tables of an fp32 graph."""

    name: str

    def apply(self, editor: GraphEditor, plan: products.Plan) -> list[str]:
        """Replaces products and lookups; returns notes for the report."""
        ...

    def squared_steps(self, kernel: np.ndarray) -> np.ndarray:
        """The squares of the steps to which a kernel (inner, outer) is rounded."""
        ...

    def input_step(self, low: float, high: float) -> float:
        """The largest step to which a product rounds its input, from the input's range."""
        ...


def quantize_graph(
    model: ir.Model, precision: str, recipe: Recipe, keep: Sequence[str]
) -> tuple[products.Plan, list[str]]:
    """Quantizes a graph in place; returns what was quantized, and notes for the report."""
    plan = products.plan(model.graph, keep)
    if not plan.products and not plan.lookups:
        exclusion = f" without {', '.join(plan.kept)} (keep)" if plan.kept else ""
        raise ExportError(
            f"The graph{exclusion} has no product with a weight of {products.SMALLEST_KERNEL} numbers or "
            f"more, so {precision} would change nothing. Use fp32 or fp16."
        )
    weights = plan.weights()
    editor = GraphEditor(model.graph)
    notes = recipe.apply(editor, plan)
    editor.remove_unused(weights)
    if layers := products.layers_in_bodies(model.graph):
        notes = [*notes, f"In float32, because they are in branches or loops: {', '.join(layers)}."]
    return plan, notes


def convert_to_float16(model: ir.Model, large: Iterable[str]) -> list[str]:
    """Converts a graph to half precision in place; returns notes for the report.

    Args:
        model: with the dtypes of all values.
        large: names of values that half precision cannot hold.
    """
    in_float32 = to_float16(model.graph, large)
    if not in_float32:
        return []
    listed = ", ".join(f"{count} {op}" for op, count in sorted(in_float32.items()))
    return [f"In float32: {listed}."]
