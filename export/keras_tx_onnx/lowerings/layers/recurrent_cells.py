"""The cells of recurrent layers, one step in time, and the Scan node that runs a cell over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import layers, ops, tree

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext, shape_of
from keras_tx_onnx.lowerings.activations import activate
from keras_tx_onnx.lowerings.layers.wrappers import lower_inner
from keras_tx_onnx.reading.functional_graph import ConvLSTMCell
from keras_tx_onnx.reading.registry import lowers, opens

Step = tuple[ir.Value, Any]  # the output, and the new states in the structure of the old ones


@lowers(
    layers.SimpleRNNCell,
    example=lambda x: layers.SimpleRNNCell(3)(x, [x])[0],
    shape=(3,),
    nodes="MatMul MatMul Add Add Tanh",
)
def simple_rnn_cell(cx: GraphContext, cell: Any, /, sequence: ir.Value, states: Any) -> Step:
    (h,) = tree.flatten(states)
    total = cx.op.Add(
        _times(cx, cell, sequence, cell.bias), cx.op.MatMul(h, cx.weight(cell.recurrent_kernel))
    )
    h = activate(cx, cell.activation, total)
    return h, tree.pack_sequence_as(states, [h])


@lowers(
    layers.LSTMCell,
    example=lambda x: layers.LSTMCell(3)(x, [x, x])[1],
    shape=(3,),
    nodes="MatMul Add MatMul Add Split Sigmoid Sigmoid Sigmoid Tanh Tanh Mul Mul Mul Add",
)
def lstm_cell(cx: GraphContext, cell: Any, /, inputs: ir.Value, states: Any) -> Step:
    h, c = states
    total = cx.op.Add(_times(cx, cell, inputs, cell.bias), cx.op.MatMul(h, cx.weight(cell.recurrent_kernel)))
    h, c = _lstm_state(cx, cell, cx.op.Split(total, [cell.units] * 4, outputs=4, axis=-1), c)
    return h, [h, c]


@lowers(
    layers.GRUCell,
    example=lambda x: layers.GRUCell(3)(x, [x])[0],
    shape=(3,),
    nodes=(
        "Slice Squeeze MatMul Add Split Slice Squeeze MatMul Add Split Add Sigmoid Add Sigmoid Mul Add Tanh "
        "Mul Sub Mul Add"
    ),
)
def gru_cell(cx: GraphContext, cell: Any, /, inputs: ir.Value, states: Any) -> Step:
    (before,) = tree.flatten(states)
    units = cell.units
    of_input, of_state = cell.bias, None
    if cell.bias is not None and cell.reset_after:
        both = cx.weight(cell.bias)
        of_input, of_state = (cx.op.Squeeze(cx.op.Slice(both, [row], [row + 1], [0]), [0]) for row in (0, 1))
    z, r, new = cx.op.Split(_times(cx, cell, inputs, of_input), [units] * 3, outputs=3, axis=-1)
    kernel = cx.weight(cell.recurrent_kernel)
    if cell.reset_after:
        inner = cx.op.MatMul(before, kernel)
        if of_state is not None:
            inner = cx.op.Add(inner, of_state)
        inner_z, inner_r, inner_new = cx.op.Split(inner, [units] * 3, outputs=3, axis=-1)
        r = activate(cx, cell.recurrent_activation, cx.op.Add(r, inner_r))
        inner_new = cx.op.Mul(r, inner_new)
    else:
        gates, last = cx.op.Split(kernel, [2 * units, units], outputs=2, axis=-1)
        inner_z, inner_r = cx.op.Split(cx.op.MatMul(before, gates), [units] * 2, outputs=2, axis=-1)
        r = activate(cx, cell.recurrent_activation, cx.op.Add(r, inner_r))
        inner_new = cx.op.MatMul(cx.op.Mul(r, before), last)
    z = activate(cx, cell.recurrent_activation, cx.op.Add(z, inner_z))
    new = activate(cx, cell.activation, cx.op.Add(new, inner_new))
    h = cx.op.Add(cx.op.Mul(z, before), cx.op.Mul(cx.op.Sub(1.0, z), new))
    return h, tree.pack_sequence_as(states, [h])


@lowers(
    ConvLSTMCell,
    example=lambda x: ConvLSTMCell(1, 3, 2, padding="same")(x, [x, x])[0],
    shape=(5, 3),
    nodes="Transpose Conv Add Conv Add Transpose Split Sigmoid Sigmoid Sigmoid Tanh Tanh Mul Mul Mul Add",
)
def conv_lstm_cell(cx: GraphContext, cell: Any, /, inputs: ir.Value, states: Any) -> Step:
    """The four gates as one convolution of the inputs and one of the state."""
    h, c = states
    last = cell.data_format == "channels_last"

    def gates(x: Any, h: Any) -> Any:
        total = cell.input_conv(x, cell.kernel, padding=cell.padding)
        if cell.bias is not None:
            total = total + (cell.bias if last else ops.reshape(cell.bias, (1, -1, *[1] * cell.rank)))
        return total + cell.recurrent_conv(h, cell.recurrent_kernel)

    assert cx.lower_call_of is not None
    total = cx.lower_call_of(cx, gates, inputs, h)
    parts = cx.op.Split(total, [cell.filters] * 4, outputs=4, axis=-1 if last else 1)
    h, c = _lstm_state(cx, cell, parts, c)
    return h, [h, c]


def _lstm_state(
    cx: GraphContext, cell: Any, gates: Sequence[ir.Value], c: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """The new state and carry of the gates i, f, c and o, before their activations."""
    i, f, new, o = gates
    i, f, o = (activate(cx, cell.recurrent_activation, gate) for gate in (i, f, o))
    c = cx.op.Add(cx.op.Mul(f, c), cx.op.Mul(i, activate(cx, cell.activation, new)))
    return cx.op.Mul(o, activate(cx, cell.activation, c)), c


def _times(cx: GraphContext, cell: Any, x: ir.Value, bias: Any) -> ir.Value:
    x = cx.op.MatMul(cx.floating(x), cx.weight(cell.kernel))
    return x if bias is None else cx.op.Add(x, bias)


opens(
    layers.StackedRNNCells,
    example=lambda x: layers.StackedRNNCells([layers.SimpleRNNCell(3), layers.SimpleRNNCell(3)])(x, [x, x])[
        0
    ],
    shape=(3,),
    nodes="MatMul MatMul Add Add Tanh MatMul MatMul Add Add Tanh",
)

# -- a cell over time -----------------------------------------------------------------------------------


def scan(
    cx: GraphContext, layer: Any, x: ir.Value, states: Any, mask: ir.Value | None, sequences: bool
) -> tuple[ir.Value | None, ir.Value, Any]:
    """The outputs of all steps (with `sequences`), the last output, and the last states.

    A masked step keeps the states and repeats the output of the step before, initially zero, as Keras does on
    TensorFlow and PyTorch; on JAX it returns the first state, which is equal for the cells of Keras.
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
            masked_output = np.float32(0) if layer.zero_output_for_mask else last
            output = _where(cx, real, output, masked_output, len(width))
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
    """The initial states of Keras: the same row for the whole batch, mostly zeros."""

    def widened(one: Any, two: Any) -> ir.Value:
        row, rows = ops.convert_to_numpy(one), ops.convert_to_numpy(two)
        if not np.array_equal(np.repeat(row, 2, axis=0), rows):
            raise ExportError(
                f"The cell of layer {cx.scope!r} has different initial states for the members of a batch. "
                "Pass initial_state to the layer."
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
