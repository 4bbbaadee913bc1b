"""Runs per-token layers on the needed tokens only: (tokens, width) in place of (batch, sequence, width).

Needed are the real tokens and the first of each row, the class token, which pooled heads read even if the
mask excludes it. Embeddings, dense layers and norms compute these tokens only. Layers that mix tokens receive
zeros for all others, and outputs are zero where the mask is. Attention, whose mask excludes the others,
receives the first token of the row for them, which is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx import contract
from keras_tx_onnx.reading.symbolic_sizes import of_sequence

ELEMENTWISE = frozenset(
    "Abs Add Cast Clip Div Erf Gelu Identity Mul Pow Relu Round Sigmoid Sqrt Sub Tanh".split()
)
NORMS = ("LayerNormalization", "RMSNormalization")
TOKENS_AXIS = "tokens"  # how many tokens of a batch are computed
END = 2**62


def unpad(model: ir.Model) -> int:
    """Rewrites the graph of an encoder with the contract's inputs; returns how many nodes lost padding.

    The shapes of its values must be known: sizes_of_ids comes before.
    """
    return _Unpad(model.graph).run()


class _Unpad:
    def __init__(self, graph: ir.Graph):
        self.graph = graph
        self.nodes = list(graph)
        self.first = self.nodes[0]
        self.inputs = {value.name: value for value in graph.inputs}
        self.packed: set[ir.Value] = set()  # (tokens, width) already
        self.done: set[ir.Node] = set()
        self.made: dict[Any, ir.Value] = {}  # what was added, by what it is

    def run(self) -> int:
        self._find_tokens()
        count = 0
        for node in self.nodes:
            if node in self.done:
                continue
            if self._on_real_tokens(node):
                count += 1
            else:
                self._give_padding(node)
        for index, value in enumerate(list(self.graph.outputs)):
            if self._can_be_packed(value):
                name, value.name = value.name, f"{value.name}/{TOKENS_AXIS}"
                padded = self._with_padding(self._without_masked(self._packed(value)))
                padded.name = name
                self.graph.outputs[index] = padded
        return count

    def _find_tokens(self) -> None:
        """The places (tokens, 2) of the tokens that are computed, as row and column.

        Also the mask as 0 and 1, and the shape (batch, sequence).
        """
        mask, ids = self.inputs[contract.ATTENTION_MASK], self.inputs[contract.INPUT_IDS]
        assert mask.shape is not None
        shape, boolean, int64 = list(mask.shape), ir.DataType.BOOL, ir.DataType.INT64
        mask = self._add("Cast", [mask], shape, boolean, to=boolean)
        self.mask = self._add("Cast", [mask], shape, to=int64)
        one, end = self._constant("axes", [1]), self._constant("end", [END])
        rest = self._add("Slice", [self.mask, one, end, one], [shape[0], None])
        front = self._constant("pads", [0, 1, 0, 0])
        self.needed = self._add("Pad", [rest, front, self._constant("one", 1)], shape)
        places = self._add("NonZero", [self.needed], [2, TOKENS_AXIS])
        self.places = self._add("Transpose", [places], [TOKENS_AXIS, 2], perm=[1, 0])
        self.columns = self._add("Gather", [places, self._constant("one", 1)], [TOKENS_AXIS], axis=0)
        self.shape = self._add("Shape", [ids], [2])

    def _firsts(self) -> ir.Value:
        """Which of the tokens is the first of each row, as (batch, 1)."""

        def make() -> ir.Value:
            rows = [contract.BATCH_AXIS, 1]
            counts = self._add("ReduceSum", [self.needed, self._constant("axes", [1])], rows, keepdims=1)
            return self._add("CumSum", [counts, self._constant("zero", 0)], rows, exclusive=1)

        return self._once("firsts", make)

    def _on_real_tokens(self, node: ir.Node) -> bool:
        """Rewrites a per-token node; returns whether the node is one."""
        kind = node.op_type
        if _reads_first_token(node) and node.inputs[0] in self.packed:
            return self._first_token(node)
        if kind == "Gather":
            return self._lookup(node)
        if kind == "Reshape":
            return self._product_between_reshapes(node)
        if kind == "Split":
            return self._split(node)
        if kind in ELEMENTWISE:
            return self._elementwise(node)
        x = node.inputs[0] if node.inputs else None
        if x is None:
            return False
        if kind == "MatMul" and _is_table(node.inputs[1]) and self._can_be_packed(x):
            node.replace_input_with(0, self._packed(x))
        elif x not in self.packed:
            return False
        elif kind in NORMS and node.attributes.get_int("axis", -1) in (-1, 2):
            node.attributes["axis"] = ir.AttrInt64("axis", -1)
        elif not (kind == "MatMulInteger" and _is_table(node.inputs[1])) and not _is_largest_of_each(node):
            return False
        self._now_packed(node.outputs[0])
        return True

    def _first_token(self, node: ir.Node) -> bool:
        """x[:, 0] or x[:, :1]: the first token of each row, which is always computed."""
        x, result = node.inputs[0], node.outputs[0]
        assert x is not None and result.shape is not None
        places = self._firsts()
        if node.op_type == "Gather":
            rows = [contract.BATCH_AXIS]
            axes = self._constant("axes", [1])
            places = self._once("first rows", lambda: self._add("Squeeze", [self._firsts(), axes], rows))
        first = self._add("Gather", [x, places], list(result.shape), result.dtype, after=x, axis=0)
        if result.is_graph_output():
            first.name, result.name = result.name, first.name
        result.replace_all_uses_with(first, replace_graph_outputs=True)
        self.done.add(node)
        return True

    def _lookup(self, node: ir.Node) -> bool:
        """Looks up the rows of a table for the computed tokens only."""
        table, ids = node.inputs
        if (
            not _is_table(table)
            or ids is None
            or not of_sequence(ids)
            or node.attributes.get_int("axis", 0) != 0
        ):
            return False
        node.replace_input_with(1, self._gathered(ids))
        self._now_packed(node.outputs[0])
        return True

    def _elementwise(self, node: ir.Node) -> bool:
        first = node.inputs[0]
        # The first step of what quantizes the input of a dense layer.
        begins = node.op_type == "Abs" and first is not None and self._is_tokens(first)
        if not begins and not any(x in self.packed for x in node.inputs):
            return False
        fitting = [None if x is None else self._beside_packed(x) for x in node.inputs]
        if any(x is None for x in fitting):
            return False
        for index, x in enumerate(fitting):
            node.replace_input_with(index, x)
        self._now_packed(node.outputs[0])
        return True

    def _beside_packed(self, x: ir.Value) -> ir.Value | None:
        """An operand as it goes with (tokens, width); None where it does not."""
        if self._can_be_packed(x):
            return self._packed(x)
        if x.const_value is not None:
            sizes = x.const_value.shape.numpy()
            return x if len(sizes) <= 2 and all(size == 1 for size in sizes[:-1]) else None
        table = _table_of_positions(x)
        if table is None:
            return None
        return self._once(
            ("positions", table),
            lambda: self._add(
                "Gather", [table, self.columns], [TOKENS_AXIS, table.shape[1]], table.dtype, axis=0
            ),
        )

    def _split(self, node: ir.Node) -> bool:
        """Parts of each token's numbers, such as query, key and value."""
        if node.inputs[0] not in self.packed or node.attributes.get_int("axis", 0) not in (-1, 2):
            return False
        node.attributes["axis"] = ir.AttrInt64("axis", -1)
        for part in node.outputs:
            self._now_packed(part)
        return True

    def _product_between_reshapes(self, node: ir.Node) -> bool:
        """Reshape, Gemm, Reshape, which is how a tied table scores tokens: the Gemm alone."""
        x, flat = node.inputs[0], node.outputs[0]
        gemm, back = _only_use(flat), None
        if gemm is not None and gemm.op_type == "Gemm" and gemm.inputs[0] is flat:
            back = _only_use(gemm.outputs[0])
        if x not in self.packed or back is None or back.op_type != "Reshape" or _rank(flat) != 2:
            return False
        result = back.outputs[0]
        if gemm is None or not self._is_tokens(result) or result.is_graph_output():
            return False
        gemm.replace_input_with(0, x)
        self._now_packed(gemm.outputs[0])
        result.replace_all_uses_with(gemm.outputs[0])
        self.done |= {gemm, back}
        return True

    def _give_padding(self, node: ir.Node) -> None:
        for index, x in enumerate(node.inputs):
            if x is not None and x in self.packed:
                some = index < 3 and _leaves_out_padding(node)
                padded = self._with_some_token(x) if some else self._with_padding(x)
                node.replace_input_with(index, padded)

    def _can_be_packed(self, x: ir.Value) -> bool:
        return x in self.packed or self._is_tokens(x)

    def _is_tokens(self, x: ir.Value) -> bool:
        """Whether a value is (batch, sequence, width)."""
        return x.const_value is None and x.dtype == ir.DataType.FLOAT and _rank(x) == 3 and of_sequence(x)

    def _packed(self, x: ir.Value) -> ir.Value:
        return x if x in self.packed else self._gathered(x)

    def _now_packed(self, x: ir.Value) -> None:
        assert x.shape is not None
        x.shape = ir.Shape([TOKENS_AXIS, x.shape[-1]])
        self.packed.add(x)

    def _gathered(self, x: ir.Value) -> ir.Value:
        """The elements of (batch, sequence, ...) at the computed tokens."""
        assert x.shape is not None
        shape = [TOKENS_AXIS, *x.shape[2:]]
        return self._once(
            ("gathered", x), lambda: self._add("GatherND", [x, self.places], shape, x.dtype, after=x)
        )

    def _without_masked(self, x: ir.Value) -> ir.Value:
        """(tokens, width), zero where the mask excludes the first token of a row."""
        assert x.dtype is not None and x.shape is not None

        def ones() -> ir.Value:
            one = self._add("GatherND", [self.mask, self.places], [TOKENS_AXIS])
            one = self._add("Unsqueeze", [one, self._constant("axes", [1])], [TOKENS_AXIS, 1])
            return self._add("Cast", [one], [TOKENS_AXIS, 1], x.dtype, to=x.dtype)

        some = self._once(("ones", x.dtype), ones)
        return self._add("Mul", [x, some], [TOKENS_AXIS, x.shape[1]], x.dtype, after=x)

    def _with_padding(self, x: ir.Value) -> ir.Value:
        """(tokens, width) as (batch, sequence, width), zero at the places that are not computed."""
        assert x.shape is not None
        width = x.shape[1]

        def zeros() -> ir.Value:
            sizes = self._add("Concat", [self.shape, self._constant("width", [width])], [3], axis=0)
            assert x.dtype is not None
            zero = ir.tensor(np.zeros(1, x.dtype.numpy()))
            return self._add("ConstantOfShape", [sizes], [None, None, width], x.dtype, value=zero)

        def padded() -> ir.Value:
            inputs = [self._once(("zeros", width, x.dtype), zeros), self.places, x]
            scattered = self._add("ScatterND", inputs, [None, None, width], x.dtype, after=x)
            # Without it, shape inference takes the width for unknown and Attention for 0.
            same = self._constant("same", [0, 0, width])
            sizes = [contract.BATCH_AXIS, contract.SEQUENCE_AXIS, width]
            return self._add("Reshape", [scattered, same], sizes, x.dtype, after=scattered)

        return self._once(("padded", x), padded)

    def _with_some_token(self, x: ir.Value) -> ir.Value:
        """(tokens, width) as (batch, sequence, width), with the first token of its row at all other places.

        That of another row might be NaN, and NaN times a weight of zero is NaN.
        """

        def slots() -> ir.Value:
            count = self._add("Shape", [self.columns], [1])
            count = self._add("Squeeze", [count], [])
            zero, one = self._constant("zero", 0), self._constant("one", 1)
            order = self._add("Range", [zero, count, one], [TOKENS_AXIS])
            shape = [contract.BATCH_AXIS, contract.SEQUENCE_AXIS]
            firsts = self._add("Expand", [self._firsts(), self.shape], shape)
            return self._add("ScatterND", [firsts, self.places, order], shape)

        assert x.shape is not None
        shape = [contract.BATCH_AXIS, contract.SEQUENCE_AXIS, x.shape[1]]
        return self._once(
            ("filled", x),
            lambda: self._add("Gather", [x, self._once("slots", slots)], shape, x.dtype, after=x, axis=0),
        )

    def _once(self, key: Any, make: Any) -> ir.Value:
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def _constant(self, name: str, numbers: Any) -> ir.Value:
        array = np.asarray(numbers, "int64")
        name = f"unpad/{name}_{'x'.join(map(str, array.flat))}"

        def make() -> ir.Value:
            tensor = ir.tensor(array, name=name)
            value = ir.Value(
                name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
            )
            self.graph.register_initializer(value)
            return value

        return self._once(name, make)

    def _add(
        self,
        op_type: str,
        inputs: Sequence[ir.Value],
        shape: Sequence[Any],
        dtype: ir.DataType | None = ir.DataType.INT64,
        after: ir.Value | None = None,
        **attributes: Any,
    ) -> ir.Value:
        """A node before all others, or right behind the one that made `after`."""
        name = f"unpad/{op_type}_{len(self.made)}_{len(self.packed)}_{len(self.graph)}"
        value = ir.Value(name=name, shape=ir.Shape(shape))
        value.type = None if dtype is None else ir.TensorType(dtype)
        node = ir.node(op_type, inputs=inputs, attributes=attributes, outputs=[value], name=name)
        producer = None if after is None else after.producer()
        if producer is None:
            self.graph.insert_before(self.first, node)
        else:
            self.graph.insert_after(producer, node)
        return value


