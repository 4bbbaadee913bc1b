"""Moves regions of a graph from channels last to channels first, where that leaves fewer transpositions.

Convolutions, pooling and batch normalization are lowered between two transpositions. The nodes between two of
them, activations, sums, concatenations, padding, compute the same in either layout. So connected nodes are
gathered into regions, as large as possible, and a region changes its layout if more transpositions at its
border cancel than new ones are needed. Branches and loops have regions of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from keras_tx_onnx.graph.editor import GraphEditor
from keras_tx_onnx.graph.properties import ELEMENTWISE, array_of, input_at, permutation

REDUCTIONS = frozenset({"ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"})


def to_channels_first(model: ir.Model) -> int:
    """Converts regions of all ranks and graphs; shapes must be inferred before.

    Returns:
        How many transpositions cancelled.
    """
    editor = GraphEditor(model.graph)
    cancelled = 0
    for graph in model.graphs():
        ranks = {len(permutation(node)) for node in graph if node.op_type == "Transpose"}
        in_graph = 0
        for rank in sorted(rank for rank in ranks if rank >= 3):
            # A converted region leaves others that can be converted.
            while fewer := _convert_regions(_Layout(editor, graph, rank)):
                in_graph += fewer
        if in_graph:
            graph.sort()  # a transposition that is shared may stand behind a node that uses it now
        cancelled += in_graph
    return cancelled


def _convert_regions(layout: _Layout) -> int:
    """One rank of images in one graph: series, images, volumes."""
    cancelled = 0
    for region in _regions(layout):
        saved = region.saved_transposes()
        if saved > 0:
            region.convert()
            cancelled += saved
    return cancelled


class _Layout:
    """The two orders of the axes of images of one rank in one graph."""

    def __init__(self, editor: GraphEditor, graph: ir.Graph, rank: int):
        self.editor = editor
        self.graph = graph
        self.rank = rank
        # The axes of channels first in channels last, and the reverse.
        self.first = [0, rank - 1, *range(1, rank - 1)]
        self.last = [0, *range(2, rank), 1]

    def leads_first(self, node: ir.Node) -> bool:
        """Whether a node transposes to channels first, in this graph."""
        own = node.graph is self.graph
        return own and node.op_type == "Transpose" and permutation(node) == self.first

    def source(self, x: ir.Value) -> ir.Value | None:
        """The value that was transposed to channels last as x."""
        node = x.producer()
        if node is None or node.op_type != "Transpose" or permutation(node) != self.last:
            return None
        return node.inputs[0]

    def transposed(self, x: ir.Value) -> ir.Value | None:
        """x in channels first, if the graph already computes it."""
        return next((node.outputs[0] for node, _ in x.uses() if self.leads_first(node)), None)

    def to_first(self, x: ir.Value) -> ir.Value:
        return self.transpose(x, self.first, "channels_first")

    def to_last(self, x: ir.Value) -> ir.Value:
        return self.transpose(x, self.last, "channels_last")

    def transpose(self, x: ir.Value, order: list[int], name: str) -> ir.Value:
        assert x.shape is not None
        outputs = [(x.dtype, [x.shape[axis] for axis in order])]
        name = f"{x.name}/{name}"
        return self.editor.add("Transpose", [x], outputs, after=x, graph=self.graph, name=name, perm=order)

    def axis(self, axis: int) -> int:
        """An axis of channels last, in channels first."""
        return self.first.index(axis % self.rank)

    def is_image(self, x: ir.Value | None) -> bool:
        return x is not None and x.const_value is None and x.shape is not None and len(x.shape) == self.rank

    def constant(self, x: ir.Value) -> ir.Value:
        """A weight or constant that broadcasts against images, its axes reordered."""
        tensor = x.const_value
        assert tensor is not None
        shape = list(tensor.shape.numpy())
        if tensor.size == 1 and len(shape) <= 1:
            return x
        wide = [1] * (self.rank - len(shape)) + shape
        new = [wide[axis] for axis in self.first]
        while new[0] == 1 and len(new) > 1:
            del new[0]
        return self.editor.once(
            ("channels_first", x, self.rank),
            lambda: self.editor.lazy_initializer(
                f"{x.name}/channels_first",
                tensor.dtype,
                new,
                lambda: ir.tensor(
                    np.ascontiguousarray(tensor.numpy().reshape(wide).transpose(self.first).reshape(new))
                ),
            ),
        )

    def accepts(self, node: ir.Node) -> bool:
        """Whether a node can compute in either layout."""
        if node.domain or len(node.outputs) != 1:
            return False
        result = node.outputs[0]
        if not self.is_image(result):
            return self._drops_spatial_axes(node)
        if result.is_graph_output():
            return False
        if node.op_type in ELEMENTWISE:
            return all(self._broadcasts(x) for x in node.inputs if x is not None)
        return self.is_image(input_at(node, 0)) and self._has_known_axes(node)

    def _drops_spatial_axes(self, node: ir.Node) -> bool:
        """Whether a node reduces (b, ..., c) to (b, c), which is the same in either layout."""
        if node.op_type not in REDUCTIONS or _keeps_axes(node) or not self.is_image(input_at(node, 0)):
            return False
        return sorted(axis % self.rank for axis in _axes(node) or []) == list(range(1, self.rank - 1))

    def _broadcasts(self, x: ir.Value) -> bool:
        return self.is_image(x) or (x.const_value is not None and len(x.const_value.shape) <= self.rank)

    def _has_known_axes(self, node: ir.Node) -> bool:
        """Whether a node that computes along axes says along which."""
        if node.op_type == "Concat":
            return all(map(self.is_image, node.inputs))
        if node.op_type == "Pad":
            return array_of(node.inputs[1]) is not None and len(node.inputs) < 4
        if node.op_type == "Slice":
            return _axes(node) is not None
        return node.op_type in REDUCTIONS and _keeps_axes(node) and bool(_axes(node))


def _keeps_axes(node: ir.Node) -> bool:
    return node.attributes.get_int("keepdims", 1) == 1


def _axes(node: ir.Node) -> list[int] | None:
    """The axes of a Slice or a reduction, None if they are not constant."""
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints())
    axes = array_of(input_at(node, 3 if node.op_type == "Slice" else 1))
    return None if axes is None else axes.tolist()


@dataclasses.dataclass
class _Region:
    """Connected nodes that can compute in either layout, in the order of the graph."""

    layout: _Layout
    nodes: list[ir.Node]

    def __post_init__(self):
        self._members = set(self.nodes)
        images = (x for node in self.nodes for x in node.inputs if x is not None and self.layout.is_image(x))
        self.inputs = list(dict.fromkeys(x for x in images if x.producer() not in self._members))
        results = [node.outputs[0] for node in self.nodes]
        self.outputs = [y for y in results if self.layout.is_image(y) and self.users_outside(y)]

    def users_outside(self, x: ir.Value) -> list[tuple[ir.Node, int]]:
        return [(node, index) for node, index in x.uses() if node not in self._members]

    def saved_transposes(self) -> int:
        """How many fewer transpositions the graph has if the region changes its layout."""
        layout = self.layout
        saved = needed = 0
        for x in self.inputs:
            saved += layout.source(x) is not None and not self.users_outside(x) and not x.is_graph_output()
            needed += layout.source(x) is None and layout.transposed(x) is None
        for y in self.outputs:
            leads_first = {layout.leads_first(node) for node, _ in self.users_outside(y)}
            saved += True in leads_first
            needed += False in leads_first
        return saved - needed

    def convert(self) -> None:
        """Lets all nodes compute in channels first, between the transpositions that are needed."""
        layout = self.layout
        first = {x: layout.source(x) or layout.transposed(x) or layout.to_first(x) for x in self.inputs}
        for node in self.nodes:
            for index, x in enumerate(node.inputs):
                if x in first:
                    node.replace_input_with(index, first[x])
            _reorder(layout, node)
            y = node.outputs[0]
            if y.shape is not None and layout.is_image(y):
                y.shape = ir.Shape([y.shape[axis] for axis in layout.first])
                y.meta.clear()  # its KerasTensor has the other layout
        for x in self.inputs:
            if layout.source(x) is not None:
                _remove_if_unused(x)
        for y in self.outputs:
            self._connect(y)

    def _connect(self, y: ir.Value) -> None:
        """Connects a result to its users outside, which expect channels last unless they transpose."""
        others = []
        for node, index in self.users_outside(y):
            if self.layout.leads_first(node):
                _stand_in(self.layout, node, y)
            else:
                others.append((node, index))
        if others:
            back = self.layout.to_last(y)
            for node, index in others:
                node.replace_input_with(index, back)


def _stand_in(layout: _Layout, node: ir.Node, y: ir.Value) -> None:
    """Replaces the result of a node by y, also where it is an output of the graph."""
    old = node.outputs[0]
    if not old.is_graph_output():
        old.replace_all_uses_with(y)
        layout.graph.remove(node, safe=True)
        return
    if y.is_graph_output():  # it has a name already
        outputs = [(old.dtype, old.shape)]
        y = layout.editor.add("Identity", [y], outputs, after=y, graph=layout.graph, name=f"{node.name}/same")
    layout.editor.replace(node, y)


def _remove_if_unused(x: ir.Value) -> None:
    node = x.producer()
    if node is not None and isinstance(node.graph, ir.Graph) and not x.uses() and not x.is_graph_output():
        node.graph.remove(node, safe=True)


def _reorder(layout: _Layout, node: ir.Node) -> None:
    """Changes the axes of a node whose images have changed to channels first."""
    if node.op_type in ELEMENTWISE:
        for index, x in enumerate(node.inputs):
            if x is not None and x.const_value is not None:
                node.replace_input_with(index, layout.constant(x))
    elif node.op_type == "Concat":
        node.attributes["axis"] = ir.AttrInt64("axis", layout.axis(node.attributes["axis"].as_int()))
    elif node.op_type == "Pad":
        amounts = array_of(node.inputs[1])
        assert amounts is not None
        pads = amounts.reshape(2, layout.rank)[:, layout.first].ravel()
        node.replace_input_with(1, layout.editor.initializer(f"{node.name}/channels_first", pads))
    else:
        axes = np.array([layout.axis(axis) for axis in _axes(node) or []], "int64")
        if "axes" in node.attributes:
            node.attributes["axes"] = ir.AttrInt64s("axes", axes.tolist())
        else:
            index = 3 if node.op_type == "Slice" else 1
            node.replace_input_with(index, layout.editor.initializer(f"{node.name}/channels_first", axes))


def _regions(layout: _Layout) -> Iterator[_Region]:
    """The regions of a graph, one by one; constants and images from outside connect no nodes.

    The border of a region is computed when it is its turn, because converting another may have changed it.
    """
    group_of: dict[ir.Node, list[ir.Node]] = {}
    for node in layout.graph:
        if not layout.accepts(node):
            continue
        group_of[node] = [node]
        for x in node.inputs:
            before = None if x is None else x.producer()
            if before in group_of and layout.is_image(x):
                _merge(group_of, group_of[before], group_of[node])
    place = {node: index for index, node in enumerate(layout.graph)}
    for group in {id(group): group for group in group_of.values()}.values():
        yield _Region(layout, sorted(group, key=lambda node: place[node]))


def _merge(group_of: dict[ir.Node, list[ir.Node]], one: list[ir.Node], other: list[ir.Node]) -> None:
    if one is not other:
        small, large = sorted((one, other), key=len)
        large += small
        for node in small:
            group_of[node] = large
