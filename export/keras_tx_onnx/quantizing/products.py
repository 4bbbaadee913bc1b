"""What there is to quantize in a graph: products with a weight, and tables that are looked up."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from keras_tx.errors import ConfigError, nearest

# A smaller kernel costs more to round its input than it saves: 64 x 64.
SMALLEST_KERNEL = 4096
SMALLEST_TABLE = 2**20  # a table that is not the kernel of a product: only its bytes count


@dataclasses.dataclass(frozen=True)
class Product:
    """MatMul(x, weight), or a Gemm, whose weight may be turned: (outer, inner)."""

    node: ir.Node
    x: ir.Value
    weight: ir.Value
    turned: bool = False
    bias: ir.Value | None = None

    @property
    def layer(self) -> str:
        return layer_of(self.weight)

    @property
    def sizes(self) -> tuple[int, int]:
        """(inner, outer)"""
        first, second = _sizes(self.weight)
        return (second, first) if self.turned else (first, second)


@dataclasses.dataclass(frozen=True)
class Lookup:
    """Rows of a table, by a Gather."""

    node: ir.Node
    table: ir.Value

    @property
    def layer(self) -> str:
        return layer_of(self.table)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What of a graph is to be quantized; `kept` are the layers that could be and shall not."""

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
        """Tables that products multiply with too."""
        return {product.weight for product in self.products} & {lookup.table for lookup in self.lookups}


def stored_once(plan: Plan) -> list[str]:
    """What to say of tied tables."""
    layers = dict.fromkeys(lookup.layer for lookup in plan.lookups if lookup.table in plan.tied())
    return [f"The table of {layer} is looked up and multiplied with, and stored once." for layer in layers]


def layer_of(weight: ir.Value) -> str:
    """The path of the layer that a weight belongs to; weights are named after Keras variables."""
    path, _, name = str(weight.name).rpartition("/")
    return path or name


def numbers(weight: ir.Value) -> np.ndarray:
    """What a weight holds."""
    assert weight.const_value is not None
    return weight.const_value.numpy()


def plan(graph: ir.Graph, keep: Iterable[str] = ()) -> Plan:
    """Finds the products and tables that are large enough; raises where a path of `keep` names none."""
    keep = list(keep)
    products = [p for p in map(_product, graph) if p is not None and _count(p.weight) >= SMALLEST_KERNEL]
    kernels = {product.weight for product in products}
    lookups = [lookup for lookup in map(_lookup, graph) if lookup is not None]
    lookups = [x for x in lookups if x.table in kernels or _count(x.table) >= SMALLEST_TABLE]
    # A weight that is used in any other way stays as it is. So does one of which a product sums over the
    # rows that others look up: its scales would be those of its columns.
    odd = {p.weight for p in products if not p.turned} & {x.table for x in lookups}
    odd |= {x.table for x in lookups if x.node.outputs[0].shape is None}
    known = {p.node for p in products if p.weight not in odd}
    known |= {x.node for x in lookups if x.table not in odd}
    tables = {x.table for x in lookups}
    free = {w for w in kernels | tables if all(use.node in known for use in w.uses())}
    whole = Plan(tuple(p for p in products if p.weight in free), tuple(x for x in lookups if x.table in free))
    for path in keep:
        if not any(_is_below(layer, path) for layer in whole.layers):
            raise ConfigError(
                f"keep has {path!r}, which is no layer that would be quantized. {nearest(path, whole.layers)}"
            )
    kept = tuple(layer for layer in whole.layers if any(_is_below(layer, path) for path in keep))
    return Plan(
        tuple(p for p in whole.products if p.layer not in kept),
        tuple(x for x in whole.lookups if x.layer not in kept),
        kept,
    )


def inside_branches(graph: ir.Graph) -> list[str]:
    """The layers with matrix products inside branches or loops, which `plan` leaves out."""
    inner = (_product(node) for part in graph.subgraphs() for node in part)
    layers = [product.layer for product in inner if product is not None]
    return list(dict.fromkeys(layers))


def _is_below(layer: str, path: str) -> bool:
    path = path.rstrip("/")
    return layer == path or layer.startswith(f"{path}/")


def _product(node: ir.Node) -> Product | None:
    if node.domain not in ("", "ai.onnx") or node.op_type not in ("MatMul", "Gemm"):
        return None
    x, weight = node.inputs[0], node.inputs[1]
    if x is None or weight is None or not _is_kernel(weight) or x.const_value is not None:
        return None
    if node.op_type == "MatMul":
        return Product(node, x, weight)
    plain = all(node.attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta"))
    if not plain or node.attributes.get_int("transA", 0):
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return Product(node, x, weight, bool(node.attributes.get_int("transB", 0)), bias)


def _lookup(node: ir.Node) -> Lookup | None:
    if node.op_type != "Gather" or node.domain not in ("", "ai.onnx") or node.inputs[0] is None:
        return None
    table = node.inputs[0]
    return Lookup(node, table) if _is_kernel(table) and node.attributes.get_int("axis", 0) == 0 else None


def _is_kernel(value: ir.Value) -> bool:
    """A float32 weight with two axes that nobody outside may replace."""
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
