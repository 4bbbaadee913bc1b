"""Weights of 4 or 8 bits in blocks along the inner axis: com.microsoft's MatMulNBits.

Activations stay float32, or are rounded row by row inside the kernel: no row depends on another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx_onnx.graph.editor import GraphEditor
from keras_tx_onnx.graph.integer_blocks import block_floats, first_columns, packed_halves
from keras_tx_onnx.graph.properties import CONTRIB
from keras_tx_onnx.quantizing.products import Lookup, Plan, Product, tied_notes, weight_array

INT8_ARITHMETIC = 4  # accuracy_level: the kernel rounds its input to int8, block by block
ROWS_PER_STEP = 256  # their blocks stay in the processor's cache
FLOAT, UINT8 = ir.DataType.FLOAT, ir.DataType.UINT8


def scales_of(rows: np.ndarray, bits: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (outer, inner) as (outer, blocks, block), padded with zeros, and the scale of each block.

    Symmetric: the number of the largest magnitude becomes the lowest step, and zero the step in the middle.
    """
    outer, inner = rows.shape
    count = -(-inner // block)
    padded = np.zeros((outer, count * block), "float32")
    padded[:, :inner] = rows
    blocks = padded.reshape(outer, count, block)
    low, high = blocks.min(axis=2), blocks.max(axis=2)
    largest = np.where(high > -low, high, low)
    return blocks, (largest / -(2 ** (bits - 1))).astype("float32")


def rounded_blocks(rows: np.ndarray, bits: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (outer, inner) as (outer, blocks, bytes), and the scale of each block (outer, blocks)."""
    parts = [
        _rounded(rows[start : start + ROWS_PER_STEP], bits, block)
        for start in range(0, len(rows), ROWS_PER_STEP)
    ]
    steps, scales = zip(*parts, strict=True)
    return np.concatenate(steps), np.concatenate(scales)


def _rounded(rows: np.ndarray, bits: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    blocks, scale = scales_of(rows, bits, block)
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    blocks *= inverse[..., None]
    blocks += 2 ** (bits - 1) + 0.5  # halves go up, as in onnxruntime's own quantizer
    np.floor(blocks, out=blocks)
    steps = np.clip(blocks, 0, 2**bits - 1, out=blocks).astype("uint8")
    if bits == 4:
        steps = packed_halves(steps)
    return steps, scale


class BlockRecipe:
    """Stores weights in blocks of 4 or 8 bits."""

    def __init__(self, bits: int, block: int):
        self.name = f"{bits} bits in blocks of {block}"
        self._bits, self._block = bits, block

    def apply(self, editor: GraphEditor, plan: Plan) -> list[str]:
        quantizer = BlockQuantizer(editor, self._bits, self._block)
        for product in plan.products:
            quantizer.quantize_product(product)
        for lookup in plan.lookups:
            quantizer.quantize_lookup(lookup)
        return tied_notes(plan)

    def squared_steps(self, kernel: np.ndarray) -> np.ndarray:
        return np.square(scales_of(kernel.T, self._bits, self._block)[1])

    def input_step(self, low: float, high: float) -> float:
        """The step of the block with the largest number; most blocks have smaller steps."""
        return max(abs(low), abs(high)) / 127


class BlockQuantizer:
    """Replaces products and lookups by those with weights in blocks."""

    def __init__(self, editor: GraphEditor, bits: int, block: int):
        self._editor = editor
        self._bits, self._block = bits, block

    def quantize_product(self, product: Product) -> None:
        add, node = partial(self._editor.add, before=product.node), product.node
        outputs = [(FLOAT, node.outputs[0].shape)]
        result = self._multiplied(add, product, outputs)
        if product.bias is not None:
            result = add("Add", [result, product.bias], outputs)
        self._editor.replace(node, result)

    def _multiplied(self, add: Callable[..., Any], product: Product, outputs: list[Any]) -> ir.Value:
        """The product without its bias."""
        steps, scale = self._stored(product.weight, product.transposed)
        inner, outer = product.sizes
        return add(
            "MatMulNBits",
            [product.x, steps, scale],
            outputs,
            domain=CONTRIB,
            accuracy_level=INT8_ARITHMETIC,
            K=inner,
            N=outer,
            bits=self._bits,
            block_size=self._block,
        )

    def quantize_lookup(self, lookup: Lookup) -> None:
        """Looks up blocks and scales with standard operators."""
        add, node = partial(self._editor.add, before=lookup.node), lookup.node
        indices, output = node.inputs[1], node.outputs[0]
        steps, scale = self._stored(lookup.table, transposed=True)
        assert steps.shape is not None and output.shape is not None
        _, count, size = (int(n) for n in steps.shape.numpy())
        *leading, width = output.shape
        assert isinstance(width, int)
        blocks = add("Gather", [steps, indices], [(UINT8, [*leading, count, size])], axis=0)
        scales = add("Gather", [scale, indices], [(FLOAT, [*leading, count])], axis=0)
        middle = self._editor.constant(float(2 ** (self._bits - 1)))
        values = block_floats(self._editor, node, blocks, scales, middle, self._bits)
        self._editor.replace(node, first_columns(self._editor, node, values, width))

    def _stored(self, weight: ir.Value, transposed: bool) -> tuple[ir.Value, ir.Value]:
        """The blocks of a weight and their scales, stored once."""

        def make() -> tuple[ir.Value, ir.Value]:
            array, name = weight_array(weight), str(weight.name)
            steps, scale = rounded_blocks(array if transposed else array.T, self._bits, self._block)
            store = self._editor.initializer
            return store(f"{name}_q{self._bits}", steps), store(f"{name}_scale", scale)

        return self._editor.once((weight, transposed), make)
