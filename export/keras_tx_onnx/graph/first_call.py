"""The Ifs of a decoder's cache: their branches, and the graph of the first call without them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import onnx_ir as ir

from keras_tx import contract


def is_of_cache(node: ir.Node) -> bool:
    """Whether a node is an If that selects the branch of the first call or that of later ones."""
    predicate = node.inputs[0] if node.op_type == "If" else None
    return predicate is not None and predicate.name == contract.USE_CACHE_BRANCH


def nodes_with_cache(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes of a graph, and those in the branches of its cache."""
    for node in graph:
        if is_of_cache(node):
            for attribute in node.attributes.values():
                yield from attribute.as_graph()
        yield node


def load_first_call(path: str | os.PathLike[str]) -> ir.Model:
    """Reads a graph, with the nodes of the first call in place of the Ifs of a cache.

    Weights and values keep their names, so that measurements in this graph apply to the other one.
    """
    model = ir.load(path)
    for node in list(model.graph):
        if is_of_cache(node):
            branch = node.attributes["else_branch"].as_graph()
            results = list(branch.outputs)
            branch.outputs.clear()
            for inner in list(branch):
                branch.remove(inner)
                model.graph.insert_before(node, inner)
            ir.convenience.replace_nodes_and_values(model.graph, node, [node], [], node.outputs, results)
    return model
