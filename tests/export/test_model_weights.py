"""The verification reads large weights from Keras's memory, after it has compared them with the file."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import onnx
import pytest
from keras import layers

from keras_tx import contract
from keras_tx.errors import ExportError
from keras_tx.runtime.external_data import external_tensors
from keras_tx.runtime.session import Session
from keras_tx.weights.weight_values import array_of
from keras_tx_onnx.graph.model_file import write_graph
from keras_tx_onnx.interfaces.choice import choose_interface
from keras_tx_onnx.interfaces.model_graph import graph_of
from keras_tx_onnx.reading.signature import as_functional
from keras_tx_onnx.verifying.model_weights import common_weights, weights_in_memory
from tests.drawing import as_numpy, draw, redraw
from tests.tolerances import assert_close

WIDTH = 600  # a kernel of 1.4 MB


@pytest.fixture
def model() -> keras.Model:
    inputs = keras.Input((WIDTH,), name="x")
    x = layers.Dense(WIDTH, activation="tanh", name="first")(inputs)
    return redraw(keras.Model(inputs, layers.Dense(WIDTH, name="second")(x)))


@pytest.fixture
def written(model, tmp_path: Path, monkeypatch) -> tuple:
    monkeypatch.setattr(contract, "EXTERNAL_DATA_FROM", 2**20)
    interface = choose_interface(as_functional(model, None), {}, contract.DEFAULT_OPSET)
    context, graph = graph_of(interface, model)
    path = tmp_path / "model.onnx"
    assert write_graph(graph, path)
    return context.graph, path


def test_large_weights_are_those_of_keras(model, written):
    graph, path = written
    weights = weights_in_memory(graph, path)
    assert set(weights.arrays) == {"first/kernel", "second/kernel"}  # biases are small
    for name, array in weights.arrays.items():
        assert np.shares_memory(array, array_of(model.get_layer(name.split("/")[0]).kernel))
    x = draw(3, WIDTH)
    with Session(path, "cpu", weights=weights, lean=True) as session:
        (computed,) = session.run({"x": x}).values()
    assert_close(computed, as_numpy(model(x)))


def test_other_bytes_in_the_file_raise(written):
    graph, path = written
    (tensor,) = (x for x in external_tensors(path) if x.name == "second/kernel")
    data = path.with_name(tensor.location)
    content = bytearray(data.read_bytes())
    content[tensor.offset + 4 * WIDTH**2 - 1] ^= 1
    data.write_bytes(content)
    with pytest.raises(ExportError, match=r"model.onnx_data .*'second/kernel'"):
        weights_in_memory(graph, path)


def test_second_graph_has_the_weights_that_it_reads_from_the_same_place(written):
    graph, path = written
    weights = weights_in_memory(graph, path)
    other = path.with_name("other.onnx")
    model = onnx.load(path, load_external_data=False)
    onnx.save(model, other)
    assert set(common_weights(weights, path, other).arrays) == {"first/kernel", "second/kernel"}
    moved = next(x for x in model.graph.initializer if x.name == "second/kernel")
    next(entry for entry in moved.external_data if entry.key == "offset").value = "0"
    onnx.save(model, other)
    assert set(common_weights(weights, path, other).arrays) == {"first/kernel"}
