"""A cell that is called for each step in time, in a Scan node: any cell, and any mask."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import ops, tree

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext, shape_of
from keras_tx_onnx.lowerings.layers.sequences import lower_inner


def scan(
    cx: GraphContext, layer: Any, x: ir.Value, states: Any, mask: ir.Value | None, sequences: bool
) -> tuple[ir.Value | None, ir.Value, Any]:
    """The outputs in order of time where asked for, the last output, and the last states.

    A masked step keeps the states and gives the output of the step before, zero at first, as Keras does on
    TensorFlow and PyTorch; on JAX it gives the first state, which for Keras's own cells is the same number.
    """
    step = _value(cx, "step", (shape_of(x)[0], *shape_of(x)[2:]))
    before = [_value(cx, "state", (None, *shape_of(state)[1:])) for state in tree.flatten(states)]
    last = ir.Value(name=cx.unique(f"{cx.scope}/last"), type=ir.TensorType(ir.DataType.FLOAT))
    real = _value(cx, "real", (None, *shape_of(mask)[2:]), "bool") if mask is not None else None
    over_time = [step] if real is None else [step, real]
    with cx.body([last, *before, *over_time]) as body:
        output, after = lower_inner(cx, layer.cell, step, tree.pack_sequence_as(states, before))
        after = tree.flatten(after)
        width = shape_of(output)[1:]
        if real is not None:
            kept = np.float32(0) if layer.zero_output_for_mask else last
            output = _where(cx, real, output, kept, len(width))
            after = [
                _where(cx, real, new, old, len(shape_of(old)) - 1)
                for new, old in zip(after, before, strict=True)
            ]
        for value in [output, *after, *([output] if sequences else [])]:
            _end(cx, body, value)
    last.shape = ir.Shape([None, *width])
    initial = cx.op.Expand(0.0, cx.op.Concat(cx.op.Shape(x, start=0, end=1), list(width), axis=0))
    backwards = int(layer.go_backwards)
    results = cx.op.Scan(
        initial,
        *tree.flatten(states),
        x,
        *([] if mask is None else [mask]),
        outputs=1 + len(after) + int(sequences),
        body=body,
        num_scan_inputs=len(over_time),
        scan_input_axes=[1] * len(over_time),
        scan_input_directions=[backwards] * len(over_time),
        **({"scan_output_axes": [1], "scan_output_directions": [backwards]} if sequences else {}),
    )
    results = list(results)
    outputs = results.pop() if sequences else None
    return outputs, results[0], tree.pack_sequence_as(states, results[1:])


def _value(cx: GraphContext, name: str, shape: tuple, dtype: str = "float32") -> ir.Value:
    kind = ir.DataType.BOOL if dtype == "bool" else ir.DataType.FLOAT
    value = ir.Value(name=cx.unique(f"{cx.scope}/{name}"), type=ir.TensorType(kind), shape=ir.Shape(shape))
    value.meta[KERAS_TENSOR] = keras.KerasTensor(shape, dtype)
    return value


def _where(cx: GraphContext, real: ir.Value, new: Any, old: Any, rank: int) -> ir.Value:
    """`rank` is that of a step's numbers, without the batch."""
    missing = rank - (len(shape_of(real)) - 1)
    wide = cx.op.Unsqueeze(real, list(range(-missing, 0))) if missing > 0 else real
    return cx.op.Where(wide, new, old)


def _end(cx: GraphContext, body: ir.Graph, value: ir.Value) -> None:
    """An output of a body is made there, and is no other output."""
    node = value.producer()
    if node is None or node.graph is not body or value in body.outputs:
        value = cx.op.Identity(value)
    value.type = ir.TensorType(ir.DataType.FLOAT)
    body.outputs.append(value)


def initial_states(cx: GraphContext, layer: Any, x: ir.Value) -> Any:
    """What Keras begins with: rows that are the same for the whole batch, mostly zeros."""

    def widened(one: Any, two: Any) -> ir.Value:
        row, rows = ops.convert_to_numpy(one), ops.convert_to_numpy(two)
        if not np.array_equal(np.repeat(row, 2, axis=0), rows):
            raise ExportError(
                f"The cell of layer {cx.scope!r} begins with another state for each member of the batch. "
                "Give the layer its initial_state."
            )
        row = np.zeros((), "float32") if not row.any() else row.astype("float32")
        sizes = cx.op.Concat(cx.op.Shape(x, start=0, end=1), list(rows.shape[1:]), axis=0)
        state = cx.op.Expand(row, sizes)
        state.meta[KERAS_TENSOR] = keras.KerasTensor((None, *rows.shape[1:]), "float32")
        return state

    one, two = (layer.get_initial_state(batch_size=size) for size in (1, 2))
    return tree.map_structure(widened, one, two)


def begins_with_zeros(layer: Any) -> bool:
    states = tree.flatten(layer.get_initial_state(batch_size=1))
    return not any(ops.convert_to_numpy(state).any() for state in states)
