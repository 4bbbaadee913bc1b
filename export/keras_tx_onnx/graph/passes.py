"""Passes over the finished graph, in order. Each says what it changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import (
    CommonSubexpressionEliminationPass,
    RemoveUnusedNodesPass,
    ShapeInferencePass,
)

from keras_tx_onnx.graph import channel_layout


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


def to_channels_first(model: ir.Model) -> int:
    """Moves transpositions through nodes that do not care, until they cancel. Gives how many fell away."""
    if sum(node.op_type == "Transpose" for node in model.graph) < 2:
        return 0
    infer_shapes(model)
    return channel_layout.to_channels_first(model)


def reshape_instead(model: ir.Model) -> int:
    """A Transpose of what a Reshape gave is a Reshape where it moves only axes of size 1, (b, 1, 1, c)."""
    removed = 0
    for node in list(model.graph):
        x = node.inputs[0] if node.op_type == "Transpose" else None
        before = None if x is None else x.producer()
        if (
            before is None
            or before.op_type != "Reshape"
            or x is None
            or x.shape is None
            or x.is_graph_output()
        ):
            continue
        target = before.inputs[1]
        if target is None or target.const_value is None or node.outputs[0].is_graph_output():
            continue
        order = list(node.attributes["perm"].as_ints())
        kept = [axis for axis in order if x.shape[axis] != 1]
        sizes = target.const_value.numpy()
        if kept != sorted(kept) or len(x.uses()) > 1 or (order[0] != 0 or (sizes[1:] == 0).any()):
            continue
        name = f"{node.name}/shape"
        tensor = ir.tensor(np.asarray(sizes[order], "int64"), name=name)
        value = ir.Value(name=name, shape=ir.Shape(tensor.shape.numpy()), const_value=tensor)
        value.type = ir.TensorType(tensor.dtype)
        model.graph.register_initializer(value)
        x.shape = ir.Shape([x.shape[axis] for axis in order])
        before.replace_input_with(1, value)
        node.outputs[0].replace_all_uses_with(x)
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


def infer_shapes(model: ir.Model) -> None:
    # Where it fails, the checker says why in one line; this logger would add a traceback.
    log = logging.getLogger("onnx_ir.passes.common.shape_inference")
    log.disabled = True
    try:
        ShapeInferencePass(strict_mode=True)(model)
    finally:
        log.disabled = False


# Equal nodes are shared before regions move, so that a transposition that two convolutions want counts once.
STEPS = (cancel_transposes, share_equal_nodes, remove_unused, to_channels_first, reshape_instead)


def simplify(model: ir.Model, further: Sequence[Callable[[ir.Model], int]] = ()) -> dict[str, int]:
    """Runs the passes, then shape inference. Gives the number of nodes that each removed or changed.

    `further` are passes that need the shapes.
    """
    removed = {step.__name__: step(model) for step in STEPS}
    removed[remove_unused.__name__] += remove_unused(model)
    infer_shapes(model)
    changed = {step.__name__: step(model) for step in further}
    if any(changed.values()):
        removed[remove_unused.__name__] += remove_unused(model)
        removed[share_equal_nodes.__name__] += share_equal_nodes(model)
        infer_shapes(model)
    return removed | changed
