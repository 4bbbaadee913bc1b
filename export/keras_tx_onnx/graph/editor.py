"""Edits a graph: new nodes, weights and names, and replacements, also inside branches and loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

Inputs = Sequence[ir.Value | None]
Outputs = Sequence[tuple[ir.DataType | None, Any]]
T = TypeVar("T")

CONSTANTS = "constant/"  # before the names of constants, which begin with their dtype


class GraphEditor:
    """Adds, replaces and removes nodes and weights of a graph and of the graphs inside its nodes.

    Every new name is unique. New values have a dtype and a shape, because quantizers, viewers and checkers
    cannot infer them behind operators of other domains. Weights are stored in the outermost graph.

    Args:
        graph: the outermost graph.
    """

    def __init__(self, graph: ir.Graph):
        self.graph = graph
        self._names: set[str | None] = set()
        for part in (graph, *graph.subgraphs()):
            self._names |= set(part.initializers) | {value.name for value in part.inputs}
            for node in part:
                self._names |= {node.name, *(value.name for value in node.outputs)}
        self._made: dict[Any, Any] = {}

    def unique(self, name: str) -> str:
        """`name`, with a number behind it if it is in use. A final slash stays final."""
        stem, end = (name[:-1], "/") if name.endswith("/") else (name, "")
        count = 0
        while name in self._names:
            count += 1
            name = f"{stem}_{count}{end}"
        self._names.add(name)
        return name

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """The result of `make`, computed once for each key."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def initializer(self, name: str, array: np.ndarray) -> ir.Value:
        """Stores an array, under a name that is made unique."""
        name = self.unique(name)
        return self._register(ir.tensor(np.asarray(array, order="C"), name=name))

    def lazy_initializer(
        self, name: str, dtype: ir.DataType, shape: Sequence[int], read: Callable[[], ir.TensorProtocol]
    ) -> ir.Value:
        """Stores a tensor that `read` computes when the file is written, under a name that is made unique."""
        name = self.unique(name)
        return self._register(ir.LazyTensor(read, dtype=dtype, shape=ir.Shape(shape), name=name))

    def constant(self, value: Any, dtype: str | None = None) -> ir.Value:
        """A small constant; equal ones are stored once. By default floats are float32, integers int64."""
        array = np.asarray(value, dtype)
        if dtype is None and array.dtype.name != "bool":
            array = array.astype("int64" if array.dtype.kind in "iu" else "float32")
        shown = "x".join(map(str, array.shape)) if array.size != 1 else str(array.item())
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._made:
            self._made[key] = self.initializer(f"{CONSTANTS}{array.dtype.name}_{shown}", array)
        return self._made[key]

    def _register(self, tensor: ir.TensorProtocol) -> ir.Value:
        return ir.tape.Tape(self.graph).initializer(tensor)

    def add(
        self,
        op_type: str,
        inputs: Inputs,
        outputs: Outputs,
        *,
        before: ir.Node | None = None,
        after: ir.Value | None = None,
        graph: ir.Graph | None = None,
        name: str | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> Any:
        """Adds a node: before a node, as soon as a value exists, or at the end of a graph.

        Args:
            op_type: the operator.
            inputs: its values.
            outputs: dtype and shape of each result; the shape is None if it is unknown.
            before: the node in front of which to add.
            after: the value behind which to add; the node comes first if the graph does not compute it.
            graph: with `after`, or at the end: the graph to add to; by default the outermost.
            name: of the node; by default the operator, behind the layer's path of `before`.
            domain: of the operator.
            **attributes: of the node.

        Returns:
            The result; several as a tuple.
        """
        if name is None:
            layer = "" if before is None else str(before.name).rpartition("/")[0]
            name = f"{layer}/{op_type}" if layer else op_type
        name = self.unique(name)
        names = [name] if len(outputs) == 1 else [self.unique(f"{name}.{i}") for i in range(len(outputs))]
        values = [
            ir.Value(
                name=name,
                shape=None if shape is None else ir.Shape(list(shape)),
                type=None if dtype is None else ir.TensorType(dtype),
            )
            for name, (dtype, shape) in zip(names, outputs, strict=True)
        ]
        if domain:
            self.graph.opset_imports.setdefault(domain, 1)
        node = ir.node(op_type, inputs, attributes, domain=domain, outputs=values, name=name)
        _insert(node, before, after, self.graph if graph is None else graph)
        return values[0] if len(values) == 1 else tuple(values)

    def replace(self, node: ir.Node, *values: ir.Value | None) -> None:
        """Removes a node and replaces its results, which keep their names; None for one without uses."""
        pairs = [(old, new) for old, new in zip(node.outputs, values, strict=True) if new is not None]
        graph, (old, new) = node.graph, zip(*pairs, strict=True)
        assert isinstance(graph, ir.Graph)
        ir.convenience.replace_nodes_and_values(graph, node, [node], [], old, new)

    def remove_unused(self, weights: Iterable[ir.Value]) -> None:
        """Removes those of some weights that no node uses."""
        for value in weights:
            name = str(value.name)
            if not value.uses() and not value.is_graph_output() and name in self.graph.initializers:
                del self.graph.initializers[name]


def _insert(node: ir.Node, before: ir.Node | None, after: ir.Value | None, graph: ir.Graph) -> None:
    if before is not None:
        assert isinstance(before.graph, ir.Graph)
        before.graph.insert_before(before, node)
    elif after is None or not len(graph):
        graph.append(node)
    elif (producer := after.producer()) is not None and producer.graph is graph:
        graph.insert_after(producer, node)
    else:
        graph.insert_before(graph[0], node)
