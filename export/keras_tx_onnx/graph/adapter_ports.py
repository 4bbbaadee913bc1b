"""Adapter ports: optional inputs with which a client adds an adapter (LoRA) to the weights of a graph.

A weight W that multiplies x gets the inputs A and B, and the graph computes x W + (x A) B. Their defaults are
zeros of rank 1, because OpenVINO refuses empty ones, and any rank is accepted. Weights that an adapter
replaces as a whole, such as those of a head, become optional inputs themselves.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import SOURCE, GraphContext, Source

A, B = "lora_A", "lora_B"
REMEDY = "Merge the adapter: load it with keras_tx.load_adapter, and export without adapters=."


@dataclasses.dataclass(frozen=True)
class LowRankValues:
    """The matrices of an adapter for one Keras variable: the product of `a` and `b` is added to its kernel.

    Attributes:
        a: (inputs, rank), with all axes of the variable but the last as one.
        b: (rank, outputs), with the factor of the adapter.
    """

    a: np.ndarray
    b: np.ndarray


class AdapterPorts:
    """The adapter ports of a graph.

    Args:
        context: the lowered graph.
        adapted: the variables to which adapters add a product.
        replaced: the variables that adapters replace.

    Raises:
        ExportError: if the graph uses a variable in a way that a client cannot change.
    """

    def __init__(self, context: GraphContext, adapted: Sequence[Any], replaced: Sequence[Any]):
        self._context = context
        self._low_rank: dict[str, Source] = {}  # by the path of the layer, which is a prefix of two ports
        self._replaced: dict[str, Source] = {}
        of_adapted, of_replaced = set(map(id, adapted)), set(map(id, replaced))
        for value, source in list(_weights(context.graph)):
            ids = set(map(id, source.variables))
            if ids & of_adapted:
                self._add_product(value, source)
            if ids & of_replaced:
                context.graph.inputs.append(value)
                self._replaced[str(value.name)] = source
        for variables, sources in ((adapted, self._low_rank), (replaced, self._replaced)):
            present = {id(x) for source in sources.values() for x in source.variables}
            for variable in variables:
                if id(variable) not in present:
                    raise ExportError(f"The graph has no weight for {variable.path!r} alone. {REMEDY}")

    def values(
        self, low_rank: Mapping[int, LowRankValues], replaced: Collection[int]
    ) -> dict[str, np.ndarray]:
        """The values of the ports for an adapter, by name. Ports that it does not use are left out.

        Args:
            low_rank: the matrices by the id of their variable.
            replaced: the ids of the variables that have the adapter's values at the moment.
        """
        values = {}
        for path, source in self._low_rank.items():
            if not low_rank.keys().isdisjoint(map(id, source.variables)):
                values[f"{path}/{A}"], values[f"{path}/{B}"] = _packed(source, low_rank)
        for name, source in self._replaced.items():
            if not set(replaced).isdisjoint(map(id, source.variables)):
                values[name] = np.ascontiguousarray(source.read(), "float32")
        return values

    def _add_product(self, weight: ir.Value, source: Source) -> None:
        uses = list(weight.uses())
        is_table = all(x.op_type == "Gather" and index == 0 for x, index in uses)
        is_kernel = all(x.op_type == "MatMul" and index == 1 for x, index in uses)
        matrices = source.matrices
        if matrices is None or not (is_kernel or (is_table and len(matrices) == 1)):
            operators = ", ".join(sorted({node.op_type for node, _ in uses}))
            raise ExportError(
                f"{source.variables[0].path!r} cannot have a separate adapter: the graph uses it as an input "
                f"of {operators}. {REMEDY}"
            )
        path = str(weight.name).rpartition("/")[0]
        rank = f"lora_rank_{len(self._low_rank)}"
        a = self._port(f"{path}/{A}", (matrices[0][0], 1), rank, axis=1)
        b = self._port(f"{path}/{B}", (1, sum(columns for _, columns in matrices)), rank, axis=0)
        self._low_rank[path] = source
        for node, _ in uses:
            self._add_to(node, a, b)

    def _port(self, name: str, shape: tuple[int, int], rank: str, axis: int) -> ir.Value:
        if name in self._context.graph.initializers:
            raise ExportError(f"Two weights of the graph would have the port {name!r}. {REMEDY}")
        value = self._context.initializer(name, np.zeros(shape, "float32"))
        sizes: list[int | str] = list(shape)
        sizes[axis] = rank
        value.shape = ir.Shape(sizes)
        self._context.graph.inputs.append(value)
        return value

    def _add_to(self, node: ir.Node, a: ir.Value, b: ir.Value) -> None:
        """Adds the product with the two matrices to the result of a MatMul or Gather."""
        (result,) = node.outputs
        add = self._context.add
        inputs = [a, *node.inputs[1:]] if node.op_type == "Gather" else [node.inputs[0], a]
        base = add(node.op_type, node.inputs, [(result.dtype, None)], before=node, **_attributes(node))
        low = add(node.op_type, inputs, [(result.dtype, None)], before=node, **_attributes(node))
        low = add("MatMul", [low, b], [(result.dtype, None)], before=node)
        total = add("Add", [base, low], [(result.dtype, None)], before=node)
        total.meta.update(result.meta)
        self._context.replace(node, total)


def _weights(graph: ir.Graph) -> Iterator[tuple[ir.Value, Source]]:
    for value in graph.initializers.values():
        if SOURCE in value.meta:
            yield value, value.meta[SOURCE]


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {name: attribute.value for name, attribute in node.attributes.items()}


def _packed(source: Source, low_rank: Mapping[int, LowRankValues]) -> tuple[np.ndarray, np.ndarray]:
    """The matrices of a weight that contains the columns of several variables: B is block-diagonal."""
    assert source.matrices is not None
    rows = source.matrices[0][0]
    columns = sum(count for _, count in source.matrices)
    a_parts, b_parts, start = [np.zeros((rows, 0), "float32")], [np.zeros((0, columns), "float32")], 0
    for variable, (_, count) in zip(source.variables, source.matrices, strict=True):
        values = low_rank.get(id(variable))
        if values is not None:
            # A kernel of several output axes has all but the last in A: the product is that of each of them.
            blocks = math.prod(variable.shape[:-1]) // rows
            a = values.a.reshape(rows, -1)  # (rows, blocks * rank)
            b = np.zeros((a.shape[1], columns), "float32")
            b[:, start : start + count] = np.kron(np.eye(blocks, dtype="float32"), values.b)
            a_parts.append(a)
            b_parts.append(b)
        start += count
    return np.concatenate(a_parts, axis=1), np.concatenate(b_parts, axis=0)
