"""Weights of 4 or 8 bits in blocks along the inner axis: com.microsoft's MatMulNBits.

Activations stay float32, or are rounded row by row inside the kernel: no row depends on another.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from keras_tx_onnx.graph.editor import Rewriter
from keras_tx_onnx.quantizing.products import Lookup, Plan, Product, numbers, stored_once

CONTRIB = "com.microsoft"
INT8_ARITHMETIC = 4  # accuracy_level: the kernel rounds its input to int8, block by block
AT_ONCE = 256  # rows: what is worked on stays in the cache
FLOAT, UINT8 = ir.DataType.FLOAT, ir.DataType.UINT8


def scales_of(rows: np.ndarray, bits: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (outer, inner) as (outer, blocks, block), padded with zeros, and a scale for each block.

    Symmetric: the number farthest from zero becomes the lowest step, and zero is the step in the middle.
    """
    outer, inner = rows.shape
    count = -(-inner // block)
    padded = np.zeros((outer, count * block), "float32")
    padded[:, :inner] = rows
    blocks = padded.reshape(outer, count, block)
    low, high = blocks.min(axis=2), blocks.max(axis=2)
    farthest = np.where(high > -low, high, low)
    return blocks, (farthest / -(2 ** (bits - 1))).astype("float32")


def rounded_blocks(rows: np.ndarray, bits: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (outer, inner) as (outer, blocks, bytes), and the scale of each block (outer, blocks)."""
    parts = [_rounded(rows[start : start + AT_ONCE], bits, block) for start in range(0, len(rows), AT_ONCE)]
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
        steps = steps[..., ::2] | (steps[..., 1::2] << 4)
    return steps, scale


class Blocks:
    """The recipe."""

    def __init__(self, bits: int, block: int):
        self.name = f"{bits} bits in blocks of {block}"
        self._bits, self._block = bits, block

    def apply(self, rewriter: Rewriter, plan: Plan) -> list[str]:
        rewriting = BlockRewriting(rewriter, self._bits, self._block)
        for product in plan.products:
            rewriting.product(product)
        for lookup in plan.lookups:
            rewriting.lookup(lookup)
        return stored_once(plan)

    def squared_steps(self, kernel: np.ndarray) -> np.ndarray:
        return np.square(scales_of(kernel.T, self._bits, self._block)[1])

    def input_step(self, low: float, high: float) -> float:
        """That of the block with the largest number; most are finer."""
        return max(abs(low), abs(high)) / 127


class BlockRewriting:
    """Puts weights in blocks in the place of whole ones."""

    def __init__(self, rewriter: Rewriter, bits: int, block: int):
        self._rewriter = rewriter
        self._bits, self._block = bits, block

    def _stored(self, weight: ir.Value, turned: bool) -> tuple[ir.Value, ir.Value]:
        def make() -> tuple[ir.Value, ir.Value]:
            whole = numbers(weight)
            steps, scale = rounded_blocks(whole if turned else whole.T, self._bits, self._block)
            add, name = self._rewriter.weight, str(weight.name)
            return add(f"{name}_q{self._bits}", steps), add(f"{name}_scale", scale)

        return self._rewriter.once((weight, turned), make)

    def product(self, product: Product) -> None:
        add, node = self._rewriter.add, product.node
        steps, scale = self._stored(product.weight, product.turned)
        inner, outer = product.sizes
        shape = node.outputs[0].shape
        sizes = {"K": inner, "N": outer, "bits": self._bits, "block_size": self._block}
        given = [product.x, steps, scale]
        result = add(
            node, "MatMulNBits", given, [(FLOAT, shape)], CONTRIB, accuracy_level=INT8_ARITHMETIC, **sizes
        )
        if product.bias is not None:
            result = add(node, "Add", [result, product.bias], [(FLOAT, shape)])
        self._rewriter.replace(node, result)

    def lookup(self, lookup: Lookup) -> None:
        add, node = self._rewriter.add, lookup.node
        steps, scale = self._stored(lookup.table, turned=True)
        assert steps.shape is not None
        rows, count, size = (int(n) for n in steps.shape.numpy())
        flat = self._rewriter.constant([rows, count * size], "int64")
        data = add(node, "Reshape", [steps, flat], [(UINT8, [rows, count * size])])
        axes = {"gather_axis": 0, "quantize_axis": 1, "bits": self._bits, "block_size": self._block}
        shape = node.outputs[0].shape
        found = add(
            node, "GatherBlockQuantized", [data, node.inputs[1], scale], [(FLOAT, shape)], CONTRIB, **axes
        )
        self._rewriter.replace(node, found)
