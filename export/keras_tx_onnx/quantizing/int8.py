"""int8: products of unsigned activations and signed weights with a scale for each column.

Standard operators only: DynamicQuantizeLinear, MatMulInteger, Cast and Mul, or with ranges from calibration
QuantizeLinear and DequantizeLinear around a MatMul. onnxruntime fuses either into one node when it loads the
file. Layers whose input does not fit one range have blocks instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx_onnx.graph.editor import GraphEditor
from keras_tx_onnx.quantizing.products import Lookup, Plan, Product, tied_notes, weight_array
from keras_tx_onnx.quantizing.weight_blocks import BlockQuantizer

FLOAT, UINT8, INT8, INT32 = ir.DataType.FLOAT, ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.INT32
BLOCK = 32  # numbers that share a scale, as in llama.cpp's q4_0 and q8_0
LARGEST = 127  # of a weight; -128 is left out, so that the range is symmetric


def rounded_columns(kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A kernel (inner, outer) as int8 and the scale of each column, as onnxruntime's tools round it."""
    largest = np.abs(kernel).max(axis=0)
    scale = (2.0 * largest.astype("float64") / (2 * LARGEST)).astype("float32")
    scale = np.where(scale < np.finfo("float32").tiny, np.float32(1), scale)
    rounded = np.rint(kernel / scale)
    return np.clip(rounded, -LARGEST, LARGEST, out=rounded).astype("int8"), scale


class Range(NamedTuple):
    """The smallest and the largest number of a product's input."""

    low: float
    high: float


class Int8Recipe:
    """Dynamic int8, or static if the ranges of the products' inputs are known.

    Args:
        ranges: by value, from calibration.
        in_blocks: layers whose weights have 8 bits in blocks, and whose input is rounded block by block, too.
        data: describes the calibration.
    """

    def __init__(
        self, ranges: Mapping[str, Range] | None = None, in_blocks: Collection[str] = (), data: str = ""
    ):
        self.name = contract.DYNAMIC if ranges is None else contract.STATIC
        if ranges is not None and data:
            self.name += f", ranges of {data}"
        self._ranges = ranges
        self._in_blocks = frozenset(in_blocks)

    def apply(self, editor: GraphEditor, plan: Plan) -> list[str]:
        quantizer = _Int8Quantizer(editor, self._ranges)
        blocks = BlockQuantizer(editor, 8, BLOCK)
        tied, notes = plan.tied(), tied_notes(plan)
        for product in plan.products:
            if product.layer in self._in_blocks:
                blocks.quantize_product(product)
            else:
                quantizer.quantize_product(product)
        for lookup in plan.lookups:
            quantizer.quantize_lookup(lookup, lookup.table in tied)
        return notes

    def squared_steps(self, kernel: np.ndarray) -> np.ndarray:
        return np.square(np.abs(kernel).max(axis=0) / LARGEST)

    def input_step(self, low: float, high: float) -> float:
        return (max(high, 0.0) - min(low, 0.0)) / 255


