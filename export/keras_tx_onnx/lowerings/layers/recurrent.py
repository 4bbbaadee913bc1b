"""Recurrent layers: the nodes LSTM, GRU and RNN where they compute the same, else a Scan of the cell."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import onnx_ir as ir
from keras import layers, tree

from keras_tx.errors import ExportError
from keras_tx_onnx.graph.builder import KERAS_TENSOR, GraphContext
from keras_tx_onnx.lowerings.layers.recurrent_cells import begins_with_zeros, initial_states, scan
from keras_tx_onnx.reading.registry import lowers

# The name of an activation, its alpha and its beta where ONNX reads them.
ACTIVATIONS: dict[Any, tuple[str, float | None, float | None]] = {
    keras.activations.tanh: ("Tanh", None, None),
    keras.activations.sigmoid: ("Sigmoid", None, None),
    keras.activations.relu: ("Relu", None, None),
    keras.activations.softsign: ("Softsign", None, None),
    keras.activations.softplus: ("Softplus", None, None),
    keras.activations.linear: ("Affine", 1.0, 0.0),
    keras.activations.hard_sigmoid: ("HardSigmoid", 1 / 6, 0.5),
    keras.activations.elu: ("Elu", 1.0, None),
    keras.activations.leaky_relu: ("LeakyRelu", 0.2, None),
}
CONVOLUTIONAL = (layers.ConvLSTM1D, layers.ConvLSTM2D, layers.ConvLSTM3D)
KINDS = (layers.LSTM, layers.GRU, layers.SimpleRNN, layers.RNN, *CONVOLUTIONAL)


@lowers(
    layers.SimpleRNN,
    example=lambda x: layers.SimpleRNN(3, return_sequences=True)(x),
    shape=(None, 4),
    nodes="Transpose RNN Squeeze Transpose",
)
@lowers(
    layers.GRU,
    example=lambda x: layers.GRU(3, return_sequences=True)(x),
    shape=(None, 4),
    nodes="Transpose GRU Squeeze Transpose",
)
@lowers(
    layers.LSTM,
    example=lambda x: layers.LSTM(3)(x),
    shape=(None, 4),
    nodes="Transpose LSTM Squeeze",
)
@lowers(
    layers.ConvLSTM1D,
    example=lambda x: layers.ConvLSTM1D(3, 2)(x),
    shape=(None, 5, 4),
    nodes="Shape Concat Expand Scan",
)
@lowers(
    layers.ConvLSTM2D,
    example=lambda x: layers.ConvLSTM2D(3, 2)(x),
    shape=(None, 5, 6, 4),
    nodes="Shape Concat Expand Scan",
)
@lowers(
    layers.ConvLSTM3D,
    example=lambda x: layers.ConvLSTM3D(3, 2)(x),
    shape=(None, 5, 4, 3, 4),
    nodes="Shape Concat Expand Scan",
)
@lowers(
    layers.RNN,
    example=lambda x: layers.RNN(layers.StackedRNNCells([layers.LSTMCell(3), layers.GRUCell(2)]))(x),
    shape=(None, 4),
    nodes="Shape Concat Expand Concat Expand Scan",
)
def recurrent(
    cx: GraphContext,
    layer: Any,
    /,
    sequences: ir.Value,
    initial_state: Any = None,
    mask: ir.Value | None = None,
) -> Any:
    outputs, last, states = _run(cx, layer, sequences, initial_state, mask)
    output = last if outputs is None else _as_processed(cx, layer, outputs)
    return (output, *states) if layer.return_state else output


@lowers(
    layers.Bidirectional,
    example=lambda x: layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x),
    shape=(None, 4),
    nodes="Transpose LSTM Squeeze Transpose LSTM Squeeze Transpose Concat",
)
def bidirectional(
    cx: GraphContext,
    layer: Any,
    /,
    sequences: ir.Value,
    initial_state: Any = None,
    mask: ir.Value | None = None,
) -> Any:
    parts = (layer.forward_layer, layer.backward_layer)
    for part in parts:
        if type(part) not in KINDS:
            raise ExportError(
                f"Layer {cx.scope!r} has a {type(part).__name__} inside, expected LSTM, GRU, SimpleRNN, "
                "RNN or ConvLSTM."
            )
    halves = (None, None)
    if initial_state is not None:
        half = len(initial_state) // 2
        halves = (initial_state[:half], initial_state[half:])
    (there, there_last, there_states), (back, back_last, back_states) = (
        _run(cx, part, sequences, states, mask) for part, states in zip(parts, halves, strict=True)
    )
    if there is None or back is None:
        pair = (there_last, back_last)
    else:
        # Keras reverses the outputs of the second layer regardless of its direction.
        back = back if parts[1].go_backwards else _flipped(cx, back)
        pair = (_as_processed(cx, parts[0], there), back)
    merged = _merged(cx, layer.merge_mode, *pair)
    return (*merged, *there_states, *back_states) if layer.return_state else _single(merged)


def _merged(cx: GraphContext, mode: str | None, x: ir.Value, y: ir.Value) -> tuple[ir.Value, ...]:
    if mode is None:
        return (x, y)
    if mode == "concat":
        return (cx.op.Concat(x, y, axis=-1),)
    if mode == "mul":
        return (cx.op.Mul(x, y),)
    total = cx.op.Add(x, y)
    return (total if mode == "sum" else cx.op.Div(total, 2.0),)


def _single(values: tuple[ir.Value, ...]) -> Any:
    return values[0] if len(values) == 1 else values


def _as_processed(cx: GraphContext, layer: Any, outputs: ir.Value) -> ir.Value:
    return _flipped(cx, outputs) if layer.go_backwards else outputs


def _flipped(cx: GraphContext, x: ir.Value) -> ir.Value:
    return cx.op.Slice(x, [-1], [-(2**62)], [1], [-1])


def _run(
    cx: GraphContext, layer: Any, x: ir.Value, initial: Any, mask: ir.Value | None
) -> tuple[ir.Value | None, ir.Value, list[Any]]:
    """The outputs over time, or None if the layer returns only the last; the last output; the states."""
    if layer.stateful:
        raise ExportError(
            f"Layer {cx.scope!r} has stateful=True, but a graph keeps no state between calls. Use "
            "stateful=False and return_state=True, and pass the states as initial_state."
        )
    floating = cx.floating(x)
    floating.meta.update(x.meta)
    if initial is not None:
        initial = list(initial) if tree.is_nested(initial) else [initial]
    node = _node_of(layer.cell) if mask is None else None
    if node is not None and (initial is not None or begins_with_zeros(layer)):
        return node(cx, layer, floating, initial)
    if initial is None:
        initial = initial_states(cx, layer, floating)
    if mask is not None and mask.meta[KERAS_TENSOR].dtype != "bool":
        cast: ir.Value = cx.op.Cast(mask, to=ir.DataType.BOOL)
        cast.meta[KERAS_TENSOR] = mask.meta[KERAS_TENSOR]
        mask = cast
    outputs, last, states = scan(cx, layer, floating, initial, mask, layer.return_sequences)
    return outputs, last, list(states)


def _node_of(cell: Any) -> Any:
    """How to write a layer of this cell as one node; None where ONNX has none that computes the same."""
    if type(cell) is layers.LSTMCell:
        used = [cell.recurrent_activation, cell.activation, cell.activation]
        lower = _lstm
    elif type(cell) is layers.GRUCell:
        used, lower = [cell.recurrent_activation, cell.activation], _gru
    elif type(cell) is layers.SimpleRNNCell:
        used, lower = [cell.activation], _simple
    else:
        return None
    try:
        known = [ACTIVATIONS.get(keras.activations.linear if f is None else f) for f in used]
    except TypeError:  # an activation that cannot be a key
        return None
    present = [activation for activation in known if activation is not None]
    if len(present) < len(known):
        return None
    options: dict[str, Any] = {"activations": [name for name, _, _ in present]}
    for index, key in ((1, "activation_alpha"), (2, "activation_beta")):
        numbers = [activation[index] for activation in present if activation[index] is not None]
        if numbers:
            options[key] = numbers
    return functools.partial(lower, options)


Result = tuple[ir.Value | None, ir.Value, list[Any]]


def _lstm(options: dict, cx: GraphContext, layer: Any, x: ir.Value, initial: list | None) -> Result:
    cell = layer.cell
    order = (0, 3, 1, 2)  # Keras has the gates as i, f, c, o, ONNX as i, o, f, c
    kernels = _kernels(cx, cell, order)
    bias = _bias(cx, cell, order, lambda bias: (bias, np.zeros_like(bias)))
    states = [None, None] if initial is None else [cx.op.Unsqueeze(state, [0]) for state in initial]
    y, h, c = cx.op.LSTM(
        cx.op.Transpose(x, perm=[1, 0, 2]),
        *kernels,
        bias,
        None,
        *states,
        outputs=3,
        **_common(layer, options),
    )
    return _results(cx, layer, y, h, c)


def _gru(options: dict, cx: GraphContext, layer: Any, x: ir.Value, initial: list | None) -> Result:
    cell = layer.cell
    order = (0, 1, 2)
    kernels = _kernels(cx, cell, order)
    bias = _bias(
        cx, cell, order, lambda bias: (bias[0], bias[1]) if cell.reset_after else (bias, np.zeros_like(bias))
    )
    state = None if initial is None else cx.op.Unsqueeze(initial[0], [0])
    y, h = cx.op.GRU(
        cx.op.Transpose(x, perm=[1, 0, 2]),
        *kernels,
        bias,
        None,
        state,
        outputs=2,
        linear_before_reset=int(cell.reset_after),
        **_common(layer, options),
    )
    return _results(cx, layer, y, h)


def _simple(options: dict, cx: GraphContext, layer: Any, x: ir.Value, initial: list | None) -> Result:
    kernels = _kernels(cx, layer.cell, (0,))
    bias = _bias(cx, layer.cell, (0,), lambda bias: (bias, np.zeros_like(bias)))
    state = None if initial is None else cx.op.Unsqueeze(initial[0], [0])
    y, h = cx.op.RNN(
        cx.op.Transpose(x, perm=[1, 0, 2]), *kernels, bias, None, state, outputs=2, **_common(layer, options)
    )
    return _results(cx, layer, y, h)


def _common(layer: Any, options: dict) -> dict[str, Any]:
    direction = "reverse" if layer.go_backwards else "forward"
    return {"hidden_size": layer.cell.units, "direction": direction, **options}


def _results(cx: GraphContext, layer: Any, y: ir.Value, *states: ir.Value) -> Result:
    last = [cx.op.Squeeze(state, [0]) for state in states]
    if not layer.return_sequences:
        return None, last[0], last
    return cx.op.Transpose(cx.op.Squeeze(y, [1]), perm=[1, 0, 2]), last[0], last


def _kernels(cx: GraphContext, cell: Any, order: tuple[int, ...]) -> list[ir.Value]:
    """(width, gates * units) -> (1, gates * units, width), the gates in the order of ONNX."""

    def make(kernel: np.ndarray) -> np.ndarray:
        return _gates(kernel, order).T[None]

    variables = (cell.kernel, cell.recurrent_kernel)
    return [cx.made_of(v.path, [v], (1, v.shape[1], v.shape[0]), make) for v in variables]


def _bias(cx: GraphContext, cell: Any, order: tuple[int, ...], halves: Any) -> ir.Value | None:
    """The bias of the input and that of the state, side by side: (1, 2 * gates * units)."""
    if cell.bias is None:
        return None

    def make(bias: np.ndarray) -> np.ndarray:
        return np.concatenate([_gates(half, order) for half in halves(bias)])[None]

    return cx.made_of(cell.bias.path, [cell.bias], (1, 2 * len(order) * cell.units), make)


def _gates(array: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    parts = np.split(array, len(order), axis=-1)
    return np.concatenate([parts[index] for index in order], axis=-1)
