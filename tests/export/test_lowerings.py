"""Every lowering becomes the nodes that it names and gives what Keras gives, in every opset."""

from __future__ import annotations

import inspect

import keras
import pytest

from keras_tx import layers
from keras_tx_onnx.reading.registry import lowers, registered
from tests.export.exporting import example_input, example_model, exported, nodes_of, outputs_of, run
from tests.tolerances import assert_close

CASES = [pytest.param(lowering, id=lowering.name) for lowering in registered()]


@pytest.mark.parametrize("lowering", CASES)
def test_becomes_the_nodes_that_it_names(lowering, tmp_path):
    nodes = nodes_of(exported(example_model(lowering), tmp_path / "out"))
    # An output that is an input needs a node of its own.
    assert nodes == (lowering.nodes or {"Identity": 1})


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("lowering", CASES)
def test_equals_keras(lowering, opset: int, tmp_path):
    model, x = example_model(lowering), example_input(lowering)
    for got, expected in zip(
        run(exported(model, tmp_path / "out", opset=opset), x), outputs_of(model, x), strict=True
    ):
        assert_close(got, expected)


def test_every_public_layer_has_a_lowering_or_is_opened():
    public = {value for value in vars(layers).values() if inspect.isclass(value)}
    assert public == {lowering.target for lowering in registered()} & public


def test_registering_twice_raises():
    with pytest.raises(ValueError, match="Dense is registered already"):
        lowers(keras.layers.Dense, example=lambda x: x, shape=(1,), nodes="")(lambda cx, layer, x: x)
