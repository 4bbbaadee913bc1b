"""A model that answers from one token, such as the class token, computes no other after its last attention.

A dense layer or a norm gives one token the same, whether the others are there or not. So the selection moves
up, through feed-forward, residual sums and query, to where all tokens are needed: the keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx_onnx.graph.editor import Rewriter

ELEMENTWISE = frozenset(
    "Abs Add Clip Div Elu Erf Gelu Identity LeakyRelu Mish Mul Neg Pow Relu Sigmoid Softplus Sqrt Sub "
    "Tanh".split()
)
NORMS = ("LayerNormalization", "RMSNormalization")
END = 2**62


def select_tokens(model: ir.Model) -> int:
    """Moves the selection of one token up; gives how many nodes work on that token alone then.

    Shapes must be known. What the graph gives stays the same, but for rounding.
    """
    moved, rewriter = 0, Rewriter(model.graph)
    for node in list(model.graph):
        place = _selected(node)
        if place is not None:
            moved += _Selection(rewriter, node, place).run()
    return moved


def _selected(node: ir.Node) -> int | None:
    """Which token a Gather takes from (batch, tokens, width); None for any other node."""
    if node.op_type != "Gather" or node.attributes.get_int("axis", 0) != 1 or _rank(node.inputs[0]) != 3:
        return None
    place = None if node.inputs[1] is None else node.inputs[1].const_value
    return None if place is None or len(place.shape) else int(place.numpy())


class _Selection:
    def __init__(self, rewriter: Rewriter, gather: ir.Node, place: int):
        self.rewriter = rewriter
        self.graph = rewriter.graph
        self.gather = gather
        self.place = place
        self.moved: dict[ir.Node, list[int]] = {}  # in the order of the graph: which inputs are of tokens
        self.ones: dict[ir.Value, ir.Value] = {}  # the one token of a value that has all

    def run(self) -> int:
        self._find()
        if not any(node.op_type == "MatMul" for node in self.moved):
            return 0
        results = {node.outputs[0] for node in self.moved}
        for node, operands in self.moved.items():
            for index in operands:
                x = node.inputs[index]
                assert x is not None
                if x not in results:
                    node.replace_input_with(index, self._one(x))
            if node.op_type == "Attention":
                self._mask_of_one(node)
            result = node.outputs[0]
            assert result.shape is not None
            result.shape = ir.Shape([result.shape[0], 1, result.shape[2]])
        first = ir.tensor(np.int64(0), name=self.rewriter.unique("constant/int64_0"))
        self.gather.replace_input_with(1, self._stored(first))
        return len(self.moved)

    def _find(self) -> None:
        """What works on tokens, and is asked for nothing but the one, from the selection up."""
        taken, found = {(self.gather, 0)}, []
        nodes = list(self.graph)
        for node in reversed(nodes[: nodes.index(self.gather)]):
            result = node.outputs[0]
            uses = {(use.node, use.idx) for use in result.uses()}
            alone = uses and uses <= taken and not result.is_graph_output()
            operands = _operands(node) if alone else None
            if operands is not None:
                taken |= {(node, index) for index in operands}
                found.append((node, operands))
        self.moved = dict(reversed(found))

    def _one(self, x: ir.Value) -> ir.Value:
        """The token of a value of which others want all, as (batch, 1, width)."""
        if x not in self.ones:
            self.ones[x] = self._query(x) or self._slice(x, 1)
        return self.ones[x]

    def _query(self, x: ir.Value) -> ir.Value | None:
        """The query's own product, where one product gives query, key and value; that keeps the others."""
        split = x.producer()
        if split is None or not _splits_width(split) or x is not split.outputs[0] or len(x.uses()) != 1:
            return None
        add, product = None, _only_producer(split.inputs[0])
        if product is not None and product.op_type == "Add":
            add, product = product, _only_producer(product.inputs[0])
        if product is None or product.op_type != "MatMul":
            return None
        whole, counts = split.inputs[0], split.inputs[1]
        assert whole is not None and whole.shape is not None and product.inputs[0] is not None
        assert counts is not None and counts.const_value is not None
        sizes = counts.const_value.numpy().tolist()
        parts = [(product, 2)] if add is None else [(product, 2), (add, 1)]
        if not all(_is_own(part.inputs[1], rank, sum(sizes)) for part, rank in parts):
            return None
        query = self._one(product.inputs[0])
        for part, _ in parts:
            weight = part.inputs[1]
            assert weight is not None
            first, rest = self._divided(weight, sizes[0])
            query = self._add(part, part.op_type, [query, first], [whole.shape[0], 1, sizes[0]])
            part.replace_input_with(1, rest)
            self.rewriter.forget([weight])
            part.outputs[0].shape = ir.Shape([*whole.shape[:2], sum(sizes[1:])])
        x.replace_all_uses_with(query)
        self._without_first(split, sizes[1:])
        return query

    def _without_first(self, split: ir.Node, sizes: list[int]) -> None:
        old = list(split.outputs)
        new = [ir.Value(type=x.type, shape=x.shape) for x in old[1:]]
        inputs = [split.inputs[0], self._constant(sizes)]
        node = ir.node("Split", inputs, dict(split.attributes), name=split.name, outputs=new)
        self.graph.insert_before(split, node)
        for before, after in zip(old[1:], new, strict=True):
            before.replace_all_uses_with(after)
            after.name, before.name = before.name, None
        self.graph.remove(split, safe=True)

    def _divided(self, weight: ir.Value, count: int) -> tuple[ir.Value, ir.Value]:
        """The first columns of a weight, and the others, each as a weight."""
        assert weight.const_value is not None
        name, tensor = str(weight.name), weight.const_value
        shape = tensor.shape.numpy()

        def part(name: str, begin: int, end: int) -> ir.Value:
            def read() -> Any:
                return ir.tensor(np.ascontiguousarray(tensor.numpy()[..., begin:end]), name=name)

            sizes = ir.Shape([*shape[:-1], end - begin])
            lazy = ir.LazyTensor(read, dtype=tensor.dtype, shape=sizes, name=name)
            return self._stored(lazy)

        names = [
            self.rewriter.unique(name.replace("/qkv/", f"/{part}/") if "/qkv/" in name else f"{name}_{part}")
            for part in ("query", "key_value")
        ]
        return part(names[0], 0, count), part(names[1], count, shape[-1])

    def _mask_of_one(self, node: ir.Node) -> None:
        """The row of the mask for the one query, where each has its own."""
        mask = node.inputs[3] if len(node.inputs) > 3 else None
        if mask is None or mask.shape is None or mask.shape[-2] == 1:
            return
        if mask not in self.ones:
            self.ones[mask] = self._slice(mask, len(mask.shape) - 2)
        node.replace_input_with(3, self.ones[mask])

    def _slice(self, x: ir.Value, axis: int) -> ir.Value:
        assert x.shape is not None
        end = END if self.place == -1 else self.place + 1
        numbers = [self._constant([number]) for number in (self.place, end, axis)]
        sizes = [1 if index == axis else size for index, size in enumerate(x.shape)]
        return self._add(x.producer(), "Slice", [x, *numbers], sizes)

    def _stored(self, tensor: Any) -> ir.Value:
        kind = ir.TensorType(tensor.dtype)
        value = ir.Value(name=tensor.name, shape=tensor.shape, type=kind, const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def _constant(self, numbers: list[int]) -> ir.Value:
        return self.rewriter.constant(numbers, "int64")

    def _add(
        self, after: ir.Node | None, op_type: str, inputs: Sequence[ir.Value | None], shape: Any, **more: Any
    ) -> ir.Value:
        """A node right behind another, or in front of all."""
        layer = "" if after is None else str(after.name).rpartition("/")[0]
        name = self.rewriter.unique(f"{layer}/selected/{op_type}".lstrip("/"))
        first = inputs[0]
        assert first is not None
        value = ir.Value(name=name, shape=ir.Shape(list(shape)), type=first.type)
        node = ir.node(op_type, inputs, more, name=name, outputs=[value])
        if after is None:
            self.graph.insert_before(self.graph[0], node)
        else:
            self.graph.insert_after(after, node)
        return value


def _operands(node: ir.Node) -> list[int] | None:
    """Which inputs are of tokens, where a node gives each token by itself; None where it does not."""
    kind, result = node.op_type, node.outputs[0]
    if node.domain not in ("", "ai.onnx") or _rank(result) != 3 or result.dtype != ir.DataType.FLOAT:
        return None
    first = node.inputs[0] if node.inputs else None
    if first is None or _rank(first) != 3 or first.is_initializer():
        return None
    if kind in ELEMENTWISE:
        kinds = [None if x is None else _beside(x, result) for x in node.inputs]
        return None if None in kinds else [index for index, tokens in enumerate(kinds) if tokens]
    if kind in NORMS:
        last = node.attributes.get_int("axis", -1) in (-1, 2)
        return [0] if last and len(node.outputs) == 1 else None
    if kind == "MatMul":
        weight = node.inputs[1]
        return [0] if weight is not None and weight.is_initializer() and _rank(weight) == 2 else None
    return [0] if kind == "Attention" and _sees_all(node) else None


def _beside(x: ir.Value, result: ir.Value) -> bool | None:
    """Whether an operand has as many tokens as the result; None where nobody knows what it does to one."""
    assert result.shape is not None
    if x.shape is None:
        return None
    tokens = list(x.shape)[-2:-1]
    if not tokens or tokens == [1]:
        return False
    known = _rank(x) == 3 and x.const_value is None and tokens[0] == result.shape[1]
    return True if known and not _is_nameless(tokens[0]) else None


def _sees_all(node: ir.Node) -> bool:
    """Attention whose queries have nothing to do with each other or with their places."""
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    known = mask is None or (mask.const_value is None and _has_rows(mask, node.outputs[0]))
    past = any(x is not None for x in node.inputs[4:])
    return known and not past and len(node.outputs) == 1 and not node.attributes.get_int("is_causal", 0)


def _has_rows(mask: ir.Value, result: ir.Value) -> bool:
    """Whether a mask has one row for all queries, or surely one for each."""
    assert result.shape is not None
    if mask.shape is None or len(mask.shape) < 2:
        return False
    rows = mask.shape[-2]
    return rows == 1 or (rows == result.shape[1] and not _is_nameless(rows))


def _is_nameless(size: int | ir.SymbolicDim) -> bool:
    return not isinstance(size, int) and size.value is None


def _splits_width(split: ir.Node) -> bool:
    """Whether a node divides each token's numbers into query, key and value, or more, of known sizes."""
    if split.op_type != "Split" or len(split.outputs) < 3 or _rank(split.inputs[0]) != 3:
        return False
    if split.attributes.get_int("axis", 0) not in (-1, 2) or len(split.inputs) < 2:
        return False
    counts = split.inputs[1]
    known = counts is not None and counts.const_value is not None
    return known and not any(part.is_graph_output() for part in split.outputs)


def _is_own(weight: ir.Value | None, rank: int, columns: int) -> bool:
    """Whether a weight with so many axes, and columns in the last, is there for one node."""
    if weight is None or not weight.is_initializer() or weight.is_graph_input() or weight.is_graph_output():
        return False
    if weight.const_value is None or len(weight.uses()) != 1:
        return False
    sizes = weight.const_value.shape
    return len(sizes) == rank and sizes[-1] == columns


def _only_producer(x: ir.Value | None) -> ir.Node | None:
    return x.producer() if x is not None and len(x.uses()) == 1 and not x.is_graph_output() else None


def _rank(x: ir.Value | None) -> int | None:
    return None if x is None or x.shape is None else len(x.shape)
