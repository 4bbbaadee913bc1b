"""The cells of recurrent layers: one step in time."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from keras import layers, tree

from keras_tx_onnx.graph.builder import GraphContext
from keras_tx_onnx.lowerings.nodes.activations import activate
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
        _given(cx, cell, sequence, cell.bias), cx.op.MatMul(h, cx.weight(cell.recurrent_kernel))
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
    total = cx.op.Add(_given(cx, cell, inputs, cell.bias), cx.op.MatMul(h, cx.weight(cell.recurrent_kernel)))
    i, f, new, o = cx.op.Split(total, [cell.units] * 4, outputs=4, axis=-1)
    i, f, o = (activate(cx, cell.recurrent_activation, gate) for gate in (i, f, o))
    c = cx.op.Add(cx.op.Mul(f, c), cx.op.Mul(i, activate(cx, cell.activation, new)))
    h = cx.op.Mul(o, activate(cx, cell.activation, c))
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
    z, r, new = cx.op.Split(_given(cx, cell, inputs, of_input), [units] * 3, outputs=3, axis=-1)
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


def _given(cx: GraphContext, cell: Any, x: ir.Value, bias: Any) -> ir.Value:
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
