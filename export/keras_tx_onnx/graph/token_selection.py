"""A model that reads one token, such as the class token, computes no other after its last attention.

Dense layers and norms compute each token from that token alone. So the selection moves up, through
feed-forward, residual sums and query, to where all tokens are needed: the keys and values. A selection inside
a branch or loop moves up in the same way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx_onnx.graph.editor import GraphEditor
from keras_tx_onnx.graph.integer_weights import INTEGERS
from keras_tx_onnx.graph.properties import (
    ELEMENTWISE,
    NORMS,
    TO_THE_END,
    array_of,
    has_one_use,
    input_at,
    is_standard,
    rank,
)


def select_tokens(model: ir.Model) -> int:
    """Moves the selection of one token up; the outputs stay the same, but for rounding.

    Shapes must be known.

    Returns:
        How many nodes compute that token alone.
    """
    moved, editor = 0, GraphEditor(model.graph)
    for node in list(model.graph.all_nodes()):
        index = _selected_token(node)
        if index is not None:
            moved += _Selection(editor, node, index).run()
    return moved


def _selected_token(node: ir.Node) -> int | None:
    """The index of the token that a Gather selects from (batch, tokens, width); None for any other node."""
    if node.op_type != "Gather" or node.attributes.get_int("axis", 0) != 1 or rank(node.inputs[0]) != 3:
        return None
    index = array_of(node.inputs[1])
    return None if index is None or index.ndim else int(index)


class _Selection:
    def __init__(self, editor: GraphEditor, gather: ir.Node, index: int):
        assert isinstance(gather.graph, ir.Graph)
        self.editor = editor
        self.graph = gather.graph
        self.gather = gather
        self.index = index
        self.one_token: dict[ir.Value, ir.Value] = {}  # the token of a value that has all

    def run(self) -> int:
        """Moves the selection up if that saves a product; returns how many nodes it passed."""
        moved = self._nodes_to_move()
        if not any(node.op_type == "MatMul" for node in moved):
            return 0
        results = {node.outputs[0] for node in moved}
        for node, operands in moved.items():
            for index in operands:
                x = node.inputs[index]
                assert x is not None
                if x not in results:
                    node.replace_input_with(index, self._select(x))
            if node.op_type == "Attention":
                self._select_mask(node)
            result = node.outputs[0]
            assert result.shape is not None
            result.shape = ir.Shape([result.shape[0], 1, result.shape[2]])
        self.gather.replace_input_with(1, self.editor.constant(0))
        return len(moved)

    def _nodes_to_move(self) -> dict[ir.Node, list[int]]:
        """The per-token nodes of which only the one token is read, in order, and their operands of tokens."""
        reads, moved = {(self.gather, 0)}, []
        nodes = list(self.graph)
        for node in reversed(nodes[: nodes.index(self.gather)]):
            result = node.outputs[0]
            uses = {(use.node, use.idx) for use in result.uses()}
            only_the_token = uses and uses <= reads and not result.is_graph_output()
            operands = _operands_of_tokens(node) if only_the_token else None
            if operands is not None:
                reads |= {(node, index) for index in operands}
                moved.append((node, operands))
        return dict(reversed(moved))

    def _select(self, x: ir.Value) -> ir.Value:
        """The token of a value of which other nodes read all, as (batch, 1, width)."""
        if x not in self.one_token:
            fused = _FusedProduct.of(x)
            self.one_token[x] = self._slice(x, 1) if fused is None else self._split_off(fused, x)
        return self.one_token[x]

    def _split_off(self, fused: _FusedProduct, x: ir.Value) -> ir.Value:
        """Computes the query, the first part of a fused product, by a separate product, for the token."""
        source, width, rest = fused.nodes[0].inputs[0], fused.widths[0], fused.widths[1:]
        assert source is not None and fused.whole.shape is not None
        query = self._select(source)
        for node in fused.nodes:
            weight = node.inputs[1]
            assert weight is not None
            first, others = self._divide(weight, width)
            shape = [fused.whole.shape[0], 1, width]
            query = self._add(node.outputs[0], node.op_type, [query, first], shape)
            node.replace_input_with(1, others)
            self.editor.remove_unused([weight])
            node.outputs[0].shape = ir.Shape([*list(fused.whole.shape)[:2], sum(rest)])
        x.replace_all_uses_with(query)
        self._remove_first_part(fused.split, rest)
        return query

    def _remove_first_part(self, split: ir.Node, widths: list[int]) -> None:
        outputs = [(part.dtype, part.shape) for part in split.outputs[1:]]
        inputs = [split.inputs[0], self.editor.constant(widths)]
        axis = split.attributes.get_int("axis", 0)
        first, *others = self.editor.add("Split", inputs, outputs, before=split, axis=axis)
        first.producer().name = split.name
        self.editor.replace(split, None, first, *others)

    def _divide(self, weight: ir.Value, count: int) -> tuple[ir.Value, ir.Value]:
        """The first columns of a weight, and the others, each as a weight."""
        assert weight.const_value is not None
        name, tensor = str(weight.name), weight.const_value
        *outer, columns = tensor.shape.numpy()

        def part(part: str, begin: int, end: int) -> ir.Value:
            new = name.replace("/qkv/", f"/{part}/") if "/qkv/" in name else f"{name}_{part}"
            shape = [*outer, end - begin]
            return self.editor.lazy_initializer(
                new,
                tensor.dtype,
                shape,
                lambda: ir.tensor(np.ascontiguousarray(tensor.numpy()[..., begin:end])),
            )

        return part("query", 0, count), part("key_value", count, columns)

    def _select_mask(self, node: ir.Node) -> None:
        """Selects the row of the one query from a mask with a row for each."""
        mask = input_at(node, 3)
        if mask is None or mask.shape is None or mask.shape[-2] == 1:
            return
        if mask not in self.one_token:
            self.one_token[mask] = self._slice(mask, len(mask.shape) - 2)
        node.replace_input_with(3, self.one_token[mask])

    def _slice(self, x: ir.Value, axis: int) -> ir.Value:
        assert x.shape is not None
        end = TO_THE_END if self.index == -1 else self.index + 1
        numbers = [self.editor.constant([number]) for number in (self.index, end, axis)]
        shape = [1 if index == axis else size for index, size in enumerate(x.shape)]
        return self._add(x, "Slice", [x, *numbers], shape)

    def _add(
        self, after: ir.Value, op_type: str, inputs: Sequence[ir.Value], shape: Sequence[Any]
    ) -> ir.Value:
        """A node behind the one that computes `after`, and named after it.

        keras_tx.inspect removes nodes with the name "selected/Slice", to have the attention of all tokens.
        """
        producer = after.producer()
        layer = "" if producer is None else str(producer.name).rpartition("/")[0]
        return self.editor.add(
            op_type,
            inputs,
            [(inputs[0].dtype, shape)],
            after=after,
            graph=after.graph,
            name=f"{layer}/selected/{op_type}".lstrip("/"),
        )


@dataclasses.dataclass(frozen=True)
class _FusedProduct:
    """One product with a weight, and a bias, that a Split divides into query, key and value."""

    nodes: list[ir.Node]  # the product and the sum with the bias
    split: ir.Node

    @classmethod
    def of(cls, x: ir.Value) -> _FusedProduct | None:
        """The product whose first part is x, if it can be divided."""
        split = x.producer()
        if split is None or not _splits_width(split) or x is not split.outputs[0] or not has_one_use(x):
            return None
        nodes = []
        node = _only_producer(split.inputs[0])
        if node is not None and node.op_type == "Add":
            nodes.append(node)
            node = _only_producer(node.inputs[0])
        if node is None or node.op_type != "MatMul":
            return None
        product = cls([node, *nodes], split)
        columns = sum(product.widths)
        ranks = zip(product.nodes, (2, 1), strict=False)
        return product if all(_is_own(node.inputs[1], rank, columns) for node, rank in ranks) else None

    @property
    def whole(self) -> ir.Value:
        """Query, key and value before the Split."""
        return self.nodes[-1].outputs[0]

    @property
    def widths(self) -> list[int]:
        widths = array_of(self.split.inputs[1])
        assert widths is not None
        return widths.tolist()


def _operands_of_tokens(node: ir.Node) -> list[int] | None:
    """The indices of the inputs with all tokens, for a per-token node; None for any other node."""
    result, first = node.outputs[0], input_at(node, 0)
    if not is_standard(node) or rank(result) != 3 or result.dtype != ir.DataType.FLOAT:
        return None
    if first is None or rank(first) != 3 or first.is_initializer():
        return None
    if node.op_type in ELEMENTWISE:
        has_tokens = [None if x is None else _has_tokens(x, result) for x in node.inputs]
        return None if None in has_tokens else [index for index, tokens in enumerate(has_tokens) if tokens]
    return [0] if _is_per_token(node) else None


def _is_per_token(node: ir.Node) -> bool:
    """Whether a node that is not elementwise computes each token of its first input from that token."""
    if node.op_type in NORMS:
        return node.attributes.get_int("axis", -1) in (-1, 2) and len(node.outputs) == 1
    if node.op_type == "MatMul":
        weight = node.inputs[1]
        return weight is not None and weight.is_initializer() and rank(weight) == 2
    return node.op_type == "Attention" and _attends_to_all(node)


def _has_tokens(x: ir.Value, result: ir.Value) -> bool | None:
    """Whether an operand has as many tokens as the result; None if that is unknown."""
    assert result.shape is not None
    if x.shape is None:
        return None
    tokens = list(x.shape)[-2:-1]
    if not tokens or tokens == [1]:
        return False
    same = rank(x) == 3 and x.const_value is None and tokens[0] == result.shape[1]
    return True if same and not _is_nameless(tokens[0]) else None


def _attends_to_all(node: ir.Node) -> bool:
    """Whether no query of an Attention depends on the others or on its place."""
    mask = input_at(node, 3)
    known = mask is None or (mask.const_value is None and _has_rows(mask, node.outputs[0]))
    past = any(x is not None for x in node.inputs[4:])
    return known and not past and len(node.outputs) == 1 and not node.attributes.get_int("is_causal", 0)


def _has_rows(mask: ir.Value, result: ir.Value) -> bool:
    """Whether a mask has one row for all queries, or certainly one for each."""
    assert result.shape is not None
    if mask.shape is None or len(mask.shape) < 2:
        return False
    rows = mask.shape[-2]
    return rows == 1 or (rows == result.shape[1] and not _is_nameless(rows))


def _is_nameless(size: int | ir.SymbolicDim) -> bool:
    return not isinstance(size, int) and size.value is None


def _splits_width(split: ir.Node) -> bool:
    """Whether a node divides the channels of tokens into three parts or more, of known sizes."""
    if split.op_type != "Split" or len(split.outputs) < 3 or rank(split.inputs[0]) != 3:
        return False
    known = split.attributes.get_int("axis", 0) in (-1, 2) and array_of(input_at(split, 1)) is not None
    return known and not any(part.is_graph_output() for part in split.outputs)


def _is_own(weight: ir.Value | None, rank: int, columns: int) -> bool:
    """Whether a weight with so many axes, and columns in the last, is used by one node only."""
    if weight is None or weight.const_value is None or not has_one_use(weight):
        return False
    if not weight.is_initializer() or weight.is_graph_input() or INTEGERS in weight.meta:
        return False
    sizes = weight.const_value.shape
    return len(sizes) == rank and sizes[-1] == columns


def _only_producer(x: ir.Value | None) -> ir.Node | None:
    return x.producer() if x is not None and has_one_use(x) else None
