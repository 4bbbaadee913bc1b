"""Passes over the finished graph, in order. Each says what it changed."""

from __future__ import annotations

import logging
from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.passes.common import (
    CommonSubexpressionEliminationPass,
    RemoveUnusedNodesPass,
    ShapeInferencePass,
)


def cancel_transposes(model: ir.Model) -> int:
    """Removes pairs of Transpose that undo each other: images come channels first, Keras has them last."""
    removed = 0
    for node in list(model.graph):
        if node.op_type != "Transpose" or node.inputs[0] is None:
            continue
        before = node.inputs[0].producer()
        if before is None or before.op_type != "Transpose" or node.outputs[0].is_graph_output():
            continue
        first, second = (list(n.attributes["perm"].as_ints()) for n in (before, node))
        if [first[axis] for axis in second] == list(range(len(first))):
            source = before.inputs[0]
            assert source is not None
            node.outputs[0].replace_all_uses_with(source)
            removed += 1
    return removed


def share_equal_nodes(model: ir.Model) -> int:
    """Nodes that compute the same from the same inputs become one."""
    return _removed_by(CommonSubexpressionEliminationPass(), model)


def remove_unused(model: ir.Model) -> int:
    return _removed_by(RemoveUnusedNodesPass(), model)


def _removed_by(graph_pass: Callable[[ir.Model], object], model: ir.Model) -> int:
    before = model.graph.num_nodes()
    graph_pass(model)
    return before - model.graph.num_nodes()


def simplify(model: ir.Model) -> dict[str, int]:
    """Runs the passes, then shape inference. Gives the number of nodes that each removed."""
    removed = {step.__name__: step(model) for step in (cancel_transposes, share_equal_nodes, remove_unused)}
    # Where it fails, the checker says why in one line; this logger would add a traceback.
    log = logging.getLogger("onnx_ir.passes.common.shape_inference")
    log.disabled = True
    try:
        ShapeInferencePass(strict_mode=True)(model)
    finally:
        log.disabled = False
    return removed