def _rank(x: ir.Value | None) -> int | None:
    return None if x is None or x.shape is None else len(x.shape)


def _reads_first_token(node: ir.Node) -> bool:
    """Whether a node is x[:, 0] or x[:, :1] of (batch, sequence, width)."""
    if _rank(node.inputs[0] if node.inputs else None) not in (2, 3):  # 2 where it is packed
        return False
    numbers = [x.const_value.numpy() for x in node.inputs[1:] if x is not None and x.const_value is not None]
    if len(numbers) < len(node.inputs) - 1:
        return False
    if node.op_type == "Gather":
        return node.attributes.get_int("axis", 0) == 1 and np.array_equal(numbers[0], 0)
    if node.op_type != "Slice" or len(numbers) not in (3, 4):
        return False
    return all(np.array_equal(x, y) for x, y in zip(numbers, ([0], [1], [1], [1]), strict=False))


def _leaves_out_padding(node: ir.Node) -> bool:
    """Whether a node is attention with a mask."""
    return node.op_type == "Attention" and len(node.inputs) > 3 and node.inputs[3] is not None


def _is_table(x: ir.Value | None) -> bool:
    """Whether a value is a weight with two axes."""
    return x is not None and x.is_initializer() and _rank(x) == 2


def _is_largest_of_each(node: ir.Node) -> bool:
    """Whether a node gives the largest number of each token, which quantizing divides by."""
    axes = node.attributes.get_ints("axes", None)
    if len(node.inputs) == 2 and node.inputs[1] is not None and node.inputs[1].const_value is not None:
        axes = node.inputs[1].const_value.numpy().tolist()
    kept = node.attributes.get_int("keepdims", 1) == 1
    return node.op_type == "ReduceMax" and kept and axes is not None and list(axes) == [-1]


def _table_of_positions(x: ir.Value) -> Any:
    """The table of which a value is the first rows, one for each column; None where it is none."""
    node = x.producer()
    if node is None or node.op_type != "Slice" or not _is_table(node.inputs[0]) or len(node.inputs) != 4:
        return None
    start, axes = node.inputs[1], node.inputs[3]
    zeros = all(
        value is not None and value.const_value is not None and value.const_value.numpy().tolist() == [0]
        for value in (start, axes)
    )
    return node.inputs[0] if zeros else None


def _only_use(x: ir.Value) -> ir.Node | None:
    users = [use.node for use in x.uses()]
    return users[0] if len(users) == 1 and not x.is_graph_output() else None
