"""Recurrent layers: options, states, masks and custom cells, at two lengths."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx
from tests.drawing import draw, redraw
from tests.export.exporting import exported, nodes_of, outputs_of, run
from tests.tolerances import assert_close

# For a masked step, Keras returns the first state on JAX, and the previous output on other backends.
OTHER_ON_JAX = pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="masked steps have other outputs on JAX"
)
KINDS = pytest.mark.parametrize("kind", [layers.SimpleRNN, layers.GRU, layers.LSTM])


def series(name: str = "x") -> keras.KerasTensor:
    return keras.Input((None, 4), name=name)


def padded(batch: int, length: int) -> np.ndarray:
    """Steps of zeros on the right, on the left, in the middle, and nothing else."""
    x = draw(batch, length, 4)
    x[1, length // 2 :] = 0
    x[2, : length // 3 + 1] = 0
    x[3, 1:-1:2] = 0
    x[4] = 0
    return x


def check(model: keras.Model, folder, *widths: int, opset: int = 23, node: str | None = None) -> None:
    """`widths` are those of initial states beside the series."""
    redraw(model)
    exported(model, folder / "out", opset=opset)
    for length in (3, 7):
        arrays = [padded(5, length), *(draw(5, width, seed=i) for i, width in enumerate(widths))]
        for mine, expected in zip(run(folder / "out", *arrays), outputs_of(model, *arrays), strict=True):
            assert_close(mine, expected)
    assert node is None or nodes_of(folder / "out")[node]


def node_of(kind: type) -> str:
    return "RNN" if kind is layers.SimpleRNN else kind.__name__


OPTIONS = [
    {},
    {"return_sequences": True},
    {"go_backwards": True},
    {"go_backwards": True, "return_sequences": True, "return_state": True},
    {"use_bias": False},
    {"activation": "relu"},
    {"activation": None},
    {"activation": "elu"},
    {"unroll": False, "dropout": 0.1, "recurrent_dropout": 0.1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@KINDS
def test_options_become_attributes_of_the_node(kind: type, options: dict, tmp_path):
    x = series()
    check(keras.Model(x, kind(3, **options)(x)), tmp_path, node=node_of(kind))


@pytest.mark.parametrize(
    "options", [{"reset_after": False}, {"reset_after": False, "use_bias": False}], ids=str
)
@pytest.mark.parametrize("masked", [False, True])
def test_gru_with_reset_before(options: dict, masked: bool, tmp_path):
    x = series()
    output = layers.GRU(3, return_sequences=True, **options)(layers.Masking()(x) if masked else x)
    check(keras.Model(x, output), tmp_path, node="Scan" if masked else "GRU")


@pytest.mark.parametrize("name", ["hard_sigmoid", "softsign", "leaky_relu", "silu"])
@pytest.mark.parametrize("kind", [layers.GRU, layers.LSTM])
def test_activations(kind: type, name: str, tmp_path):
    x = series()
    output = kind(3, activation=name, recurrent_activation="hard_sigmoid")(x)
    check(keras.Model(x, output), tmp_path, node="Scan" if name == "silu" else node_of(kind))


@pytest.mark.parametrize("masked", [False, pytest.param(True, marks=OTHER_ON_JAX)])
@KINDS
def test_initial_and_last_states(kind: type, masked: bool, tmp_path):
    """With an initial state, Keras does not read the mask of the series, so it is an argument."""
    x, count = series(), 2 if kind is layers.LSTM else 1
    states = [keras.Input((3,), name=f"state_{i}") for i in range(count)]
    mask = ops.any(ops.not_equal(x, 0), axis=-1) if masked else None
    outputs = kind(3, return_state=True, return_sequences=True)(x, initial_state=states, mask=mask)
    check(
        keras.Model([x, *states], outputs), tmp_path, *[3] * count, node="Scan" if masked else node_of(kind)
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"return_sequences": True},
        {"return_sequences": True, "zero_output_for_mask": True},
        {"go_backwards": True, "return_sequences": True},
        {"go_backwards": True, "return_state": True},
        {"dropout": 0.1},
    ],
    ids=str,
)
@KINDS
def test_masked_steps_keep_the_state(kind: type, options: dict, tmp_path):
    x = series()
    opset = 17 if options.get("return_sequences") else 23
    check(keras.Model(x, kind(3, **options)(layers.Masking()(x))), tmp_path, opset=opset, node="Scan")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sequences", [False, True])
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *[(layers.LSTM, mode) for mode in ("concat", "sum", "mul", "ave", None)],
        (layers.GRU, "concat"),
        (layers.SimpleRNN, None),
    ],
)
def test_bidirectional(kind: type, mode: str | None, sequences: bool, masked: bool, tmp_path):
    x = series()
    layer = layers.Bidirectional(kind(3, return_sequences=sequences), merge_mode=mode)
    check(keras.Model(x, layer(layers.Masking()(x) if masked else x)), tmp_path)


@pytest.mark.parametrize("kind", [layers.GRU, layers.LSTM])
def test_bidirectional_with_states(kind: type, tmp_path):
    x, count = series(), 4 if kind is layers.LSTM else 2
    states = [keras.Input((3,), name=f"state_{i}") for i in range(count)]
    layer = layers.Bidirectional(kind(3, return_state=True, return_sequences=True))
    check(keras.Model([x, *states], layer(x, initial_state=states)), tmp_path, *[3] * count)


def test_bidirectional_with_different_layers(tmp_path):
    x = series()
    there, back = (
        layers.LSTM(3, return_sequences=True, go_backwards=True),
        layers.GRU(3, return_sequences=True),
    )
    check(keras.Model(x, layers.Bidirectional(there, backward_layer=back)(x)), tmp_path)


class Leaky(layers.Layer):
    """A custom cell: a running mean with initial value 1."""

    def __init__(self, units: int, **kwargs):
        super().__init__(**kwargs)
        self.units = self.state_size = self.output_size = units
        self.dense = layers.Dense(units)

    def build(self, shape):
        self.dense.build(shape)

    def get_initial_state(self, batch_size=None):
        return [ops.ones((batch_size, self.units))]

    def call(self, x, states):
        h = states[0] / 2 + self.dense(x)
        return h + h, [h]


class Counting(Leaky):
    def get_initial_state(self, batch_size=None):
        assert batch_size is not None
        return [ops.cast(ops.reshape(ops.arange(batch_size * self.units), (batch_size, -1)), "float32")]


@pytest.mark.parametrize("masked", [False, pytest.param(True, marks=OTHER_ON_JAX)])
@pytest.mark.parametrize(
    "cell",
    [
        lambda: layers.LSTMCell(3),
        lambda: layers.GRUCell(3, reset_after=False),
        lambda: layers.SimpleRNNCell(3, dropout=0.1),
        lambda: layers.StackedRNNCells([layers.LSTMCell(3), layers.GRUCell(2), Leaky(4)]),
        lambda: [layers.GRUCell(3), layers.SimpleRNNCell(2)],
        lambda: Leaky(3),
    ],
)
def test_cells(cell, masked: bool, tmp_path):
    x = series()
    outputs = layers.RNN(cell(), return_sequences=True, return_state=True)(
        layers.Masking()(x) if masked else x
    )
    check(keras.Model(x, keras.tree.flatten(outputs)), tmp_path)


def test_stacked_layers_share_only_the_mask(tmp_path):
    x = series()
    hidden = layers.LSTM(3, return_sequences=True)(layers.Masking()(x))
    model = keras.Model(x, layers.Dense(2)(layers.Bidirectional(layers.GRU(2))(hidden)))
    check(model, tmp_path, node="Scan")


def test_time_distributed_recurrent_layer(tmp_path):
    x = keras.Input((None, 3, 4), name="x")
    model = redraw(keras.Model(x, layers.TimeDistributed(layers.LSTM(3))(x)))
    exported(model, tmp_path / "out")
    for length in (2, 5):
        array = draw(3, length, 3, 4)
        assert_close(run(tmp_path / "out", array)[0], outputs_of(model, array)[0])


@pytest.mark.parametrize(
    ("inner", "shape"),
    [
        (lambda: layers.Dense(2, activation="relu"), (None, 4)),
        (lambda: layers.Conv2D(2, 3), (None, 5, 6, 4)),
        (lambda: layers.Flatten(), (None, 3, 4)),
        (lambda: layers.LayerNormalization(), (None, None, 4)),
        (lambda: keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dense(2)]), (None, 4)),
        (lambda: layers.TimeDistributed(layers.Dense(2)), (None, 3, 4)),
    ],
)
def test_time_distributed(inner, shape: tuple, tmp_path):
    x = keras.Input(shape, name="x")
    model = redraw(keras.Model(x, layers.TimeDistributed(inner())(x)))
    exported(model, tmp_path / "out")
    for length in (2, 5):
        array = draw(3, *(length if n is None else n for n in shape))
        assert_close(run(tmp_path / "out", array)[0], outputs_of(model, array)[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: layers.LSTM(3, stateful=True, name="odd")(x), "'odd' has stateful=True"),
        (lambda x: layers.RNN(Counting(3), name="odd")(x), "'odd' .*initial_state"),
        (
            lambda x: layers.TimeDistributed(layers.Softmax(), name="odd")(layers.Masking()(x)),
            "'odd' .*'softmax.*mask",
        ),
    ],
)
def test_unsupported_recurrent_layers_raise(call, message: str, tmp_path):
    x = keras.Input(batch_shape=(2, 3, 4), name="x")
    with pytest.raises(ExportError, match=message):
        export_onnx(keras.Model(x, call(x)), tmp_path / "out", verify=False)


def test_outputs_of_masked_layers_have_named_sizes(tmp_path):
    tokens = keras.Input((None,), dtype="int32", name="tokens")
    x = layers.Embedding(9, 4, mask_zero=True)(tokens)
    x = layers.SimpleRNN(4, return_sequences=True, go_backwards=True)(x)
    model = keras.Model(tokens, layers.GRU(3, reset_after=False, return_sequences=True)(x))
    report = export_onnx(model, tmp_path / "out", verify=False)
    assert report.manifest.outputs[0].shape == ("batch_size", "sequence_length", 3)
