"""int8: unsigned activations, rounded when the graph runs, by signed weights with a scale for each column.

Standard operators only: DynamicQuantizeLinear, MatMulInteger, Cast and Mul. onnxruntime makes one node of
them when it loads the file. With ranges from calibration: QuantizeLinear and DequantizeLinear around a
MatMul, of which it makes one node as well. Layers whose input one range cannot hold have blocks instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from keras_tx_onnx.graph.editor import Rewriter
from keras_tx_onnx.quantizing.products import Lookup, Plan, Product, numbers, stored_once
from keras_tx_onnx.quantizing.weight_blocks import BlockRewriting

FLOAT, UINT8, INT8, INT32 = ir.DataType.FLOAT, ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.INT32
BLOCK = 32  # numbers that share a scale: what llama.cpp's q4_0 and q8_0 have as well
LARGEST = 127  # of a weight; -128 is left out, so that the range is symmetric


def rounded_columns(kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A kernel (inner, outer) as int8 and the scale of each column, as onnxruntime's tools round it."""
    largest = np.abs(kernel).max(axis=0)
    scale = (2.0 * largest.astype("float64") / (2 * LARGEST)).astype("float32")
    scale = np.where(scale < np.finfo("float32").tiny, np.float32(1), scale)
    rounded = np.rint(kernel / scale)
    return np.clip(rounded, -LARGEST, LARGEST, out=rounded).astype("int8"), scale


class Range(NamedTuple):
    """The smallest and the largest number that a product was given."""

    low: float
    high: float


class Integers:
    """The recipe: dynamic, or static where the ranges of what products take are known.

    The layers of `in_blocks` have 8-bit weights in blocks, and their input is rounded block by block too.
    """

    def __init__(self, ranges: Mapping[str, Range] | None = None, in_blocks: Collection[str] = ()):
        self.name = "dynamic" if ranges is None else "static"
        self._ranges = ranges
        self._in_blocks = frozenset(in_blocks)

    def apply(self, rewriter: Rewriter, plan: Plan) -> list[str]:
        return _Rewriting(rewriter, self._ranges).run(plan, self._in_blocks)

    def squared_steps(self, kernel: np.ndarray) -> np.ndarray:
        return np.square(np.abs(kernel).max(axis=0) / LARGEST)

    def input_step(self, low: float, high: float) -> float:
        return (max(high, 0.0) - min(low, 0.0)) / 255


