"""The nodes of a graph that can be quantized: products with a weight, and lookups in a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from keras_tx.errors import ConfigError, nearest
from keras_tx_onnx.graph.editor import CONSTANTS
from keras_tx_onnx.graph.first_call import nodes_with_cache
from keras_tx_onnx.graph.properties import input_at, is_standard

# Rounding the input of a smaller kernel costs more than the product saves: 64 x 64.
SMALLEST_KERNEL = 4096
SMALLEST_TABLE = 2**20  # a table that is not the kernel of a product: only its bytes count


@dataclasses.dataclass(frozen=True)
class Product:
    """MatMul(x, weight) or Gemm, whose weight may be transposed: (outer, inner)."""

    node: ir.Node
    x: ir.Value
    weight: ir.Value
    transposed: bool = False
    bias: ir.Value | None = None

    @property
    def layer(self) -> str:
        return layer_of(self.weight)

    @property
    def sizes(self) -> tuple[int, int]:
        """(inner, outer)"""
        first, second = _sizes(self.weight)
        return (second, first) if self.transposed else (first, second)

    @property
    def kernel(self) -> np.ndarray:
        """The weight as (inner, outer)."""
        array = weight_array(self.weight)
        return array.T if self.transposed else array


@dataclasses.dataclass(frozen=True)
class Lookup:
    """A Gather of rows of a table."""

    node: ir.Node
    table: ir.Value

    @property
    def layer(self) -> str:
        return layer_of(self.table)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The products and lookups to quantize; `kept` are the layers that stay in fp32 because of keep."""

    products: tuple[Product, ...]
    lookups: tuple[Lookup, ...]
    kept: tuple[str, ...] = ()

    @property
    def layers(self) -> list[str]:
        """In the order of the graph, each once."""
        return list(dict.fromkeys(part.layer for part in (*self.lookups, *self.products)))

    def weights(self) -> list[ir.Value]:
        return list(dict.fromkeys([*(p.weight for p in self.products), *(n.table for n in self.lookups)]))

    def tied(self) -> set[ir.Value]:
        """The tables that are kernels of products, too."""
        return {product.weight for product in self.products} & {lookup.table for lookup in self.lookups}

    def has(self, path: str) -> bool:
        """Whether a layer to quantize is below a path."""
        return any(_is_below(layer, path.rstrip("/")) for layer in self.layers)

    def without(self, keep: Iterable[str]) -> Plan:
        """The plan without the layers below the paths of `keep`; raises a ConfigError if one matches none."""
        keep = [path.rstrip("/") for path in keep]
        for path in keep:
            if not self.has(path):
                raise ConfigError(
                    f"keep has {path!r}, which is no layer that would be quantized. "
                    f"{nearest(path, self.layers)}"
                )
        fp32_layers = tuple(layer for layer in self.layers if any(_is_below(layer, path) for path in keep))
        return Plan(
            tuple(product for product in self.products if product.layer not in fp32_layers),
            tuple(lookup for lookup in self.lookups if lookup.layer not in fp32_layers),
            fp32_layers,
        )


def tied_notes(plan: Plan) -> list[str]:
    """The notes of a report about tied tables."""
    layers = dict.fromkeys(lookup.layer for lookup in plan.lookups if lookup.table in plan.tied())
    return [f"The table of {layer} is looked up and multiplied with, and stored once." for layer in layers]


def layer_of(weight: ir.Value) -> str:
    """The path of the layer that a weight belongs to; weights are named after Keras variables."""
    path, _, name = str(weight.name).rpartition("/")
    return path or name


def weight_array(weight: ir.Value) -> np.ndarray:
    """The numbers of a weight."""
    assert weight.const_value is not None
    return weight.const_value.numpy()


def plan(graph: ir.Graph, keep: Iterable[str] = ()) -> Plan:
    """The large products and tables; raises a ConfigError if a path of `keep` matches none of them."""
    products = [
        p
        for p in map(_product, nodes_with_cache(graph))
        if p is not None and _count(p.weight) >= SMALLEST_KERNEL
    ]
    kernels = {product.weight for product in products}
    lookups = [lookup for lookup in map(_lookup, nodes_with_cache(graph)) if lookup is not None]
    lookups = [x for x in lookups if x.table in kernels or _count(x.table) >= SMALLEST_TABLE]
    free = _free_weights(products, lookups)
    whole = Plan(
        tuple(product for product in products if product.weight in free),
        tuple(lookup for lookup in lookups if lookup.table in free),
    )
    return whole.without(keep)


def _free_weights(products: list[Product], lookups: list[Lookup]) -> set[ir.Value]:
    """The weights without any other use.

    A table is not free if a product sums over its rows: its scales would be those of its columns.
    """
    tables = {lookup.table for lookup in lookups}
    unfit = {product.weight for product in products if not product.transposed} & tables
    unfit |= {lookup.table for lookup in lookups if lookup.node.outputs[0].shape is None}
    pairs = [*((p.node, p.weight) for p in products), *((x.node, x.table) for x in lookups)]
    known = {node for node, weight in pairs if weight not in unfit}
    return {weight for _, weight in pairs if known.issuperset(use.node for use in weight.uses())}


def layers_in_bodies(graph: ir.Graph) -> list[str]:
    """The layers with matrix products inside branches or loops, which `plan` leaves out."""
    planned = set(nodes_with_cache(graph))
    bodies = (node for body in graph.subgraphs() for node in body if node not in planned)
    products = map(_product, bodies)
    return list(dict.fromkeys(product.layer for product in products if product is not None))


def _is_below(layer: str, path: str) -> bool:
    return layer == path or layer.startswith(f"{path}/")


def _product(node: ir.Node) -> Product | None:
    if not is_standard(node) or node.op_type not in ("MatMul", "Gemm"):
        return None
    x, weight = node.inputs[0], node.inputs[1]
    if x is None or weight is None or not _is_kernel(weight) or x.const_value is not None:
        return None
    if node.op_type == "MatMul":
        return Product(node, x, weight)
    plain = all(node.attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta"))
    if not plain or node.attributes.get_int("transA", 0):
        return None
    return Product(node, x, weight, bool(node.attributes.get_int("transB", 0)), input_at(node, 2))


def _lookup(node: ir.Node) -> Lookup | None:
    if node.op_type != "Gather" or not is_standard(node) or node.inputs[0] is None:
        return None
    table = node.inputs[0]
    return Lookup(node, table) if _is_kernel(table) and node.attributes.get_int("axis", 0) == 0 else None


def _is_kernel(value: ir.Value) -> bool:
    """Whether a value is a float32 weight with two axes that no client can override.

    Constants are no weights: matrices that interpolate images, for example, whose rows have few numbers.
    """
    if str(value.name).startswith(f"{CONSTANTS}float32_"):
        return False
    if not value.is_initializer() or value.is_graph_input() or value.dtype != ir.DataType.FLOAT:
        return False
    return value.const_value is not None and len(value.const_value.shape) == 2


def _sizes(weight: ir.Value) -> tuple[int, int]:
    assert weight.const_value is not None
    first, second = weight.const_value.shape.numpy()
    return int(first), int(second)


def _count(weight: ir.Value) -> int:
    first, second = _sizes(weight)
    return first * second
