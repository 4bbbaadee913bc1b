"""Moves regions of a graph from channels last to channels first, where that leaves fewer transpositions.

Convolutions, pooling and batch normalization are lowered between two transpositions. What lies between two
of them, activations, sums, concatenations, padding, computes the same in either layout. So such nodes are
gathered into regions, as large as they connect, and a region changes its layout if more transpositions at
its border fall away than new ones are needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

ELEMENTWISE = frozenset(
    "Abs Add And Cast Celu Clip Cos Div Elu Equal Erf Exp Gelu Greater GreaterOrEqual HardSigmoid HardSwish "
    "Identity LeakyRelu Less LessOrEqual Log Max Min Mish Mul Neg Not Or PRelu Pow Reciprocal Relu Selu "
    "Shrink Sigmoid Sin Softplus Softsign Sqrt Sub Swish Tanh ThresholdedRelu Where".split()
)
REDUCTIONS = frozenset({"ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"})


def to_channels_first(model: ir.Model) -> int:
    """Gives the number of transpositions that fell away. Shapes must have been inferred before."""
    graph = model.graph
    ranks = {len(_permutation(node)) for node in graph if node.op_type == "Transpose"}
    gone = 0
    for rank in sorted(rank for rank in ranks if rank >= 3):
        while fewer := _convert(graph, rank):  # a region that moved leaves others that can
            gone += fewer
    if gone:
        graph.sort()  # a transposition that is shared may stand behind a node that uses it now
    return gone


def _convert(graph: ir.Graph, rank: int) -> int:
    """One rank of images at a time: series, images, volumes."""
    layout = _Layout(graph, rank)
    gone = 0
    for region in _regions(graph, layout):
        inputs, outputs = region.border(layout)
        saved = sum(layout.source(x) is not None and region.holds_all_uses(x) for x in inputs)
        saved += sum(any(layout.leads_first(node) for node, _ in y.uses()) for y in outputs)
        needed = sum(layout.source(x) is None and layout.transposed(x) is None for x in inputs)
        needed += sum(any(not layout.leads_first(n) for n in region.users_outside(y)) for y in outputs)
        if saved > needed:
            region.convert(graph, layout, inputs, outputs)
            gone += saved - needed
    return gone


def _permutation(node: ir.Node) -> list[int]:
    return list(node.attributes["perm"].as_ints())


def _constant(x: ir.Value | None) -> np.ndarray | None:
    return None if x is None or x.const_value is None else x.const_value.numpy()


class _Layout:
    """The two orders of the axes of an image of one rank; nodes of branches are in graphs of their own."""

    def __init__(self, graph: ir.Graph, rank: int):
        self.graph = graph
        self.rank = rank
        # What the axes of channels first are in channels last, and the other way round.
        self.first = [0, rank - 1, *range(1, rank - 1)]
        self.last = [0, *range(2, rank), 1]
        self._constants: dict[ir.Value, ir.Value] = {}

    def leads_first(self, node: ir.Node) -> bool:
        own = node.graph is self.graph
        return own and node.op_type == "Transpose" and _permutation(node) == self.first

    def source(self, x: ir.Value) -> ir.Value | None:
        """What x was before it was transposed to channels last."""
        node = x.producer()
        if node is None or node.op_type != "Transpose" or _permutation(node) != self.last:
            return None
        return node.inputs[0]

    def transposed(self, x: ir.Value) -> ir.Value | None:
        """x in channels first, if the graph already computes it."""
        return next((node.outputs[0] for node, _ in x.uses() if self.leads_first(node)), None)

    def axis(self, axis: int) -> int:
        return self.first.index(axis % self.rank)

    def is_image(self, x: ir.Value) -> bool:
        return x.const_value is None and x.shape is not None and len(x.shape) == self.rank

    def constant(self, graph: ir.Graph, x: ir.Value) -> ir.Value:
        """A weight or constant that broadcasts against images, its axes reordered."""
        tensor = x.const_value
        assert tensor is not None
        shape = list(tensor.shape.numpy())
        if tensor.size == 1 and len(shape) <= 1:
            return x
        if x not in self._constants:
            wide = [1] * (self.rank - len(shape)) + shape
            new = [wide[axis] for axis in self.first]
            while new[0] == 1 and len(new) > 1:
                del new[0]
            name = _free(graph, f"{x.name}/channels_first")
            lazy = ir.LazyTensor(
                lambda: ir.tensor(tensor.numpy().reshape(wide).transpose(self.first).reshape(new), name=name),
                dtype=tensor.dtype,
                shape=ir.Shape(new),
                name=name,
            )
            self._constants[x] = _initializer(graph, name, lazy)
        return self._constants[x]


def _free(graph: ir.Graph, name: str) -> str:
    count, found = 0, name
    while found in graph.initializers:
        count += 1
        found = f"{name}_{count}"
    return found


def _initializer(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    value = ir.Value(
        name=name, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def _keeps_axes(node: ir.Node) -> bool:
    return "keepdims" not in node.attributes or node.attributes["keepdims"].as_int() == 1


def _absorbs(node: ir.Node, layout: _Layout) -> bool:
    """A reduction over all spatial axes that drops them gives (b, c) in either layout."""
    if node.op_type not in REDUCTIONS or _keeps_axes(node):
        return False
    return sorted(axis % layout.rank for axis in _axes(node) or []) == list(range(1, layout.rank - 1))


def _axes(node: ir.Node) -> list[int] | None:
    """The axes of a Slice or a reduction, None where they are not constant."""
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints())
    index = 3 if node.op_type == "Slice" else 1
    axes = _constant(node.inputs[index]) if len(node.inputs) > index else None
    return None if axes is None else axes.tolist()


def _joins(node: ir.Node, layout: _Layout) -> bool:
    """Whether a node can compute in either layout."""
    if node.domain or len(node.outputs) != 1:
        return False
    if not layout.is_image(node.outputs[0]):
        takes_image = bool(node.inputs) and node.inputs[0] is not None and layout.is_image(node.inputs[0])
        return takes_image and _absorbs(node, layout)
    if node.outputs[0].is_graph_output():
        return False
    if node.op_type in ELEMENTWISE:
        given = [x for x in node.inputs if x is not None]
        return all(
            layout.is_image(x) or (x.const_value is not None and len(x.const_value.shape) <= layout.rank)
            for x in given
        )
    if not node.inputs or node.inputs[0] is None or not layout.is_image(node.inputs[0]):
        return False
    if node.op_type == "Concat":
        return all(x is not None and layout.is_image(x) for x in node.inputs)
    if node.op_type == "Pad":
        return _constant(node.inputs[1]) is not None and len(node.inputs) < 4
    if node.op_type == "Slice":
        return _axes(node) is not None
    return node.op_type in REDUCTIONS and _keeps_axes(node) and bool(_axes(node))


@dataclasses.dataclass
class _Region:
    nodes: list[ir.Node]

    def __post_init__(self):
        self._members = set(self.nodes)

    def border(self, layout: _Layout) -> tuple[list[ir.Value], list[ir.Value]]:
        """The images that come in and those that somebody outside uses."""
        inputs = {
            x: None
            for node in self.nodes
            for x in node.inputs
            if x is not None and layout.is_image(x) and x.producer() not in self._members
        }
        outputs = {
            node.outputs[0]: None
            for node in self.nodes
            if layout.is_image(node.outputs[0]) and self.users_outside(node.outputs[0])
        }
        return list(inputs), list(outputs)

    def users_outside(self, x: ir.Value) -> list[ir.Node]:
        return [node for node, _ in x.uses() if node not in self._members]

    def holds_all_uses(self, x: ir.Value) -> bool:
        return not self.users_outside(x) and not x.is_graph_output()

    def convert(
        self, graph: ir.Graph, layout: _Layout, inputs: list[ir.Value], outputs: list[ir.Value]
    ) -> None:
        given: dict[ir.Value, ir.Value] = {}
        for x in inputs:
            given[x] = layout.source(x) or layout.transposed(x) or self._to_first(graph, layout, x)
        for node in self.nodes:
            for index, x in enumerate(node.inputs):
                if x in given:
                    node.replace_input_with(index, given[x])
            _reorder(graph, layout, node)
            y = node.outputs[0]
            if y.shape is not None and layout.is_image(y):
                y.shape = ir.Shape([y.shape[axis] for axis in layout.first])
                y.meta.clear()  # what Keras knows of it is about the other layout
        for x in inputs:
            if layout.source(x) is not None:
                _remove_if_unused(graph, x.producer())
        for y in outputs:
            others = [(node, i) for node, i in y.uses() if node not in self._members]
            kept = [(node, i) for node, i in others if not layout.leads_first(node)]
            for node, _ in others:
                if layout.leads_first(node):
                    _take_over(graph, node, y)
            if kept:
                back = _transpose(y, layout.last, f"{y.name}/channels_last")
                producer = y.producer()
                assert producer is not None
                graph.insert_after(producer, back)
                for node, index in kept:
                    node.replace_input_with(index, back.outputs[0])

    def _to_first(self, graph: ir.Graph, layout: _Layout, x: ir.Value) -> ir.Value:
        node = _transpose(x, layout.first, f"{x.name}/channels_first")
        producer = x.producer()
        if producer is None:
            graph.insert_before(graph[0], node)
        else:
            graph.insert_after(producer, node)
        return node.outputs[0]


def _take_over(graph: ir.Graph, node: ir.Node, y: ir.Value) -> None:
    """Lets y stand for the result of a node, also where that is an output of the graph."""
    before = node.outputs[0]
    for user, index in before.uses():
        user.replace_input_with(index, y)
    if before.is_graph_output():
        if y.is_graph_output():  # it has a name already
            same = ir.node("Identity", inputs=[y], name=f"{node.name}/same", outputs=[ir.Value()])
            graph.insert_after(node, same)
            y = same.outputs[0]
            y.type, y.shape = before.type, before.shape
        y.name, before.name = before.name, f"{before.name}/before"
        for index, output in enumerate(graph.outputs):
            if output is before:
                graph.outputs[index] = y
    graph.remove(node, safe=True)


def _remove_if_unused(graph: ir.Graph, node: ir.Node | None) -> None:
    if node is not None and not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
        graph.remove(node, safe=True)


def _transpose(x: ir.Value, order: list[int], name: str) -> ir.Node:
    assert x.shape is not None
    result = ir.Value(name=name, shape=ir.Shape([x.shape[axis] for axis in order]), type=x.type)
    return ir.node("Transpose", inputs=[x], attributes={"perm": order}, outputs=[result], name=name)


def _reorder(graph: ir.Graph, layout: _Layout, node: ir.Node) -> None:
    """Lets a node compute in channels first what it computed in channels last; its images are so already."""
    if node.op_type in ELEMENTWISE:
        for index, x in enumerate(node.inputs):
            if x is not None and x.const_value is not None:
                node.replace_input_with(index, layout.constant(graph, x))
    elif node.op_type == "Concat":
        node.attributes["axis"] = ir.AttrInt64("axis", layout.axis(node.attributes["axis"].as_int()))
    elif node.op_type == "Pad":
        amounts = _constant(node.inputs[1])
        assert amounts is not None
        pads = amounts.reshape(2, layout.rank)[:, layout.first].ravel()
        node.replace_input_with(1, _numbers(graph, node, pads))
    else:
        axes = np.array([layout.axis(axis) for axis in _axes(node) or []])
        if "axes" in node.attributes:
            node.attributes["axes"] = ir.AttrInt64s("axes", axes.tolist())
        else:
            node.replace_input_with(3 if node.op_type == "Slice" else 1, _numbers(graph, node, axes))


def _numbers(graph: ir.Graph, node: ir.Node, numbers: Iterable[int]) -> ir.Value:
    array = np.asarray(list(numbers), "int64")
    name = _free(graph, f"{node.name}/channels_first")
    return _initializer(graph, name, ir.tensor(array, name=name))


def _regions(graph: ir.Graph, layout: _Layout) -> list[_Region]:
    """Connected nodes that can compute in either layout, each region in the order of the graph.

    A node joins the regions of the images that it takes; a constant or an image from outside joins nothing.
    """
    region_of: dict[ir.Node, _Group] = {}
    for node in graph:
        if not _joins(node, layout):
            continue
        group = _Group([node])
        region_of[node] = group
        for x in node.inputs:
            before = None if x is None else x.producer()
            if before is not None and before in region_of and x is not None and layout.is_image(x):
                group = _merged(region_of, region_of[before], group)
    groups = {id(group): group for group in region_of.values()}
    place = {node: index for index, node in enumerate(graph)}
    return [_Region(sorted(group.nodes, key=lambda node: place[node])) for group in groups.values()]


@dataclasses.dataclass
class _Group:
    nodes: list[ir.Node]


def _merged(region_of: dict[ir.Node, _Group], one: _Group, other: _Group) -> _Group:
    if one is other:
        return one
    small, large = sorted((one, other), key=lambda group: len(group.nodes))
    large.nodes += small.nodes
    for node in small.nodes:
        region_of[node] = large
    return large