class _Rewriting:
    def __init__(self, rewriter: Rewriter, ranges: Mapping[str, Range] | None):
        self._rewriter = rewriter
        self._ranges = ranges

    def run(self, plan: Plan, in_blocks: Collection[str]) -> list[str]:
        tied, notes = plan.tied(), stored_once(plan)
        blocks = BlockRewriting(self._rewriter, 8, BLOCK)
        for product in plan.products:
            if product.layer in in_blocks:
                blocks.product(product)
            else:
                self._product(product)
        for lookup in plan.lookups:
            self._lookup(lookup, lookup.table in tied)
        return notes

    def _stored(self, weight: ir.Value, across: bool, turned: bool) -> tuple[ir.Value, ir.Value]:
        """A weight and its scales, stored once.

        Args:
            weight: of float32.
            across: whether its scales are those of its rows.
            turned: whether it is stored with its axes exchanged.
        """

        def make() -> tuple[ir.Value, ir.Value]:
            whole = numbers(weight)
            rounded, scale = rounded_columns(whole.T if across else whole)
            stored = rounded.T if across and not turned else rounded
            add, name = self._rewriter.weight, str(weight.name)
            return add(f"{name}_int8", stored), add(f"{name}_scale", scale)

        return self._rewriter.once((weight, turned), make)

    def _product(self, product: Product) -> None:
        add, node, x = self._rewriter.add, product.node, product.x
        kernel, scale = self._stored(product.weight, product.turned, product.turned)
        shape = node.outputs[0].shape
        if self._ranges is None:
            given = [(UINT8, x.shape), (FLOAT, ()), (UINT8, ())]
            rounded, step, zero = self._rewriter.once(
                ("rounded", x), lambda: add(node, "DynamicQuantizeLinear", [x], given)
            )
            whole = add(node, "MatMulInteger", [rounded, kernel, zero], [(INT32, shape)])
            exact = add(node, "Cast", [whole], [(FLOAT, shape)], to=FLOAT)
            both = add(node, "Mul", [step, scale], [(FLOAT, scale.shape)])
            result = add(node, "Mul", [exact, both], [(FLOAT, shape)])
        else:
            restored = self._rewriter.once(("restored", x), lambda: self._restored(node, x))
            columns = add(node, "DequantizeLinear", [kernel, scale], [(FLOAT, kernel.shape)], axis=1)
            if shape is not None and len(shape) == 2:
                front = self._rewriter.constant([0], "int64")
                result = add(node, "MatMul", [restored, columns], [(FLOAT, [1, *shape])])
                result = add(node, "Squeeze", [result, front], [(FLOAT, shape)])
            else:
                result = add(node, "MatMul", [restored, columns], [(FLOAT, shape)])
        if product.bias is not None:
            result = add(node, "Add", [result, product.bias], [(FLOAT, shape)])
        self._rewriter.replace(node, result)

    def _restored(self, node: ir.Node, x: ir.Value) -> ir.Value:
        """x rounded to its range and back: onnxruntime takes both into the product.

        With two axes it gets one more: onnxruntime would first make a Gemm of the product and the bias behind
        it, and then round every weight back each time, which takes four times as long.
        """
        assert self._ranges is not None
        low, high = self._ranges[str(x.name)]
        low, high = min(low, 0.0), max(high, 0.0)  # zero has a step of its own
        step = (high - low) / 255 or 1.0
        constant = self._rewriter.constant
        given = [constant(step, "float32"), constant(int(np.rint(-low / step)), "uint8")]
        shape = x.shape
        if shape is not None and len(shape) == 2:
            shape = ir.Shape([1, *shape])
            x = self._rewriter.add(node, "Unsqueeze", [x, constant([0], "int64")], [(FLOAT, shape)])
        rounded = self._rewriter.add(node, "QuantizeLinear", [x, *given], [(UINT8, shape)])
        return self._rewriter.add(node, "DequantizeLinear", [rounded, *given], [(FLOAT, shape)])

    def _lookup(self, lookup: Lookup, tied: bool) -> None:
        """Rows of a table. A tied one is stored as the kernel of its product; its columns are the rows.

        Stored as a table and turned when the file is loaded, GPT-2 loads a third slower and decodes a tenth
        slower; a prompt of 128 tokens would take 23 ms instead of 25.
        """
        add, node = self._rewriter.add, lookup.node
        ids, shape = node.inputs[1], node.outputs[0].shape
        table, scale = self._stored(lookup.table, across=True, turned=tied)
        if tied:
            assert shape is not None and ids is not None
            order = [*range(1, len(shape)), 0]
            columns = add(node, "Gather", [table, ids], [(INT8, [shape[-1], *list(shape)[:-1]])], axis=1)
            rows = add(node, "Transpose", [columns], [(INT8, shape)], perm=order)
        else:
            rows = add(node, "Gather", [table, ids], [(INT8, shape)], axis=0)
        before = None if shape is None else list(shape)[:-1]
        steps = add(node, "Gather", [scale, ids], [(FLOAT, before)], axis=0)
        last = self._rewriter.constant([-1], "int64")
        column = None if before is None else [*before, 1]
        steps = add(node, "Unsqueeze", [steps, last], [(FLOAT, column)])
        exact = add(node, "Cast", [rows], [(FLOAT, shape)], to=FLOAT)
        self._rewriter.replace(node, add(node, "Mul", [exact, steps], [(FLOAT, shape)]))
