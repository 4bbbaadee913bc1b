"""The table of what can be exported: complete, and read from the registry."""

from __future__ import annotations

import pytest
from keras import layers

import keras_tx_onnx
from keras_tx_onnx.coverage import REASONS, STATES

ROWS = {row.name: row for row in keras_tx_onnx.coverage().rows if row.group.startswith("keras.layers")}


def test_every_public_layer_of_keras_is_covered_or_has_a_reason():
    """Fails for a new layer of Keras: add a lowering, an example that is opened, or a reason."""
    public = {x for x in vars(layers).values() if isinstance(x, type) and issubclass(x, layers.Layer)}
    assert public <= {getattr(layers, name, None) for name in ROWS}
    assert [name for name, row in ROWS.items() if row.state == "not covered" and not row.note] == []


def test_every_reason_is_needed():
    """Some versions of Keras lack a layer that others have."""
    assert {name for name in REASONS if name in ROWS and ROWS[name].state != "not covered"} == set()


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("Dense", "registered"),
        ("Lambda", "opened"),
        ("Dropout", "nothing at inference"),
        ("Hashing", "not covered"),
    ],
)
def test_states(name: str, state: str):
    assert ROWS[name].state == state


def test_coverage_prints_as_a_table():
    table = str(keras_tx_onnx.coverage())
    assert {row.state for row in keras_tx_onnx.coverage().rows} == set(STATES)
    assert "MultiHeadAttention" in table and "MatMul Add Split Attention" in table.replace("2 ", "")
    assert "keras.ops (numpy)" in table
