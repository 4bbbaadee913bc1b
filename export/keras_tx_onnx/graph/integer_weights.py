"""Weights that Keras stores as integers of 4 or 8 bits, with a scale for each group of a row.

While a model is lowered, such a weight is a value of floats, which lowerings and passes treat like any other.
The last pass, `store_integers`, replaces products with it by com.microsoft's MatMulNBits, and lookups by
standard operators. Any other use computes the floats in the graph.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx_onnx.graph.editor import GraphEditor
from keras_tx_onnx.graph.integer_blocks import block_floats, first_columns, packed_halves, unpacked
from keras_tx_onnx.graph.properties import CONTRIB, rank

INTEGERS = "integers"  # the key in a weight's meta of its IntegerWeight
BLOCKS = (16, 32, 64, 128, 256)  # the sizes that MatMulNBits accepts
FLOAT, UINT8, INT64 = ir.DataType.FLOAT, ir.DataType.UINT8, ir.DataType.INT64


@dataclasses.dataclass(frozen=True, eq=False)
class IntegerWeight:
    """A matrix (rows, columns) of floats (integer - zero point) * scale.

    Attributes:
        variables: of Keras, from which it is computed.
        bits: of an integer, 4 or 8.
        groups: the group of each column.
        zeros: the zero point of each group, (rows, groups).
        integers: reads the integers from 0 to 2**bits - 1, (rows, columns).
        scales: reads the scale of each group, (rows, groups).
        is_table: whether the value of the graph is the matrix, and not the transposed matrix.
    """

    variables: tuple[Any, ...]
    bits: int
    groups: np.ndarray
    zeros: np.ndarray
    integers: Callable[[], np.ndarray]
    scales: Callable[[], np.ndarray]
    is_table: bool = False

    @property
    def rows(self) -> int:
        return self.zeros.shape[0]

    @property
    def columns(self) -> int:
        return self.groups.size

    @property
    def middle(self) -> int:
        """The zero point of symmetric integers, the default of MatMulNBits."""
        return 2 ** (self.bits - 1)

    def floats(self) -> np.ndarray:
        """The matrix, transposed unless it is a table."""
        steps = self.integers().astype("float32") - self.zeros[:, self.groups]
        matrix = steps * self.scales().astype("float32")[:, self.groups]
        return matrix if self.is_table else matrix.T


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """How the columns of a matrix are divided into blocks of one group each.

    Attributes:
        size: of a block.
        columns: the column at each place, blocks one after the other; -1 for padding.
        groups: the group of each block.
    """

    size: int
    columns: np.ndarray
    groups: np.ndarray

    @classmethod
    def of(cls, weight: IntegerWeight) -> Layout:
        """The smallest layout, in bytes; among equal ones that of the largest blocks."""
        counts = np.bincount(weight.groups)
        overhead = 4 + weight.bits / 8  # bytes of a scale and a zero point

        def size_of(block: int) -> float:
            return float(np.sum(-(-counts // block)) * (block * weight.bits / 8 + overhead))

        block = min(reversed(BLOCKS), key=size_of)
        places, groups = [], []
        for group, count in enumerate(counts):
            if count:
                members = np.flatnonzero(weight.groups == group)
                padded = np.full(-(-count // block) * block, -1)
                padded[:count] = members
                places.append(padded)
                groups += [group] * (padded.size // block)
        return cls(block, np.concatenate(places), np.array(groups))

    @property
    def width(self) -> int:
        """The number of places without padding at the end."""
        return int(np.flatnonzero(self.columns >= 0)[-1]) + 1

    @property
    def in_order(self) -> bool:
        """Whether the columns keep their places, and padding is only at the end."""
        return bool((self.columns[: self.width] == np.arange(self.width)).all())


def store_integers(model: ir.Model) -> int:
    """Replaces the uses of integer weights; shapes must be known.

    Returns:
        How many nodes were replaced or added.
    """
    editor = GraphEditor(model.graph)
    count = 0
    for value in list(model.graph.initializers.values()):
        if INTEGERS in value.meta:
            count += _Storage(editor, value, value.meta[INTEGERS]).run()
    return count


class _Storage:
    """One integer weight in the graph."""

    def __init__(self, editor: GraphEditor, value: ir.Value, weight: IntegerWeight):
        self._editor = editor
        self._value = value
        self._weight = weight
        self._layout = Layout.of(weight)
        self._fits = bool((weight.zeros >= 0).all() and (weight.zeros < 2**weight.bits).all())

    def run(self) -> int:
        uses = list(self._value.uses())
        for node, index in uses:
            if self._fits and _is_product(node, index, self._weight):
                self._replace_product(node)
            elif _is_lookup(node, index, self._weight):
                self._replace_lookup(node)
            else:
                node.replace_input_with(index, self._floats(node))
        self._editor.remove_unused([self._value])
        return len(uses)

    def _replace_product(self, node: ir.Node) -> None:
        add, weight, layout = partial(self._editor.add, before=node), self._weight, self._layout
        x, bias = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else None
        assert x is not None
        if not layout.in_order:
            shape = None if x.shape is None else [*list(x.shape)[:-1], layout.width]
            x = add("Gather", [x, self._order()], [(FLOAT, shape)], axis=-1)
        outputs = [(FLOAT, node.outputs[0].shape)]
        result = add(
            "MatMulNBits",
            [x, self._steps(), self._scales(), self._zeros()],
            outputs,
            domain=CONTRIB,
            K=layout.width,
            N=weight.rows,
            bits=weight.bits,
            block_size=layout.size,
        )
        if bias is not None:
            result = add("Add", [result, bias], outputs)
        self._editor.replace(node, result)

    def _replace_lookup(self, node: ir.Node) -> None:
        ids, result = node.inputs[1], node.outputs[0]
        assert ids is not None and ids.shape is not None and result.shape is not None

        def rows(x: ir.Value) -> ir.Value:
            assert x.shape is not None and ids is not None and ids.shape is not None
            shape = [*ids.shape, *list(x.shape)[1:]]
            return self._editor.add("Gather", [x, ids], [(x.dtype, shape)], before=node, axis=0)

        self._editor.replace(node, self._computed(node, rows, list(ids.shape)))

    def _floats(self, node: ir.Node) -> ir.Value:
        """The weight as floats, computed before a node."""
        weight = self._weight
        matrix = self._computed(node, lambda x: x, [weight.rows])
        if weight.is_table:
            return matrix
        outputs = [(FLOAT, [weight.columns, weight.rows])]
        return self._editor.add("Transpose", [matrix], outputs, before=node, perm=[1, 0])

    def _computed(
        self, node: ir.Node, rows: Callable[[ir.Value], ir.Value], outer: Sequence[Any]
    ) -> ir.Value:
        """Rows of the matrix as floats, (*outer, columns), with standard operators."""
        editor, count, bits = self._editor, len(self._layout.groups), self._weight.bits
        zeros = self._zeros()
        if zeros is None:
            zero = editor.constant(float(self._weight.middle))
        else:
            zero = rows(zeros)
            if zero.dtype == UINT8:
                zero = first_columns(editor, node, unpacked(editor, node, zero, bits), count)
            outputs = [(FLOAT, [*outer, count, 1])]
            zero = editor.add("Unsqueeze", [zero, editor.constant([-1])], outputs, before=node)
        x = block_floats(editor, node, rows(self._steps()), rows(self._scales()), zero, bits)
        return self._in_original_order(node, x, outer)

    def _in_original_order(self, node: ir.Node, x: ir.Value, outer: Sequence[Any]) -> ir.Value:
        layout, columns = self._layout, self._weight.columns
        if layout.in_order:
            return first_columns(self._editor, node, x, columns)
        places = np.empty(columns, "int64")
        places[layout.columns[layout.columns >= 0]] = np.flatnonzero(layout.columns >= 0)
        order = self._stored("places", INT64, [columns], lambda: places)
        return self._editor.add("Gather", [x, order], [(FLOAT, [*outer, columns])], before=node, axis=-1)

    def _steps(self) -> ir.Value:
        """The integers (rows, blocks, bytes)."""
        weight, layout = self._weight, self._layout

        def read() -> np.ndarray:
            blocks = np.repeat(self._block_zeros(), layout.size, axis=1).astype("uint8")
            real = layout.columns >= 0
            blocks[:, real] = weight.integers()[:, layout.columns[real]]
            return _packed(blocks, weight.bits).reshape(weight.rows, len(layout.groups), -1)

        size = layout.size * weight.bits // 8
        return self._stored(f"q{weight.bits}", UINT8, [weight.rows, len(layout.groups), size], read)

    def _scales(self) -> ir.Value:
        """The scales (rows, blocks)."""
        groups = self._layout.groups
        shape = [self._weight.rows, len(groups)]
        return self._stored("scale", FLOAT, shape, lambda: self._weight.scales()[:, groups])

    def _zeros(self) -> ir.Value | None:
        """The zero points of the blocks, packed like the integers; as floats if these are out of range."""
        weight = self._weight
        if (weight.zeros == weight.middle).all():
            return None
        zeros = self._block_zeros()
        if not self._fits:
            return self._stored("zero_point", FLOAT, zeros.shape, lambda: zeros)
        packed = _packed(zeros.astype("uint8"), weight.bits)
        return self._stored("zero_point", UINT8, packed.shape, lambda: packed)

    def _block_zeros(self) -> np.ndarray:
        return self._weight.zeros[:, self._layout.groups]

    def _order(self) -> ir.Value:
        """The column at each place. At padding, where the weight is zero, it is the first of all."""
        width = self._layout.width
        order = np.maximum(self._layout.columns[:width], 0).astype("int64")
        return self._stored("order", INT64, [width], lambda: order)

    def _stored(
        self, suffix: str, dtype: ir.DataType, shape: Sequence[int], read: Callable[[], np.ndarray]
    ) -> ir.Value:
        def tensor() -> ir.TensorProtocol:
            return ir.tensor(np.ascontiguousarray(read(), dtype.numpy()))

        def make() -> ir.Value:
            return self._editor.lazy_initializer(f"{self._value.name}_{suffix}", dtype, shape, tensor)

        return self._editor.once((self._value, suffix), make)


def _is_product(node: ir.Node, index: int, weight: IntegerWeight) -> bool:
    """Whether a node multiplies the rows of its first input by the columns of a weight."""
    if index != 1 or node.graph is None:
        return False
    if node.op_type == "MatMul":
        return not weight.is_table
    plain = all(node.attributes.get_float(name, 1.0) == 1 for name in ("alpha", "beta"))
    transposed = node.attributes.get_int("transB", 0) == 1 and not node.attributes.get_int("transA", 0)
    return node.op_type == "Gemm" and weight.is_table and transposed and plain


def _is_lookup(node: ir.Node, index: int, weight: IntegerWeight) -> bool:
    """Whether a node looks up rows of a table."""
    is_gather = node.op_type == "Gather" and index == 0 and node.attributes.get_int("axis", 0) == 0
    return weight.is_table and is_gather and rank(node.inputs[1]) is not None


def _packed(integers: np.ndarray, bits: int) -> np.ndarray:
    """Integers (rows, columns) as bytes; two of 4 bits are in one, the first in its lower half."""
    if bits == 8:
        return integers
    if integers.shape[1] % 2:
        integers = np.pad(integers, ((0, 0), (0, 1)))
    return packed_halves(integers)
