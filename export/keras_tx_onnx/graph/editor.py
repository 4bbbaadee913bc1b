"""Adding nodes and weights to a graph that was read from a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

Inputs = Sequence[ir.Value | None]
Outputs = Sequence[tuple[ir.DataType, Any]]


class Rewriter:
    """Adds nodes in front of one that is there; every name is new, and shapes and dtypes are written down.

    Quantizers, viewers and checkers lose the shapes behind operators of other domains where no value_info
    says them.
    """

    def __init__(self, graph: ir.Graph):
        self.graph = graph
        self._names = {node.name for node in graph} | set(graph.initializers)
        self._names |= {value.name for node in graph for value in node.outputs}
        self._names |= {value.name for value in graph.inputs}
        self._made: dict[Any, Any] = {}

    def unique(self, name: str) -> str:
        stem, count = name, 0
        while name in self._names:
            count += 1
            name = f"{stem}_{count}"
        self._names.add(name)
        return name

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, the first time; the same again for an equal key."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def weight(self, name: str, array: np.ndarray) -> ir.Value:
        name = self.unique(name)
        tensor = ir.tensor(np.asarray(array, order="C"), name=name)
        shape = ir.Shape(tensor.shape.numpy())
        value = ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def constant(self, array: Any, dtype: str) -> ir.Value:
        """A small constant, stored once."""
        array = np.asarray(array, dtype)
        shown = "x".join(map(str, array.shape)) if array.size != 1 else str(array.item())
        key = (dtype, array.shape, array.tobytes())
        return self.once(key, lambda: self.weight(f"constant/{dtype}_{shown}", array))

    def add(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Inputs,
        outputs: Outputs,
        domain: str = "",
        **attributes: Any,
    ) -> Any:
        """Adds a node in front of another, and names it after that.

        Args:
            before: the node.
            op_type: the operator.
            inputs: its values.
            outputs: dtype and shape of each of its results; None for a shape that is not known.
            domain: of the operator.
            attributes: of the node.

        Returns:
            The result, or several as a tuple.
        """
        layer = str(before.name).rpartition("/")[0]
        node = self._node(
            f"{layer}/{op_type}" if layer else op_type, op_type, inputs, outputs, domain, attributes
        )
        self.graph.insert_before(before, node)
        return node.outputs[0] if len(node.outputs) == 1 else tuple(node.outputs)

    def append(self, op_type: str, inputs: Inputs, outputs: Outputs, **attributes: Any) -> ir.Value:
        """Adds a node with one result behind all others."""
        node = self._node(op_type, op_type, inputs, outputs, "", attributes)
        self.graph.append(node)
        return node.outputs[0]

    def _node(
        self,
        name: str,
        op_type: str,
        inputs: Inputs,
        outputs: Outputs,
        domain: str,
        attributes: dict[str, Any],
    ) -> ir.Node:
        name = self.unique(name)
        values = []
        for index, (dtype, shape) in enumerate(outputs):
            given = self.unique(f"{name}.{index}") if len(outputs) > 1 else name
            known = None if shape is None else ir.Shape(list(shape))
            values.append(ir.Value(name=given, shape=known, type=ir.TensorType(dtype)))
        if domain:
            self.graph.opset_imports.setdefault(domain, 1)
        return ir.node(
            op_type, inputs=inputs, attributes=attributes, domain=domain, outputs=values, name=name
        )

    def replace(self, node: ir.Node, value: ir.Value) -> None:
        """Puts `value` in the place of what a node gives, under its name, and removes the node."""
        old = node.outputs[0]
        name = old.name
        old.replace_all_uses_with(value, replace_graph_outputs=True)
        self.graph.remove(node, safe=True)
        old.name = None
        value.name = name
        value.shape = value.shape if old.shape is None else old.shape

    def forget(self, values: Sequence[ir.Value]) -> None:
        """Removes weights that nobody uses any more."""
        for value in values:
            name = str(value.name)
            if not value.uses() and not value.is_graph_output() and name in self.graph.initializers:
                del self.graph.initializers[name]
