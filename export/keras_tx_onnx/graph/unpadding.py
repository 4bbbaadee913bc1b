"""Runs per-token layers on the needed tokens only: (tokens, width) instead of (batch, sequence, width).

Needed are the real tokens and the first of each row, the class token, which pooled heads read even if the
mask excludes it. Embeddings, dense layers and norms compute these tokens only. Layers that mix tokens receive
zeros for all others, and so do branches and loops; outputs are zero where the mask is. Attention, whose mask
excludes the others, receives the first token of the row for them, which is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx_onnx.graph.editor import GraphEditor
from keras_tx_onnx.graph.properties import (
    ELEMENTWISE,
    NORMS,
    TO_THE_END,
    has_one_use,
    input_at,
    is_constant,
    of_sequence,
    rank,
)

TOKENS_AXIS = "tokens"  # how many tokens of a batch are computed


def unpad(model: ir.Model) -> int:
    """Rewrites the graph of an encoder with the contract's inputs; read_sizes_from_ids must run before.

    Returns:
        How many nodes compute the needed tokens only.
    """
    return _Unpadding(model.graph).run()


class _Unpadding:
    def __init__(self, graph: ir.Graph):
        self.graph = graph
        self.editor = GraphEditor(graph)
        self.nodes = list(graph)
        self.first = self.nodes[0]
        self.packed: set[ir.Value] = set()  # (tokens, width) already
        self.done: set[ir.Node] = set()
        self.per_token: dict[str, Callable[[ir.Node], bool]] = {  # by operator
            "Gather": self._lookup,
            "Reshape": self._product_between_reshapes,
            "Split": self._split,
            "MatMul": self._product,
            "MatMulInteger": self._integer_product,
            "ReduceMax": self._largest_of_each_token,
            **dict.fromkeys(NORMS, self._norm),
            **dict.fromkeys(ELEMENTWISE, self._elementwise),
        }

    def run(self) -> int:
        self._locate_tokens()
        count = 0
        for node in self.nodes:
            if node not in self.done:
                if self._rewrite(node):
                    count += 1
                else:
                    self._restore_padding(node)
        for index, value in enumerate(list(self.graph.outputs)):
            if self._can_be_packed(value):
                name, value.name = value.name, f"{value.name}/{TOKENS_AXIS}"
                padded = self._with_padding(self._without_masked(self._packed(value)))
                padded.name = name
                self.graph.outputs[index] = padded
        return count

    def _locate_tokens(self) -> None:
        """Computes the places (tokens, 2) of the needed tokens, as row and column.

        Also the mask as 0 and 1, and the shape (batch, sequence).
        """
        inputs = {value.name: value for value in self.graph.inputs}
        mask, ids = inputs[contract.ATTENTION_MASK], inputs[contract.INPUT_IDS]
        assert mask.shape is not None
        shape, boolean, int64 = list(mask.shape), ir.DataType.BOOL, ir.DataType.INT64
        mask = self._add("Cast", [mask], shape, boolean, to=boolean)
        self.mask = self._add("Cast", [mask], shape, to=int64)
        one, end = self._constant([1]), self._constant([TO_THE_END])
        rest = self._add("Slice", [self.mask, one, end, one], [shape[0], None])
        self.needed = self._add("Pad", [rest, self._constant([0, 1, 0, 0]), self._constant(1)], shape)
        places = self._add("NonZero", [self.needed], [2, TOKENS_AXIS])
        self.places = self._add("Transpose", [places], [TOKENS_AXIS, 2], perm=[1, 0])
        self.columns = self._add("Gather", [places, self._constant(1)], [TOKENS_AXIS], axis=0)
        self.shape = self._add("Shape", [ids], [2])

    def _first_tokens(self) -> ir.Value:
        """The place of each row's first token among the needed ones, as (batch, 1)."""

        def make() -> ir.Value:
            rows = [contract.BATCH_AXIS, 1]
            counts = self._add("ReduceSum", [self.needed, self._constant([1])], rows, keepdims=1)
            return self._add("CumSum", [counts, self._constant(0)], rows, exclusive=1)

        return self.editor.once("first tokens", make)

    def _rewrite(self, node: ir.Node) -> bool:
        """Rewrites a per-token node; returns whether the node is one."""
        if _reads_first_token(node) and node.inputs[0] in self.packed:
            return self._first_token(node)
        rewrite = self.per_token.get(node.op_type)
        return rewrite is not None and rewrite(node)

    def _first_token(self, node: ir.Node) -> bool:
        """x[:, 0] or x[:, :1]: the first token of each row, which is always computed."""
        x, result = node.inputs[0], node.outputs[0]
        assert x is not None and result.shape is not None
        places = self._first_tokens()
        if node.op_type == "Gather":
            rows, axes = [contract.BATCH_AXIS], self._constant([1])
            places = self.editor.once("first rows", lambda: self._add("Squeeze", [places, axes], rows))
        first = self._add("Gather", [x, places], list(result.shape), result.dtype, after=x, axis=0)
        self.editor.replace(node, first)
        return True

    def _lookup(self, node: ir.Node) -> bool:
        """Looks up the rows of a table for the needed tokens only."""
        table, ids = node.inputs
        if ids is None or node.attributes.get_int("axis", 0) != 0 or not _is_table(table):
            return False
        if not of_sequence(ids):
            return False
        node.replace_input_with(1, self._gathered(ids))
        return self._pack_results(node)

    def _product(self, node: ir.Node) -> bool:
        x = node.inputs[0]
        if x is None or not _is_table(node.inputs[1]) or not self._can_be_packed(x):
            return False
        node.replace_input_with(0, self._packed(x))
        return self._pack_results(node)

    def _integer_product(self, node: ir.Node) -> bool:
        is_packed = node.inputs[0] in self.packed and _is_table(node.inputs[1])
        return is_packed and self._pack_results(node)

    def _norm(self, node: ir.Node) -> bool:
        if node.inputs[0] not in self.packed or node.attributes.get_int("axis", -1) not in (-1, 2):
            return False
        node.attributes["axis"] = ir.AttrInt64("axis", -1)
        return self._pack_results(node)

    def _largest_of_each_token(self, node: ir.Node) -> bool:
        """The largest number of each token, by which int8 quantization divides."""
        if node.inputs[0] not in self.packed or node.attributes.get_int("keepdims", 1) != 1:
            return False
        axes = list(node.attributes.get_ints("axes", None) or ())
        return (axes == [-1] or is_constant(input_at(node, 1), [-1])) and self._pack_results(node)

    def _split(self, node: ir.Node) -> bool:
        """Parts of each token's channels, such as query, key and value."""
        if node.inputs[0] not in self.packed or node.attributes.get_int("axis", 0) not in (-1, 2):
            return False
        node.attributes["axis"] = ir.AttrInt64("axis", -1)
        return self._pack_results(node)

    def _elementwise(self, node: ir.Node) -> bool:
        first = node.inputs[0]
        # Quantizing the input of a dense layer to int8 begins with it.
        begins = node.op_type == "Abs" and first is not None and self._is_tokens(first)
        if not begins and not any(x in self.packed for x in node.inputs):
            return False
        if node.outputs[0].dtype == ir.DataType.BOOL:  # which Mul with the mask refuses
            return False
        operands = [None if x is None else self._packed_operand(x) for x in node.inputs]
        if any(x is None for x in operands):
            return False
        for index, x in enumerate(operands):
            node.replace_input_with(index, x)
        return self._pack_results(node)

    def _packed_operand(self, x: ir.Value) -> ir.Value | None:
        """An operand that broadcasts against (tokens, width); None if there is none."""
        if self._can_be_packed(x):
            return self._packed(x)
        if x.const_value is not None:
            sizes = x.const_value.shape.numpy()
            return x if len(sizes) <= 2 and all(size == 1 for size in sizes[:-1]) else None
        table = _table_of_positions(x)
        if table is None or table.shape is None:
            return None
        shape = [TOKENS_AXIS, table.shape[1]]
        return self.editor.once(
            ("positions", table),
            lambda: self._add("Gather", [table, self.columns], shape, table.dtype, axis=0),
        )

    def _product_between_reshapes(self, node: ir.Node) -> bool:
        """Reshape, Gemm, Reshape, by which a tied table scores tokens: the Gemm alone."""
        x, flat = node.inputs[0], node.outputs[0]
        gemm = _only_user(flat, "Gemm")
        back = None if gemm is None else _only_user(gemm.outputs[0], "Reshape")
        if gemm is None or back is None or gemm.inputs[0] is not flat or rank(flat) != 2:
            return False
        result = back.outputs[0]
        if x not in self.packed or not self._is_tokens(result) or result.is_graph_output():
            return False
        gemm.replace_input_with(0, x)
        self._pack_results(gemm)
        result.replace_all_uses_with(gemm.outputs[0])
        self.done |= {gemm, back}
        return True

    def _restore_padding(self, node: ir.Node) -> None:
        """Pads the inputs of a node that mixes tokens, and the values that its branches or loops read."""
        masked = _is_masked_attention(node)
        for index, x in enumerate(node.inputs):
            if x is not None and x in self.packed:
                padded = self._with_first_token(x) if masked and index < 3 else self._with_padding(x)
                node.replace_input_with(index, padded)
        for attribute in node.attributes.values():
            inner = attribute.as_graph().all_nodes() if attribute.type == ir.AttributeType.GRAPH else ()
            for reader in inner:
                for index, x in enumerate(reader.inputs):
                    if x is not None and x in self.packed:
                        reader.replace_input_with(index, self._with_padding(x))

    def _can_be_packed(self, x: ir.Value) -> bool:
        return x in self.packed or self._is_tokens(x)

    def _is_tokens(self, x: ir.Value) -> bool:
        """Whether a value is (batch, sequence, width)."""
        return x.const_value is None and x.dtype == ir.DataType.FLOAT and rank(x) == 3 and of_sequence(x)

    def _packed(self, x: ir.Value) -> ir.Value:
        return x if x in self.packed else self._gathered(x)

    def _pack_results(self, node: ir.Node) -> bool:
        """Notes that a node computes (tokens, width); returns True."""
        for x in node.outputs:
            assert x.shape is not None
            x.shape = ir.Shape([TOKENS_AXIS, x.shape[-1]])
            self.packed.add(x)
        return True

    def _gathered(self, x: ir.Value) -> ir.Value:
        """The elements of (batch, sequence, ...) at the needed tokens."""
        assert x.shape is not None
        shape = [TOKENS_AXIS, *x.shape[2:]]
        return self.editor.once(
            ("gathered", x), lambda: self._add("GatherND", [x, self.places], shape, x.dtype, after=x)
        )

    def _without_masked(self, x: ir.Value) -> ir.Value:
        """(tokens, width), zero where the mask excludes the first token of a row."""
        assert x.dtype is not None and x.shape is not None

        def ones() -> ir.Value:
            one = self._add("GatherND", [self.mask, self.places], [TOKENS_AXIS])
            one = self._add("Unsqueeze", [one, self._constant([1])], [TOKENS_AXIS, 1])
            return self._add("Cast", [one], [TOKENS_AXIS, 1], x.dtype, to=x.dtype)

        real = self.editor.once(("ones", x.dtype), ones)
        return self._add("Mul", [x, real], [TOKENS_AXIS, x.shape[1]], x.dtype, after=x)

    def _with_padding(self, x: ir.Value) -> ir.Value:
        """(tokens, width) as (batch, sequence, width), zero at the places that are not computed."""
        assert x.shape is not None
        width = x.shape[1]

        def zeros() -> ir.Value:
            sizes = self._add("Concat", [self.shape, self._constant([width])], [3], axis=0)
            assert x.dtype is not None
            zero = ir.tensor(np.zeros(1, x.dtype.numpy()))
            return self._add("ConstantOfShape", [sizes], [None, None, width], x.dtype, value=zero)

        def padded() -> ir.Value:
            inputs = [self.editor.once(("zeros", width, x.dtype), zeros), self.places, x]
            scattered = self._add("ScatterND", inputs, [None, None, width], x.dtype, after=x)
            # Without it, shape inference treats the width as unknown, and Attention's as 0.
            sizes = [contract.BATCH_AXIS, contract.SEQUENCE_AXIS, width]
            inputs = [scattered, self._constant([0, 0, width])]
            return self._add("Reshape", inputs, sizes, x.dtype, after=scattered)

        return self.editor.once(("padded", x), padded)

    def _with_first_token(self, x: ir.Value) -> ir.Value:
        """(tokens, width) as (batch, sequence, width), with the first token of its row at all other places.

        A token of another row might be NaN, and NaN times a weight of zero is NaN.
        """

        def slots() -> ir.Value:
            count = self._add("Squeeze", [self._add("Shape", [self.columns], [1])], [])
            order = self._add("Range", [self._constant(0), count, self._constant(1)], [TOKENS_AXIS])
            shape = [contract.BATCH_AXIS, contract.SEQUENCE_AXIS]
            firsts = self._add("Expand", [self._first_tokens(), self.shape], shape)
            return self._add("ScatterND", [firsts, self.places, order], shape)

        def gathered() -> ir.Value:
            assert x.shape is not None
            shape = [contract.BATCH_AXIS, contract.SEQUENCE_AXIS, x.shape[1]]
            inputs = [x, self.editor.once("slots", slots)]
            return self._add("Gather", inputs, shape, x.dtype, after=x, axis=0)

        return self.editor.once(("with first token", x), gathered)

    def _constant(self, numbers: Any) -> ir.Value:
        return self.editor.constant(numbers, "int64")

    def _add(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        shape: Sequence[Any],
        dtype: ir.DataType | None = ir.DataType.INT64,
        after: ir.Value | None = None,
        **attributes: Any,
    ) -> ir.Value:
        """A node before all original ones, or behind the one that computes `after`."""
        before = self.first if after is None or after.producer() is None else None
        name = f"unpad/{op_type}"
        outputs = [(dtype, shape)]
        return self.editor.add(op_type, inputs, outputs, before=before, after=after, name=name, **attributes)


