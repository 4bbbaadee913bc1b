"""Blocks of integers of 4 or 8 bits with a scale each, as bytes, and as floats of standard operators.

GatherBlockQuantized of com.microsoft would compute the floats of a table, but it has no kernel in browsers,
and OpenVINO wants a table that no product shares.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

from keras_tx_onnx.graph.editor import GraphEditor

FLOAT = ir.DataType.FLOAT


def packed_halves(integers: np.ndarray) -> np.ndarray:
    """Pairs of integers of 4 bits along the last axis as bytes, the first of each in the lower half."""
    return integers[..., ::2] | (integers[..., 1::2] << 4)


def unpacked(editor: GraphEditor, before: ir.Node, x: ir.Value, bits: int) -> ir.Value:
    """The integers in bytes as floats; with 4 bits, the last axis is twice as long.

    In float32, where it is exact: OpenVINO rounds quotients and shifts of integers to the nearest one.
    """
    add, constant = partial(editor.add, before=before), editor.constant
    assert x.shape is not None
    *outer, size = x.shape
    assert isinstance(size, int)
    outputs = [(FLOAT, [*outer, size])]
    x = add("Cast", [x], outputs, to=FLOAT)
    if bits == 8:
        return x
    high = add("Floor", [add("Mul", [x, constant(1 / 16)], outputs)], outputs)
    low = add("Sub", [x, add("Mul", [high, constant(16.0)], outputs)], outputs)
    halves = [add("Unsqueeze", [half, constant([-1])], [(FLOAT, [*outer, size, 1])]) for half in (low, high)]
    pairs = add("Concat", halves, [(FLOAT, [*outer, size, 2])], axis=-1)
    flat = constant([*(0 for _ in outer), 2 * size])
    return add("Reshape", [pairs, flat], [(FLOAT, [*outer, 2 * size])])


def block_floats(
    editor: GraphEditor, before: ir.Node, blocks: ir.Value, scales: ir.Value, zeros: ir.Value, bits: int
) -> ir.Value:
    """(integer - zero point) * scale of the blocks of each row, one after the other.

    Args:
        editor: of the graph.
        before: the node in front of which to add others.
        blocks: bytes (..., blocks, bytes of a block).
        scales: (..., blocks).
        zeros: the zero points as floats, (..., blocks, 1) or one number.
        bits: of an integer.
    """
    add, constant = partial(editor.add, before=before), editor.constant
    steps = unpacked(editor, before, blocks, bits)
    assert steps.shape is not None
    *outer, count, size = steps.shape
    assert isinstance(count, int) and isinstance(size, int)
    outputs = [(FLOAT, [*outer, count, size])]
    steps = add("Sub", [steps, zeros], outputs)
    scales = add("Unsqueeze", [scales, constant([-1])], [(FLOAT, [*outer, count, 1])])
    x = add("Mul", [steps, scales], outputs)
    flat = constant([*(0 for _ in outer), count * size])
    return add("Reshape", [x, flat], [(FLOAT, [*outer, count * size])])


def first_columns(editor: GraphEditor, before: ir.Node, x: ir.Value, width: int) -> ir.Value:
    """The first numbers of each row, without padding."""
    assert x.shape is not None
    if x.shape[-1] == width:
        return x
    ends = [editor.constant([number]) for number in (0, width, -1)]
    return editor.add("Slice", [x, *ends], [(FLOAT, [*list(x.shape)[:-1], width])], before=before)