class _Int8Quantizer:
    """Replaces products and lookups by those with weights of int8."""

    def __init__(self, editor: GraphEditor, ranges: Mapping[str, Range] | None):
        self._editor = editor
        self._ranges = ranges

    def quantize_product(self, product: Product) -> None:
        add, node = partial(self._editor.add, before=product.node), product.node
        kernel, scale = self._stored(product.weight, product.transposed, product.transposed)
        multiply = self._dynamic_product if self._ranges is None else self._static_product
        result = multiply(add, product, kernel, scale)
        if product.bias is not None:
            result = add("Add", [result, product.bias], [(FLOAT, node.outputs[0].shape)])
        self._editor.replace(node, result)

    def _dynamic_product(
        self, add: Callable[..., Any], product: Product, kernel: ir.Value, scale: ir.Value
    ) -> ir.Value:
        x, shape = product.x, product.node.outputs[0].shape
        outputs = [(UINT8, x.shape), (FLOAT, ()), (UINT8, ())]
        rounded, step, zero = self._editor.once(
            ("rounded", x, product.node.graph), lambda: add("DynamicQuantizeLinear", [x], outputs)
        )
        integers = add("MatMulInteger", [rounded, kernel, zero], [(INT32, shape)])
        floats = add("Cast", [integers], [(FLOAT, shape)], to=FLOAT)
        scales = add("Mul", [step, scale], [(FLOAT, scale.shape)])
        return add("Mul", [floats, scales], [(FLOAT, shape)])

    def _static_product(
        self, add: Callable[..., Any], product: Product, kernel: ir.Value, scale: ir.Value
    ) -> ir.Value:
        x, shape = product.x, product.node.outputs[0].shape
        rounded = self._editor.once(
            ("rounded", x, product.node.graph), lambda: self._rounded_to_range(product.node, x)
        )
        columns = add("DequantizeLinear", [kernel, scale], [(FLOAT, kernel.shape)], axis=1)
        if shape is None or len(shape) != 2:
            return add("MatMul", [rounded, columns], [(FLOAT, shape)])
        result = add("MatMul", [rounded, columns], [(FLOAT, [1, *shape])])
        return add("Squeeze", [result, self._editor.constant([0])], [(FLOAT, shape)])

    def _rounded_to_range(self, node: ir.Node, x: ir.Value) -> ir.Value:
        """x rounded to its range and back to float32; onnxruntime fuses both into the product.

        An x with two axes gets one more: onnxruntime would first fuse the product and its bias into a Gemm,
        and then convert every weight back in each run, which is four times as slow.
        """
        assert self._ranges is not None
        low, high = self._ranges[str(x.name)]
        low, high = min(low, 0.0), max(high, 0.0)  # zero has a separate step
        step = (high - low) / 255 or 1.0
        add, constant = partial(self._editor.add, before=node), self._editor.constant
        scale, zero = constant(step, "float32"), constant(int(np.rint(-low / step)), "uint8")
        shape = x.shape
        if shape is not None and len(shape) == 2:
            shape = ir.Shape([1, *shape])
            x = add("Unsqueeze", [x, constant([0])], [(FLOAT, shape)])
        rounded = add("QuantizeLinear", [x, scale, zero], [(UINT8, shape)])
        return add("DequantizeLinear", [rounded, scale, zero], [(FLOAT, shape)])

    def quantize_lookup(self, lookup: Lookup, tied: bool) -> None:
        """Looks up rows of a quantized table; a tied one is stored as the kernel of its product, transposed.

        Stored as a table and transposed when the file is loaded, GPT-2 loads a third slower and decodes a
        tenth slower; a prompt of 128 tokens would take 23 ms instead of 25.
        """
        add, node = partial(self._editor.add, before=lookup.node), lookup.node
        ids, shape = node.inputs[1], node.outputs[0].shape
        table, scale = self._stored(lookup.table, per_row=True, transposed=tied)
        if tied:
            assert shape is not None and ids is not None
            order = [*range(1, len(shape)), 0]
            columns = add("Gather", [table, ids], [(INT8, [shape[-1], *list(shape)[:-1]])], axis=1)
            rows = add("Transpose", [columns], [(INT8, shape)], perm=order)
        else:
            rows = add("Gather", [table, ids], [(INT8, shape)], axis=0)
        outer = None if shape is None else list(shape)[:-1]
        scales = add("Gather", [scale, ids], [(FLOAT, outer)], axis=0)
        column = None if outer is None else [*outer, 1]
        scales = add("Unsqueeze", [scales, self._editor.constant([-1])], [(FLOAT, column)])
        floats = add("Cast", [rows], [(FLOAT, shape)], to=FLOAT)
        self._editor.replace(node, add("Mul", [floats, scales], [(FLOAT, shape)]))

    def _stored(self, weight: ir.Value, per_row: bool, transposed: bool) -> tuple[ir.Value, ir.Value]:
        """A quantized weight and its scales, stored once.

        Args:
            weight: of float32.
            per_row: whether its rows have the scales, not its columns.
            transposed: whether to store it with its axes exchanged.
        """

        def make() -> tuple[ir.Value, ir.Value]:
            array, name = weight_array(weight), str(weight.name)
            rounded, scale = rounded_columns(array.T if per_row else array)
            rounded = rounded.T if per_row and not transposed else rounded
            store = self._editor.initializer
            return store(f"{name}_int8", rounded), store(f"{name}_scale", scale)

        return self._editor.once((weight, transposed), make)
