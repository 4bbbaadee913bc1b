"""Passes over the finished graph, in order, also inside branches and loops.

Each returns how many nodes it removed or changed. Passes of onnx-ir say only whether they changed the graph.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import (
    CommonSubexpressionEliminationPass,
    RemoveUnusedNodesPass,
    ShapeInferencePass,
)

from keras_tx import contract
from keras_tx_onnx.graph import channel_layout
from keras_tx_onnx.graph.editor import GraphEditor
from keras_tx_onnx.graph.properties import array_of, has_one_use, of_sequence, permutation

Pass = Callable[[ir.Model], int]

logger = logging.getLogger(__name__)


def cancel_transposes(model: ir.Model) -> int:
    """Removes pairs of Transpose that cancel: images come channels first, Keras has them last."""
    removed = 0
    for node in _transposes(model):
        first = _producer(node, "Transpose")
        if first is None or node.outputs[0].is_graph_output():
            continue
        order = permutation(first)
        if [order[axis] for axis in permutation(node)] == list(range(len(order))):
            source = first.inputs[0]
            assert source is not None
            node.outputs[0].replace_all_uses_with(source)
            removed += 1
    return removed


def to_channels_first(model: ir.Model) -> int:
    """Moves regions to channels first; returns how many transpositions cancelled."""
    if len(_transposes(model)) < 2:
        return 0
    infer_shapes(model)
    return channel_layout.to_channels_first(model)


def reshape_instead(model: ir.Model) -> int:
    """Merges a Transpose into the Reshape before it if it moves only axes of size 1, as in (b, 1, 1, c)."""
    editor = GraphEditor(model.graph)
    removed = 0
    for node in _transposes(model):
        reshape, x = _producer(node, "Reshape"), node.inputs[0]
        if reshape is None or x is None or node.outputs[0].is_graph_output() or not has_one_use(x):
            continue
        order, sizes = permutation(node), array_of(reshape.inputs[1])
        if sizes is None or order[0] != 0 or (sizes[1:] == 0).any():
            continue
        shape = sizes if x.shape is None else x.shape
        moved = [axis for axis in order if 1 not in (shape[axis], sizes[axis])]
        if moved == sorted(moved):
            reshape.replace_input_with(1, editor.initializer(f"{node.name}/shape", sizes[order]))
            x.shape = None if x.shape is None else ir.Shape([shape[axis] for axis in order])
            node.outputs[0].replace_all_uses_with(x)
            removed += 1
    return removed


def share_equal_nodes(model: ir.Model) -> int:
    """Merges nodes of one graph that compute the same from the same inputs."""
    before = _count(model)
    for graph in model.graphs():  # the pass treats the outermost graph only
        CommonSubexpressionEliminationPass()(ir.Model(graph, ir_version=model.ir_version))
    return before - _count(model)


def remove_unused(model: ir.Model) -> int:
    """Removes nodes and weights whose results are not used."""
    before = _count(model)
    RemoveUnusedNodesPass()(model)
    return before - _count(model)


def read_sizes_from_ids(model: ir.Model) -> int:
    """Reads batch and sequence from the ids, so that equal nodes are merged; returns the number changed."""
    _name_sequence_axes(model)
    (ids,) = (value for value in model.graph.inputs if value.name == contract.INPUT_IDS)
    changed = 0
    for node in model.graph:
        x = node.inputs[0] if node.op_type == "Shape" else None
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", 99)
        if x is not None and x is not ids and 0 <= start < end <= 2 and of_sequence(x):
            node.replace_input_with(0, ids)
            changed += 1
    return changed


def _name_sequence_axes(model: ir.Model) -> None:
    """Shape inference does not know that the sum of tokens and their positions is as long as the tokens."""
    for value in (value for node in model.graph for value in node.outputs):
        sizes = [] if value.shape is None else list(value.shape)
        if len(sizes) > 1 and sizes[0] == contract.BATCH_AXIS and _name(sizes[1]).startswith("unk__"):
            value.shape = ir.Shape([sizes[0], contract.SEQUENCE_AXIS, *sizes[2:]])


def _name(size: int | ir.SymbolicDim) -> str:
    return str(size) if isinstance(size, int) else str(size.value)


def infer_shapes(model: ir.Model) -> None:
    """Writes the inferred shapes and dtypes into the values."""
    # If it fails, the checker reports the reason in one line; this logger would add a traceback.
    log = logging.getLogger("onnx_ir.passes.common.shape_inference")
    log.disabled = True
    try:
        ShapeInferencePass(strict_mode=True)(model)
    finally:
        log.disabled = False


# Equal nodes are merged before regions move, so that a transposition that two convolutions use counts once.
PASSES: tuple[Pass, ...] = (
    cancel_transposes,
    share_equal_nodes,
    remove_unused,
    to_channels_first,
    reshape_instead,
)


def simplify(model: ir.Model, passes_with_shapes: Sequence[Pass] = ()) -> dict[str, int]:
    """Runs the passes, then shape inference, then those that need the shapes.

    Returns:
        How many nodes each pass removed or changed, by its name.
    """
    changes = {each.__name__: each(model) for each in PASSES}
    changes[remove_unused.__name__] += remove_unused(model)
    infer_shapes(model)
    later = {each.__name__: each(model) for each in passes_with_shapes}
    if any(later.values()):
        changes[remove_unused.__name__] += remove_unused(model)
        changes[share_equal_nodes.__name__] += share_equal_nodes(model)
        infer_shapes(model)
    changes |= later
    logger.debug("Changed nodes of %r: %s", model.graph.name, changes)
    return changes


def _transposes(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph.all_nodes() if node.op_type == "Transpose"]


def _producer(node: ir.Node, op_type: str) -> ir.Node | None:
    """The node that computes the first input, if it is of this type."""
    x = node.inputs[0]
    producer = None if x is None else x.producer()
    return producer if producer is not None and producer.op_type == op_type else None


def _count(model: ir.Model) -> int:
    return sum(graph.num_nodes() for graph in model.graphs())