def _reads_first_token(node: ir.Node) -> bool:
    """Whether a node is x[:, 0] or x[:, :1] of (batch, sequence, width)."""
    if rank(input_at(node, 0)) not in (2, 3):  # 2 if it is packed
        return False
    if node.op_type == "Gather":
        return node.attributes.get_int("axis", 0) == 1 and is_constant(node.inputs[1], 0)
    if node.op_type != "Slice" or len(node.inputs) not in (4, 5):
        return False
    return all(map(is_constant, node.inputs[1:], ([0], [1], [1], [1])))


def _is_masked_attention(node: ir.Node) -> bool:
    return node.op_type == "Attention" and input_at(node, 3) is not None


def _is_table(x: ir.Value | None) -> bool:
    """Whether a value is a weight with two axes."""
    return x is not None and x.is_initializer() and rank(x) == 2


def _table_of_positions(x: ir.Value) -> ir.Value | None:
    """The table of which a value is the first rows, one for each column; None if it is not such a slice."""
    node = x.producer()
    if node is None or node.op_type != "Slice" or not _is_table(node.inputs[0]) or len(node.inputs) != 4:
        return None
    return node.inputs[0] if is_constant(node.inputs[1], [0]) and is_constant(node.inputs[3], [0]) else None


def _only_user(x: ir.Value, op_type: str) -> ir.Node | None:
    """The node that alone uses a value, if it is of this type."""
    if not has_one_use(x):
        return None
    (use,) = x.uses()
    return use.node if use.node.op_type == op_type else None
