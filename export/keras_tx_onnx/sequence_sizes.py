"""How many rows and columns there are is the same for every value of a text model: that of its ids."""

from __future__ import annotations

import onnx_ir as ir

from keras_tx import contract

UNKNOWN = "unk__"  # how shape inference names a size that it cannot tell


def sizes_of_ids(model: ir.Model) -> int:
    """Asks the ids for batch and sequence, so that equal nodes become one. Gives how many nodes ask them now.

    Shape inference does not see that the sum of tokens and of as many positions is as long as the tokens.
    """
    values = [value for node in model.graph for value in node.outputs]
    for value in values:
        sizes = [] if value.shape is None else list(value.shape)
        if len(sizes) > 1 and sizes[0] == contract.BATCH_AXIS and _name(sizes[1]).startswith(UNKNOWN):
            value.shape = ir.Shape([sizes[0], contract.SEQUENCE_AXIS, *sizes[2:]])
    (ids,) = (value for value in model.graph.inputs if value.name == contract.INPUT_IDS)
    changed = 0
    for node in model.graph:
        x = node.inputs[0] if node.op_type == "Shape" else None
        start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", 99)
        if x is not None and x is not ids and 0 <= start < end <= 2 and of_sequence(x):
            node.replace_input_with(0, ids)
            changed += 1
    return changed


def of_sequence(x: ir.Value) -> bool:
    """Whether a value is (batch, sequence) or (batch, sequence, ...)."""
    sizes = [] if x.shape is None else list(x.shape)
    return [_name(size) for size in sizes[:2]] == [contract.BATCH_AXIS, contract.SEQUENCE_AXIS]


def _name(size: int | ir.SymbolicDim) -> str:
    return str(size) if isinstance(size, int) else str(size.value)
