from __future__ import annotations

import math

import numpy as np
import pytest

from keras_tx.errors import ConfigError
from keras_tx.layers import FeedForward
from tests.drawing import as_numpy, built, draw
from tests.tolerances import assert_close

erf = np.vectorize(math.erf)
ACTIVATIONS = {
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "swiglu": lambda x: x / (1 + np.exp(-x)),  # of the gate
}


def identity(layer: FeedForward, width: int) -> FeedForward:
    """Every kernel 1 on the diagonal, every bias 0."""
    layer.build((1, 1, width))
    for weight in layer.weights:
        weight.assign(np.eye(width) if len(weight.shape) == 2 else np.zeros(width))
    return layer


@pytest.mark.parametrize(
    "activation, at_one, at_minus_two",
    [
        ("gelu", 0.8413447, -0.0455003),
        ("gelu_tanh", 0.8411920, -0.0454023),
        ("relu", 1.0, 0.0),
        ("swiglu", 0.7310586, 0.4768117),  # x^2 sigmoid(x)
    ],
)
def test_activation_by_hand(activation, at_one, at_minus_two):
    layer = identity(FeedForward(2, activation), 2)
    np.testing.assert_allclose(
        as_numpy(layer(np.array([[[1.0, -2.0]]], "float32")))[0, 0], [at_one, at_minus_two], atol=1e-6
    )


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_equals_the_formula_in_float64(activation, use_bias):
    x = draw(2, 3, 6)
    layer = built(FeedForward(10, activation, use_bias=use_bias), x)

    def dense(name, x):
        sublayer = getattr(layer, name)
        y = x @ as_numpy(sublayer.kernel).astype("float64")
        return y + as_numpy(sublayer.bias) if use_bias else y

    if activation == "swiglu":
        hidden = ACTIVATIONS[activation](dense("gate", x)) * dense("up", x)
    else:
        hidden = ACTIVATIONS[activation](dense("up", x))
    assert_close(as_numpy(layer(x)), dense("down", hidden))


def test_hidden_channels_can_be_as_many_as_the_width():
    """The MLP of lectures, with two D x D matrices: T_out = W_2 relu(W_1 T_in)."""
    x = draw(2, 3, 6)
    layer = built(FeedForward(6, "relu", use_bias=False), x)
    first, second = (as_numpy(weight).astype("float64") for weight in layer.weights)
    assert first.shape == second.shape == (6, 6)
    columns = x.transpose(0, 2, 1)  # tokens as columns, as lectures write them
    expected = second.T @ np.maximum(first.T @ columns, 0)
    assert_close(as_numpy(layer(x)), expected.transpose(0, 2, 1))


def test_dropout_is_only_active_in_training():
    x = np.ones((1, 1, 400), "float32")
    layer = identity(FeedForward(400, "relu", dropout=0.25), 400)
    np.testing.assert_array_equal(as_numpy(layer(x)), x)
    values, counts = np.unique(np.round(as_numpy(layer(x, training=True)), 5), return_counts=True)
    assert values.tolist() == pytest.approx([0, 4 / 3], abs=1e-4)
    assert 40 < counts[0] < 160  # 100 +- 7 standard deviations of sqrt(400 x 0.25 x 0.75)


@pytest.mark.parametrize(
    "config, parts",
    [
        ({"hidden": 8, "activation": "GELU"}, ["activation='GELU'", "Did you mean", "'gelu'"]),
        ({"hidden": 8, "activation": None}, ["activation=None", "'swiglu'"]),
        ({"hidden": 0}, ["hidden is 0", "a whole number, 1 or more"]),
    ],
)
def test_errors_contain_argument_and_value(config, parts):
    with pytest.raises(ConfigError) as error:
        FeedForward(**config)
    assert all(part in str(error.value) for part in parts), str(error.value)
