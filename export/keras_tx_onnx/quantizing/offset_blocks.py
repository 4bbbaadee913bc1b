"""int4 of decoders: 4-bit blocks with offsets, and 8 bits for the token table and the logits.

The numbers of a block are `least + scale * step`. MatMulNBits computes with `scale * (step - 8)`, and a
small product of the sums of the input's blocks adds the rest. Integer zero points would round the offsets,
and float zero points have no fast kernel. Weights that were rounded like this before, such as Q4_1 of
llama.cpp, keep their values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx_onnx.graph.editor import GraphEditor
from keras_tx_onnx.graph.integer_blocks import packed_halves
from keras_tx_onnx.quantizing.block_ranges import LARGEST, searched, steps_of
from keras_tx_onnx.quantizing.products import Plan, Product, tied_notes, weight_array
from keras_tx_onnx.quantizing.weight_blocks import FLOAT, ROWS_PER_STEP, BlockQuantizer, BlockRecipe

BITS, MIDDLE = 4, 8  # of a step

# (outer, blocks, bytes), and scale and smallest number of each block (outer, blocks)
Blocks = tuple[np.ndarray, np.ndarray, np.ndarray]


def offset_blocks(rows: np.ndarray, block: int) -> Blocks:
    """Rows (outer, inner) in blocks, each rounded alone."""
    parts = [
        _rounded(rows[start : start + ROWS_PER_STEP], block) for start in range(0, len(rows), ROWS_PER_STEP)
    ]
    steps, scales, least = zip(*parts, strict=True)
    return np.concatenate(steps), np.concatenate(scales), np.concatenate(least)


def _rounded(rows: np.ndarray, block: int) -> Blocks:
    blocks = rows.astype("float32").reshape(-1, block)
    scales, least = searched(blocks)
    steps = steps_of(blocks, scales[:, None], least[:, None]).astype("uint8").reshape(rows.shape)
    shape = (len(rows), -1)
    return packed(steps, block), scales.reshape(shape), least.reshape(shape)


def packed(steps: np.ndarray, block: int) -> np.ndarray:
    """Steps (outer, inner) as bytes (outer, blocks, bytes)."""
    return packed_halves(steps.reshape(len(steps), -1, block))


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """What calibration data decide.

    Attributes:
        data: its description.
        blocks: of weights that were rounded on it, by name.
        in_8_bits: the names of weights that 4 bits round too coarsely.
    """

    data: str
    blocks: Mapping[str, Blocks]
    in_8_bits: Collection[str]


class OffsetRecipe:
    """Stores weights in 4-bit blocks with offsets, and those of tokens and logits in 8-bit blocks.

    Args:
        vocabulary_size: of the logits.
        block: numbers that share a scale.
        calibrated: None rounds each block alone.
    """

    def __init__(self, vocabulary_size: int, block: int, calibrated: Calibrated | None = None):
        self.name = f"4 bits in blocks of {block} with offsets, 8 bits for tokens and logits"
        if calibrated is not None and calibrated.blocks:
            self.name += f", rounded on {calibrated.data}"
        self._vocabulary_size, self._block = vocabulary_size, block
        self._calibrated = calibrated or Calibrated("", {}, ())
        self._tables = BlockRecipe(8, block)

    def apply(self, editor: GraphEditor, plan: Plan) -> list[str]:
        of_tokens = BlockQuantizer(editor, 8, self._block)
        of_others = _OffsetQuantizer(editor, self._block, self._calibrated)
        for product in plan.products:
            is_head = product.sizes[1] == self._vocabulary_size
            (of_tokens if is_head else of_others).quantize_product(product)
        for lookup in plan.lookups:
            of_tokens.quantize_lookup(lookup)
        return [*tied_notes(plan), *of_others.notes()]

    def has_offsets(self, product: Product) -> bool:
        """Whether a product has 4-bit blocks with offsets."""
        return product.sizes[1] != self._vocabulary_size and _reason_against(product, self._block) is None

    def squared_steps(self, kernel: np.ndarray) -> np.ndarray:
        inner, outer = kernel.shape
        if outer == self._vocabulary_size or inner % self._block:
            return self._tables.squared_steps(kernel)
        blocks = kernel.T.reshape(outer, -1, self._block)
        return np.square((blocks.max(axis=2) - blocks.min(axis=2)) / LARGEST)

    def input_step(self, low: float, high: float) -> float:
        return self._tables.input_step(low, high)


class _OffsetQuantizer(BlockQuantizer):
    """Replaces products by those with blocks and offsets; blocks must not be partial."""

    def __init__(self, editor: GraphEditor, block: int, calibrated: Calibrated):
        super().__init__(editor, BITS, block)
        self._calibrated = calibrated
        self._in_8_bits = BlockQuantizer(editor, 8, block)
        self._without_offsets: dict[str, dict[str, None]] = {}  # layers, by the reason

    def notes(self) -> list[str]:
        """Notes about layers without offsets."""
        return [
            f"In 8-bit blocks, because {reason}: {', '.join(layers)}."
            for reason, layers in self._without_offsets.items()
        ]

    def quantize_product(self, product: Product) -> None:
        reason = _reason_against(product, self._block)
        if product.weight.name in self._calibrated.in_8_bits:
            reason = "4 bits round them the most coarsely"
        if reason is None:
            super().quantize_product(product)
        else:
            self._without_offsets.setdefault(reason, {})[product.layer] = None
            self._in_8_bits.quantize_product(product)

    def _multiplied(self, add: Callable[..., Any], product: Product, outputs: list[Any]) -> ir.Value:
        x, inner = product.x, product.sizes[0]
        assert x.shape is not None
        leading, count = list(x.shape)[:-1], inner // self._block

        def sums_of_blocks() -> ir.Value:
            sizes = self._editor.constant([*(0 for _ in leading), count, self._block])
            blocks = add("Reshape", [x, sizes], [(FLOAT, [*leading, count, self._block])])
            axes = self._editor.constant([-1])
            return add("ReduceSum", [blocks, axes], [(FLOAT, [*leading, count])], keepdims=0)

        key = ("sums of blocks", x, self._block, product.node.graph)
        sums = self._editor.once(key, sums_of_blocks)
        offsets = self._with_offsets(product.weight, product.transposed)[2]
        rest = add("MatMul", [sums, offsets], outputs)
        return add("Add", [super()._multiplied(add, product, outputs), rest], outputs)

    def _stored(self, weight: ir.Value, transposed: bool) -> tuple[ir.Value, ir.Value]:
        return self._with_offsets(weight, transposed)[:2]

    def _with_offsets(self, weight: ir.Value, transposed: bool) -> tuple[ir.Value, ir.Value, ir.Value]:
        """The blocks of a weight, their scales, and the offsets (blocks, outer), stored once."""

        def make() -> tuple[ir.Value, ir.Value, ir.Value]:
            array, name = weight_array(weight), str(weight.name)
            blocks = self._calibrated.blocks.get(name)
            if blocks is None:
                blocks = offset_blocks(array if transposed else array.T, self._block)
            steps, scales, least = blocks
            offsets = np.ascontiguousarray((least + MIDDLE * scales).T)
            store = self._editor.initializer
            return (
                store(f"{name}_q{BITS}", steps),
                store(f"{name}_scale", scales),
                store(f"{name}_offset", offsets),
            )

        return self._editor.once((weight, transposed, "offsets"), make)


def _reason_against(product: Product, block: int) -> str | None:
    """Why a product cannot have blocks with offsets."""
    if product.sizes[0] % block:
        return "the last block is partial"
    return "the shape of the input is unknown" if product.x.shape is None else None
