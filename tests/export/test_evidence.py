"""Outputs that hardly vary are compared before their activation, or with redrawn weights."""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
from keras import layers

from keras_tx.errors import ExportError
from keras_tx_onnx import export_onnx
from keras_tx_onnx.reading import registry
from keras_tx_onnx.verifying.comparison import Variation
from tests.drawing import redraw


def saturated(activation: str = "softmax", nested: bool = False, separate: bool = False):
    """The logits are of the order of 1e-9."""
    x = keras.Input((6,), name="x")
    y = layers.UnitNormalization()(layers.Dense(8, activation="relu", name="hidden")(x))
    last = layers.Dense(3, activation=None if separate else activation, name="answer")
    top = keras.Sequential([keras.Input((8,)), last], name="top") if nested else last
    y = top(y)
    if separate:
        y = layers.Activation(activation, name="scores")(y)
    model = redraw(keras.Model(x, y))
    last.kernel.assign(last.kernel * 1e-9)
    last.bias.assign(last.bias * 0)
    return model


def zeros():
    """A head that is initialized with zeros, as for fine-tuning."""
    x = keras.Input((6,), name="x")
    y = layers.UnitNormalization()(layers.Dense(8, activation="relu", name="hidden")(x))
    model = redraw(keras.Model(x, layers.Dense(3, name="answer")(y)))
    model.get_layer("answer").kernel.assign(np.zeros((8, 3)))
    return model


SATURATED = {
    "softmax": saturated,
    "sigmoid": lambda: saturated("sigmoid"),
    "nested": lambda: saturated(nested=True),
    "separate": lambda: saturated(separate=True),
}


@pytest.mark.parametrize("name", SATURATED)
def test_nearly_constant_output_is_compared_before_its_activation(name: str, tmp_path):
    model = SATURATED[name]()
    before = model.get_weights()
    report = export_onnx(model, tmp_path / "out")
    (note,) = (note for note in report.manifest.notes if "before the model's last activation" in note)
    assert "'answer'" in note or "'top'" in note or "'scores'" in note
    assert str(report).count("before the model's last activation") == 1
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert model.layers[-1].get_config() == SATURATED[name]().layers[-1].get_config() or name == "nested"
    assert {path.name for path in (tmp_path / "out" / "onnx").iterdir()} == {"model.onnx"}


@pytest.mark.parametrize("make", [*SATURATED.values(), zeros], ids=[*SATURATED, "zeros"])
def test_wrong_graph_with_nearly_constant_outputs_fails(make, monkeypatch, tmp_path):
    """Doubling the hidden values hardly changes the outputs."""
    right = registry._LOWERINGS[layers.UnitNormalization]
    wrong = dataclasses.replace(
        right, function=lambda cx, *args, **kw: cx.op.Mul(right.function(cx, *args, **kw), 2.0)
    )
    monkeypatch.setitem(registry._LOWERINGS, layers.UnitNormalization, wrong)
    model = make()
    with pytest.raises(ExportError, match="Keras"):
        export_onnx(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_zero_weights_are_redrawn_for_the_comparison_only(tmp_path):
    model = zeros()
    before = model.get_weights()
    report = export_onnx(model, tmp_path / "out")
    assert any("redrawn" in note and "'answer'" in note for note in report.manifest.notes)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    x = np.ones((2, 6), "float32")
    np.testing.assert_array_equal(model.predict(x, verbose=0)[0], before[-1])


def test_constant_output_is_noted(tmp_path):
    x = keras.Input((4,), name="x")
    model = keras.Model(x, [layers.Dense(2, name="a")(x), keras.ops.ones_like(x)])
    notes = export_onnx(redraw(model), tmp_path / "out").manifest.notes
    assert [("'ones_like'" in note, "'a'" in note) for note in notes if "proves little" in note] == [
        (True, False)
    ]


def test_varying_outputs_have_no_note(tmp_path):
    x = keras.Input(batch_shape=(1, 4), name="x")
    offset = layers.Dense(2, name="a", activation="softmax")
    model = redraw(keras.Model(x, [offset(x), layers.Dense(3, name="b")(x) + 1000.0]))
    notes = export_onnx(model, tmp_path / "out").manifest.notes
    assert not any("hardly" in note for note in notes)


def test_random_mobilenet(tmp_path):
    model = keras.applications.MobileNetV2(weights=None, classes=5, input_shape=(32, 32, 3), alpha=0.35)
    report = export_onnx(model, tmp_path / "out")
    assert any(
        "'predictions' hardly varies" in note and "before the model's last activation" in note
        for note in report.manifest.notes
    )


@pytest.mark.parametrize(
    ("expected", "difference", "proven"),
    [
        ([[1.0], [2.0]], 0.001, True),
        ([[1.0], [1.0]], 0.0, False),
        ([[1e-11], [3e-11]], 1e-11, False),
        ([[1000.0], [1005.0]], 0.001, True),
        (np.empty((2, 0)), 0.0, True),
    ],
    ids=str,
)
def test_variation(expected, difference, proven):
    variation = Variation()
    expected = np.array(expected)
    variation.add(expected, expected + difference)
    assert variation.proves(1e-4) is proven
