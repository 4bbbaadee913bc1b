"""Every lowering produces its nodes, and the outputs of Keras at the lowest and the default opset."""

from __future__ import annotations

import inspect

import keras
import pytest

from keras_tx import layers
from keras_tx_onnx.reading.registry import lowers, registered
from tests.export.exporting import example_input, example_model, exported, nodes_of, outputs_of, run
from tests.tolerances import assert_close


@pytest.mark.parametrize("lowering", [pytest.param(lowering, id=lowering.name) for lowering in registered()])
def test_example(lowering, tmp_path):
    """One model and one reference for both opsets; the nodes are those of the default opset."""
    model, x = example_model(lowering), example_input(lowering)
    expected = outputs_of(model, x)
    for opset in (17, 23):
        out = exported(model, tmp_path / f"opset_{opset}", opset=opset)
        for got, reference in zip(run(out, x), expected, strict=True):
            assert_close(got, reference)
    # An output that is an input needs a node of its own.
    assert nodes_of(out) == (lowering.nodes or {"Identity": 1})


def test_every_public_layer_has_a_lowering_or_is_opened():
    public = {value for value in vars(layers).values() if inspect.isclass(value)}
    assert public == {lowering.target for lowering in registered()} & public


def test_registering_twice_raises():
    with pytest.raises(ValueError, match="Dense is registered already"):
        lowers(keras.layers.Dense, example=lambda x: x, shape=(1,), nodes="")(lambda cx, layer, x: x)
