"""The ONNX graph of a model with the inputs and outputs of an interface, and the names of its axes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from keras_tx import contract
from keras_tx_onnx.graph import passes
from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.graph.integer_weights import INTEGERS, store_integers
from keras_tx_onnx.graph.size_expressions import Expression
from keras_tx_onnx.interfaces.base import Interface, axis_names
from keras_tx_onnx.reading import functional_graph, symbolic_sizes
from keras_tx_onnx.reading.walk import lower


@dataclasses.dataclass(frozen=True)
class Exported:
    """A graph of an export, the context of its lowering, and the file to which it is written."""

    interface: Interface
    path: Path
    context: GraphContext
    model: ir.Model

    @property
    def specs(self) -> tuple[tuple[contract.TensorSpec, ...], tuple[contract.TensorSpec, ...]]:
        """The inputs and the outputs."""
        graph = self.context.graph
        required = (value for value in graph.inputs if not value.is_initializer())
        return tuple(map(_spec, required)), tuple(map(_spec, graph.outputs))


def recorded_options(interface: Interface) -> dict[str, Any]:
    """All options that shape a graph, as JSON values for the manifest."""
    options = interface.export_options()
    if interface.signature is not None:
        options["input_signature"] = interface.signature
    return options | ({"sizes": json.dumps(dict(interface.sizes))} if interface.sizes else {})


def _spec(value: ir.Value) -> contract.TensorSpec:
    assert value.name and value.shape is not None and value.dtype
    shape = tuple(n if isinstance(n, int) else str(n.value) for n in value.shape)
    return contract.TensorSpec(value.name, value.dtype.numpy().name, shape)


def graph_of(
    interface: Interface,
    model: Any,
    outputs: Sequence[str] | None = None,
    graph_passes: Sequence[passes.Pass] | None = None,
) -> tuple[GraphContext, ir.Model]:
    """Lowers a model to an ONNX graph.

    Args:
        interface: the interface of the graph.
        model: its model, or a probe with the same inputs.
        outputs: names of the model's outputs; by default those of the interface.
        graph_passes: passes over the graph; by default those of the interface.
    """
    function = functional_graph.function_of(model)
    context = GraphContext(function.name, interface.opset, interface.sizes)
    values = lower(context, function, interface.open(context))
    for value, name in zip(values, interface.outputs if outputs is None else outputs, strict=True):
        context.output(value, name)
    interface.close(context)
    if interface.add_ports is not None and outputs is None:
        interface.add_ports(context)
    graph = context.model()
    passes.simplify(graph, interface.passes if graph_passes is None else graph_passes)
    if any(INTEGERS in value.meta for value in context.graph.initializers.values()):
        store_integers(graph)
    _name_axes(context.graph)
    for value in context.graph.outputs:
        _name_unknown_axes(value)
    return context, graph


def _name_axes(graph: ir.Graph) -> None:
    """Names axes that shape inference could not trace, by their expressions over axes of inputs."""
    values = [value for node in graph for value in node.outputs if value.shape is not None]
    names = {
        id(value): [_axis_text(graph, n) for n in value.meta.get(symbolic_sizes.SIZES, ())]
        for value in values
    }
    renamed = {
        str(axis): name
        for value in values
        for name, axis in zip(names[id(value)], value.shape or (), strict=False)
        if name is not None and _is_nameless(axis) and not _is_empty(axis)
    }
    for value in values:
        value.shape = _named_shape(list(value.shape or ()), names[id(value)], renamed)


def _named_shape(shape: list[Any], names: list[str | None], renamed: dict[str, str]) -> ir.Shape:
    pairs = zip(shape, names or [None] * len(shape), strict=False)
    return ir.Shape([name if _is_empty(n) and name else renamed.get(str(n), n) for n, name in pairs])


def _axis_text(graph: ir.Graph, size: Any) -> str | None:
    """The expression of a size over the names of input axes; None if it has others, or is a number."""
    if not isinstance(size, Expression):
        return None
    names = {symbol: symbolic_sizes.axis_name(graph, symbol) for symbol in size.symbols()}
    return None if None in names.values() else size.text(names)


def _is_empty(axis: int | ir.SymbolicDim) -> bool:
    """Whether shape inference has no result, as after a Scan."""
    return isinstance(axis, ir.SymbolicDim) and axis.value is None


def _is_nameless(axis: int | ir.SymbolicDim) -> bool:
    """Whether a size has no name, or one that shape inference invented."""
    return _is_empty(axis) or (isinstance(axis, ir.SymbolicDim) and str(axis).startswith("unk__"))


def _name_unknown_axes(output: ir.Value) -> None:
    """Names the sizes of an output that are not traced to an input after the output."""
    assert output.shape is not None and output.name is not None
    known = [None if _is_nameless(n) else n for n in output.shape]
    names = axis_names([n if isinstance(n, int) else None for n in known], output.name)
    output.shape = ir.Shape([b if a is None else a for a, b in zip(known, names, strict=True)])
